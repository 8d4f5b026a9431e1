"""Statements: in-toto Statement v1 about files, of one of three kinds; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

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


class LockPredicate(_Model):
    """The predicate of a lock."""

    tool: str
    #: user@host
    signed_by: str
    #: RFC 3339, UTC
    signed_at: str
    #: digests of the lock and of the fleet file
    lock: str
    fleet: str

    def lines(self) -> list[str]:
        """The predicate for people."""
        when = f"signed at {self.signed_at} by {self.signed_by} with {self.tool}"
        return [when, f"lock {self.lock}", f"fleet file {self.fleet}"]


class ValidatedHost(_Model):
    """A host's result; empty where the host gave none."""

    verdict: str
    boot_id: str
    expectation: str
    evidence: str


class ValidationPredicate(LockPredicate):
    """The predicate of a validation."""

    began: str
    verdict: str
    #: the selected checks; empty: all
    only: list[str]
    #: hosts of the fleet file without a result
    left_out: list[str]
    hosts: dict[str, ValidatedHost]

    def lines(self) -> list[str]:
        """The predicate for people, with the boot of each host."""
        lines = [*super().lines(), f"verdict {self.verdict}, validation began at {self.began}"]
        if self.only:
            lines.append(f"only these checks were made: {', '.join(self.only)}")
        if self.left_out:
            lines.append(f"these hosts were not asked: {', '.join(self.left_out)}")
        for name, host in self.hosts.items():
            digests = f"evidence {host.evidence or 'none'}, expectation {host.expectation or 'none'}"
            lines.append(f"{name}: {host.verdict}, boot {host.boot_id or 'unknown'}, {digests}")
        return lines


def _at(*keys: str) -> Any:
    return Field(validation_alias=AliasPath(*keys))


class ModulesPredicate(_Model):
    """The predicate of an archive of modules: SLSA's."""

    build_type: Literal["urn:gdsdeploy:kernel-modules:v1"] = _at("buildDefinition", "buildType")
    build_key: str = _at("buildDefinition", "internalParameters", "build_key")
    builder_id: Annotated[str, StringConstraints(pattern=f"^{provenance.BUILDER}")] = _at("runDetails", "builder", "id")
    run: str = _at("runDetails", "metadata", "invocationId")
    finished: str = _at("runDetails", "metadata", "finishedOn")

    @property
    def builder(self) -> str:
        """The builder's name in its fleet."""
        return self.builder_id.removeprefix(provenance.BUILDER)

    def lines(self) -> list[str]:
        """The predicate for people."""
        return [
            f"built on {self.builder}, finished at {self.finished}, run {self.run or 'none'}",
            f"build key {self.build_key}",
        ]


_PREDICATES: Mapping[Kind, type[LockPredicate | ModulesPredicate]] = {
    "lock": LockPredicate,
    "validation": ValidationPredicate,
    "modules": ModulesPredicate,
}


class Statement(_Model):
    """An in-toto statement; unknown keys are ignored."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[Subject], Field(min_length=1, max_length=10_000)]
    predicate_type: str = Field(alias="predicateType")
    predicate: dict[str, Any]

    @property
    def kind(self) -> Kind | None:
        """Its kind; None for another program's."""
        return TYPES.get(self.predicate_type)

    def files(self) -> dict[str, str]:
        """File name → hexadecimal SHA-256."""
        return {subject.name: subject.digest.sha256 for subject in self.subject}

    def about(self) -> LockPredicate | ModulesPredicate:
        """Its predicate; raises ValidationError."""
        return _PREDICATES[TYPES[self.predicate_type]].model_validate(self.predicate)


def read(payload: bytes, place: str) -> Statement:
    """The statement in a signed payload; raises AttestationInvalid that names ``place``."""
    try:
        statement = Statement.model_validate(jsontext.loads(payload.decode()))
        if statement.kind is not None:
            statement.about()
    except ValueError as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise AttestationInvalid(f"{place}: no in-toto statement: {problem}") from None
    if len(statement.files()) != len(statement.subject):
        raise AttestationInvalid(f"{place}: names a file more than once")
    if statement.kind is None:
        hint = f"gdsdeploy knows: {', '.join(TYPES)}"
        raise AttestationInvalid(f"{place}: unknown kind of statement: {statement.predicate_type[:100]!r}", hint=hint)
    return statement


def of_lock(lock: bytes, fleet: bytes, *, digest: str, who: str, when: str) -> bytes:
    """A statement about gdsdeploy.lock.  digest: the lock's.  who: user@host.  when: RFC 3339, UTC."""
    predicate = {"lock": digest, "fleet": f"sha256:{sha256(fleet)}"}
    return _encode("lock", {"gdsdeploy.lock": lock}, predicate, who, when)


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

    only: the selected checks, empty: all.  left_out: hosts of the fleet file without a result.
    who: user@host.  when: RFC 3339, UTC.
    """
    predicate = {
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
    return _encode("validation", {"report.json": text, "gdsdeploy.lock": lock}, predicate, who, when)


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def _encode(kind: Kind, files: Mapping[str, bytes], predicate: Mapping[str, Any], who: str, when: str) -> bytes:
    value = {
        "_type": provenance.STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sha256(data)}} for name, data in files.items()],
        "predicateType": _TYPE_OF[kind],
        "predicate": {"tool": f"gdsdeploy {__version__}", "signed_by": who, "signed_at": when, **predicate},
    }
    return json.dumps(value, sort_keys=True).encode()
