"""What is signed: an in-toto Statement v1 about files, of one of three kinds; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gdsdeploy import __version__
from gdsdeploy.errors import AttestationInvalid
from gdsdeploy.host.archive import provenance
from gdsdeploy.host.io import jsontext
from gdsdeploy.report.model import Report

Kind = Literal["lock", "validation", "modules"]
#: The predicate type of each kind.
TYPES: Mapping[str, Kind] = {
    "urn:gdsdeploy:lock:v1": "lock",
    "urn:gdsdeploy:validation:v1": "validation",
    provenance.PREDICATE: "modules",
}
_TYPE_OF = {kind: name for name, kind in TYPES.items()}
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
#: Below the folder of the statement, with slashes.
FileName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class _Digests(_Model):
    sha256: Digest


class Subject(_Model):
    """A file that the statement is about."""

    name: FileName
    digest: _Digests


class Signed(_Model):
    """The predicate of a lock.  Every predicate says who, when and what as ``lines`` for people."""

    tool: str
    #: user@host
    signed_by: str
    #: RFC 3339, UTC
    signed_at: str
    #: the lock's own digest
    lock: str
    #: of the fleet file
    fleet: str

    def lines(self) -> list[str]:
        """Who, when and what."""
        when = f"signed at {self.signed_at} by {self.signed_by} with {self.tool}"
        return [when, f"lock {self.lock}", f"fleet file {self.fleet}"]


class ValidatedHost(_Model):
    """What a validation found on a host; empty: it gave none."""

    verdict: str
    boot_id: str
    expectation: str
    evidence: str


class Validated(Signed):
    """The predicate of a validation."""

    began: str
    verdict: str
    #: checks that were asked for; empty: all
    only: list[str]
    #: hosts of the fleet file that were not asked
    left_out: list[str]
    hosts: dict[str, ValidatedHost]

    def lines(self) -> list[str]:
        """Who, when and what, and which boot of each host."""
        found = [*super().lines(), f"verdict {self.verdict}, validation began at {self.began}"]
        if self.only:
            found.append(f"only these checks were made: {', '.join(self.only)}")
        if self.left_out:
            found.append(f"these hosts were not asked: {', '.join(self.left_out)}")
        for name, host in self.hosts.items():
            digests = f"evidence {host.evidence or 'none'}, expectation {host.expectation or 'none'}"
            found.append(f"{name}: {host.verdict}, boot {host.boot_id or 'unknown'}, {digests}")
        return found


class _Parameters(_Model):
    build_key: str


class _Definition(_Model):
    build_type: Literal["urn:gdsdeploy:kernel-modules:v1"] = Field(alias="buildType")
    internal: _Parameters = Field(alias="internalParameters")


class _Builder(_Model):
    id: Annotated[str, StringConstraints(pattern=f"^{provenance.BUILDER}")]


class _Metadata(_Model):
    run: str = Field(alias="invocationId")
    finished: str = Field(alias="finishedOn")


class _Details(_Model):
    builder: _Builder
    metadata: _Metadata


class Built(_Model):
    """The predicate of an archive of modules: SLSA's."""

    definition: _Definition = Field(alias="buildDefinition")
    details: _Details = Field(alias="runDetails")

    @property
    def builder(self) -> str:
        """The machine's name in its fleet."""
        return self.details.builder.id.removeprefix(provenance.BUILDER)

    def lines(self) -> list[str]:
        """Who, when and what."""
        about = self.details.metadata
        return [
            f"built on {self.builder}, finished at {about.finished}, run {about.run or 'none'}",
            f"build key {self.definition.internal.build_key}",
        ]


_PREDICATES: Mapping[Kind, type[Signed | Built]] = {"lock": Signed, "validation": Validated, "modules": Built}


class Statement(_Model):
    """in-toto's; keys that it does not know are left to others."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[Subject], Field(min_length=1, max_length=10_000)]
    predicate_type: str = Field(alias="predicateType")
    predicate: dict[str, Any]

    @property
    def kind(self) -> Kind | None:
        """Of which of our kinds it is."""
        return TYPES.get(self.predicate_type)

    def files(self) -> dict[str, str]:
        """File name → hexadecimal SHA-256."""
        return {item.name: item.digest.sha256 for item in self.subject}

    def about(self) -> Signed | Built:
        """Its predicate, as its kind has it; raises ValidationError."""
        return _PREDICATES[TYPES[self.predicate_type]].model_validate(self.predicate)


def read(payload: bytes, place: str) -> Statement:
    """A statement from what was signed; raises AttestationInvalid that names ``place``."""
    try:
        made = Statement.model_validate(jsontext.loads(payload.decode()))
        if made.kind is not None:
            made.about()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise AttestationInvalid(f"{place}: no in-toto statement: {where}: {first['msg']}") from None
    except ValueError as error:
        raise AttestationInvalid(f"{place}: no in-toto statement: {error}") from None
    if len(made.files()) != len(made.subject):
        raise AttestationInvalid(f"{place}: names a file more than once")
    if made.kind is None:
        hint = f"gdsdeploy knows: {', '.join(TYPES)}"
        raise AttestationInvalid(f"{place}: unknown kind of statement: {made.predicate_type[:100]!r}", hint=hint)
    return made


def of_lock(lock: bytes, fleet: bytes, *, digest: str, who: str, when: str) -> bytes:
    """A statement about gdsdeploy.lock.  digest: the lock's own.  who: user@host.  when: RFC 3339, UTC."""
    about = {"lock": digest, "fleet": f"sha256:{sha256(fleet)}"}
    return _made("lock", {"gdsdeploy.lock": lock}, about, who, when)


def of_validation(
    report: Report,
    text: bytes,
    lock: bytes,
    fleet: bytes,
    *,
    only: Sequence[str],
    left_out: Sequence[str],
    who: str,
    when: str,
) -> bytes:
    """A statement about report.json (``text``) and gdsdeploy.lock.

    only: checks that were asked for, empty: all.  left_out: hosts of the fleet file that were not asked.
    who: user@host.  when: RFC 3339, UTC.
    """
    about = {
        "lock": report.lock_digest,
        "fleet": f"sha256:{sha256(fleet)}",
        "began": report.when,
        "verdict": report.verdict,
        "only": list(only),
        "left_out": list(left_out),
        "hosts": {
            host.host: {
                "verdict": host.verdict,
                "boot_id": host.boot_id,
                "expectation": host.expectation_digest,
                "evidence": host.evidence_digest,
            }
            for host in report.hosts
        },
    }
    return _made("validation", {"report.json": text, "gdsdeploy.lock": lock}, about, who, when)


def sha256(data: bytes) -> str:
    """Hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _made(kind: Kind, files: Mapping[str, bytes], about: Mapping[str, Any], who: str, when: str) -> bytes:
    value = {
        "_type": provenance.STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sha256(data)}} for name, data in files.items()],
        "predicateType": _TYPE_OF[kind],
        "predicate": {"tool": f"gdsdeploy {__version__}", "signed_by": who, "signed_at": when, **about},
    }
    return json.dumps(value, sort_keys=True).encode()
