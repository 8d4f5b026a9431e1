"""The shape of each answer from a host.  An answer with another shape makes that host unfit, and no other.

So does an answer that has the shape and still sets off an unexpected error.  Other keys are dropped.  Evidence that was
saved, for the verbs with ``--evidence FILE``, is judged in the same way.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gdsdeploy.errors import GdsError, HostUnfit, translated
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.host.facts.document import EvidenceFileError, one, read
from gdsdeploy.host.gate.gate import Record
from gdsdeploy.host.io.wording import line
from gdsdeploy.model.text import adapter
from gdsdeploy.ssh.endpoint import Answer, malformed

#: Characters of a text and of a file's, entries of a list or object: more than any host has.
_LONG, _WHOLE, MANY = 1 << 17, 1 << 21, 10_000
PLAIN = r"[A-Za-z0-9._+~@,:=/ -]"


def _normal(path: str) -> str:
    if posixpath.normpath(path) != path or path.startswith(("/", "..")):
        raise ValueError("isn't a normalized path below its folder")
    return path


#: What is only shown: it becomes one line here, whatever the host says.
Text = Annotated[str, Field(max_length=_LONG), AfterValidator(line)]
#: What facts are read from: names and values as the host has them.
Raw = Annotated[str, Field(max_length=_LONG)]
Whole = Annotated[str, Field(max_length=_WHOLE)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", max_length=255)]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9.+:~^_ -]*$", max_length=1024)]
Release = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_~-]*$", max_length=255)]
MaybeRelease = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.+_~-]*)?$", max_length=255)]
BootId = Annotated[str, Field(pattern=r"^[0-9A-Za-z-]*$", max_length=64)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LockDigest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Below = Annotated[str, Field(pattern=f"^[A-Za-z0-9_]{PLAIN}*$", max_length=4096), AfterValidator(_normal)]
Plain = Annotated[str, Field(pattern=f"^{PLAIN}*$", max_length=4096)]
Size = Annotated[int, Field(ge=-1, lt=1 << 63)]
Id = Annotated[int, Field(ge=0, lt=1 << 32)]
#: Seconds.
Time = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]


class Shape(BaseModel):
    """A JSON object whose parts are what they are called; others are left out."""

    model_config = ConfigDict(extra="ignore", strict=True)


S = TypeVar("S")
F = TypeVar("F")
T = TypeVar("T")
#: A record of several values, or of an error; host/facts/document.py asks it without trusting what is in it.
_Record = dict[Raw, Any]


class _Uname(Shape):
    sysname: Text
    release: Text
    version: Text
    machine: Text


class _Host(Shape):
    name: Text
    uid: Annotated[int, Field(ge=-1, lt=1 << 32)]
    python: Text
    uname: _Uname
    machine_id: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class _Command(Shape):
    argv: list[Raw]
    status: Annotated[int, Field(ge=-256, le=256)]
    stdout: Whole
    stderr: Whole
    seconds: Time = 0.0
    pattern: Raw = ""
    log: Whole = ""
    asked_at: Plain = ""
    error: Raw = ""


class _Gap(Shape):
    collector: Text
    reason: Text


class Evidence(Shape):
    """As host/evidence/__init__.py describes it."""

    version: Literal[1]
    collected_at: Plain
    seconds: Time
    host: _Host
    files: dict[Raw, Whole | _Record]
    binaries: dict[Raw, Whole | _Record] = {}
    links: dict[Raw, Raw | _Record] = {}
    listings: dict[Raw, list[Raw] | _Record] = {}
    excerpts: dict[Raw, _Record] = {}
    commands: dict[Raw, _Command] = {}
    modules: dict[Raw, _Record] = {}
    trees: dict[Raw, _Record] = {}
    dkms: dict[Raw, list[Raw] | _Record] = {}
    audits: dict[Raw, _Record] = {}
    modulefiles: dict[Raw, _Record] = {}
    owners: dict[Raw, Raw | _Record] = {}
    excludes: dict[Raw, list[Raw] | _Record] = {}
    inodes: dict[Raw, Size | _Record] = {}
    features: dict[Raw, _Record] = {}
    opens: dict[Raw, Raw | _Record] = {}
    odirect: dict[Raw, _Record] = {}
    load: dict[Raw, _Record] = {}
    insides: dict[Raw, _Record] = {}
    acs: dict[Raw, Size | _Record] = {}
    ports: dict[Raw, Size | _Record] = {}
    vpd: dict[Raw, Raw | _Record] = {}
    space: dict[Raw, dict[Raw, Size] | _Record] = {}
    environment: dict[Raw, Raw] = {}
    configs: dict[Raw, _Record] = {}
    processes: dict[Raw, _Record] = {}
    gaps: list[_Gap] = []


@dataclass(frozen=True)
class GateShown:
    """The running boot, what the gate of the host wrote down in it, and what it has kept."""

    boot_id: BootId
    record: Record | None
    kept: Record | None = None


def lines(value: Any) -> Any:
    """What a host says, in which every text is one line; raises ValueError for one that is longer than any host has."""
    match value:
        case str() if len(value) > _LONG:
            raise ValueError(f"a text of {len(value)} characters")
        case str():
            return line(value)
        case list():
            return [lines(inner) for inner in value]
        case dict():
            return {key: lines(inner) for key, inner in value.items()}
    return value


def parse_reply(host: str, question: str, shape: type[S], document: Any) -> S:
    """The document as a ``shape``; raises HostUnfit that names the place of what is wrong."""
    try:
        parsed: S = adapter(shape).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(ascii(part)[1:-1] if isinstance(part, str) else str(part) for part in first["loc"])
        raise malformed(host, question, f"{place[:200]}: {ascii(first['msg'])[1:-1][:200]}") from None
    return parsed


def judge_reply(answer: Answer, question: str, shape: type[Shape], judge: Callable[[dict[str, Any]], T]) -> T:
    """What ``judge`` makes of a host's document, which is one of that shape; raises the host's error, or HostUnfit."""
    document = parse_reply(answer.host, question, shape, answer.require_document())
    with unexpected_errors(answer.host):
        return judge(document.model_dump(exclude_unset=True))


#: A host's facts, from its answer to ``evidence``; raises as judge_reply.
facts_of_reply: Final = partial(judge_reply, question="evidence", shape=Evidence, judge=facts_from)


def judge_each(
    outcomes: Mapping[str, F | GdsError], judge: Callable[[str, F], T]
) -> tuple[dict[str, T], dict[str, GdsError]]:
    """Host → what ``judge`` makes of its outcome; and the errors of the others."""
    results: dict[str, T] = {}
    errors: dict[str, GdsError] = {}
    for name, outcome in outcomes.items():
        try:
            if isinstance(outcome, GdsError):
                raise outcome
            with unexpected_errors(name):
                results[name] = judge(name, outcome)
        except GdsError as error:
            errors[name] = error
    return results, errors


@contextmanager
def unexpected_errors(host: str) -> Iterator[None]:
    """Turn an unexpected error that a host's words set off in the block into HostUnfit of that host."""
    try:
        yield
    except GdsError:
        raise
    except Exception as error:
        raise HostUnfit(
            f"{host}: what it says cannot be judged: {type(error).__name__}: {ascii(str(error))[1:-1][:200]}",
            hint=f"Report this with its evidence: gdsdeploy support-bundle FLEET --limit {host} -o FILE",
        ) from error


def saved_facts(file: Path) -> dict[str, HostFacts]:
    """Host → its facts; UNNAMED where the file is of one host and does not say which.  Raises GdsError."""
    with evidence_errors():
        return {host: facts_from(document) for host, document in read(str(file)).items()}


def saved_facts_of_host(file: Path, host: str = "") -> HostFacts:
    """The facts of one host.  host: which one of a bundle with several.  Raises GdsError."""
    with evidence_errors():
        return facts_from(one(str(file), host))


@contextmanager
def evidence_errors() -> Iterator[None]:
    """Turn an EvidenceFileError into a GdsError with the same words."""
    with translated(EvidenceFileError, lambda error: GdsError(error.message, hint=error.hint or None)):
        yield
