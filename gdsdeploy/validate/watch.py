"""What processes on hosts do through cuFile: asked for in rounds, and checked, because a host may say anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from gdsdeploy.errors import GdsError
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.subjects import clients
from gdsdeploy.host.watch.document import explained, lines, order, total
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report import model
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.reply_schema import Plain, Shape
from gdsdeploy.ssh.transport import ask

#: Seconds for a host's answer, beside the interval.
TIMEOUT = 60.0
_Word = Annotated[str, Field(max_length=1024), AfterValidator(line)]
#: Whatever a process has written into its own counters, its host isn't unfit for it.
_Bytes = Annotated[int, Field(ge=0, lt=1 << 96)]


class _Owner(Shape):
    kind: Literal["job", "pod", "container", "unit", ""]
    name: _Word


class _Library(Shape):
    file: _Word
    version: _Word | None


class _File(Shape):
    path: _Word
    mount: _Word
    filesystem: _Word
    direct: bool


class _Fallback(Shape):
    client: Literal["", *clients.ids()]  # type: ignore[valid-type]
    mode: _Word
    refused: Literal["", *clients.REFUSED]  # type: ignore[valid-type]
    mount: _Word


class _Process(Shape):
    pid: Annotated[int, Field(ge=0, lt=1 << 31)]
    start: Annotated[int, Field(ge=-1, lt=1 << 63)]
    program: _Word
    owner: _Owner
    cgroup: _Word
    container: bool | None
    libcufile: list[_Library] = Field(max_length=16)
    configuration: _Word
    statistics_level: Annotated[int, Field(ge=0, le=3)] | None
    nvidia_fs_open: bool | None
    gpus: list[Annotated[str, Field(pattern=r"^GPU-[0-9a-f-]{36}$")]] = Field(max_length=16)
    files: list[_File] = Field(max_length=16)
    path: Literal[counters.PATHS]  # type: ignore[valid-type]
    reason: Literal["", *counters.REASONS]  # type: ignore[valid-type]
    operations: dict[Literal[counters.WAYS], _Bytes]  # type: ignore[valid-type]
    since: Literal["look", "start"]
    read_bytes: _Bytes
    written_bytes: _Bytes
    bounced_bytes: _Bytes
    bounced_exact: bool
    errors: _Bytes
    unaligned: _Bytes
    seconds: Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
    read_rate: _Bytes | None
    write_rate: _Bytes | None
    bounce_rate: _Bytes | None
    beside: Literal["", counters.POSIX, counters.BOUNCED]  # type: ignore[valid-type]
    beside_bytes: _Bytes
    fallback: _Fallback

    @model_validator(mode="after")
    def _is_consistent(self) -> _Process:
        if (self.path == counters.NOT_COUNTED and not self.reason) or (
            self.reason and self.path not in (counters.NOT_COUNTED, counters.POSIX, counters.BOUNCED)
        ):
            raise ValueError("a process that isn't counted has a reason, and none that is has one")
        return self


class Watched(Shape):
    """As host/watch/document.py describes it; the words for paths and reasons are made here."""

    version: Literal[1]
    at: Plain
    incomplete: _Word | None
    processes: list[_Process] = Field(max_length=1000)


def question(every: float, job: str | None = None) -> list[str]:
    """The arguments of the host program.  every: seconds of the interval that it watches."""
    return ["watch", "--json", "--once", "--every", f"{every:g}", *(["--job", job] if job else [])]


def look(
    fleet: Fleet,
    fleet_file: Path,
    names: Sequence[str],
    *,
    every: float,
    job: str | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, dict[str, Any] | GdsError]:
    """One round: what each host's processes, or those of a Slurm job, did in ``every`` seconds.

    A host that doesn't say has an error in its place.
    """
    judge = partial(reply_schema.judge_reply, question="watch", shape=Watched, judge=_with_words)
    results = {
        answer.host: outcome
        for answer, outcome in ask(
            fleet, fleet_file, names, question(every, job), judge, timeout=timeout + every, read_only=True
        )
    }
    return {name: results[name] for name in names}


def _with_words(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "processes": [explained(row) for row in document["processes"]]}


def text(outcomes: dict[str, dict[str, Any] | GdsError], most: int = 0, *, errors: bool = True) -> list[str]:
    """The table of all hosts, those processes first that bounce most, and what hosts couldn't say.

    most: rows that are shown; 0: all.  errors: whether to show why hosts didn't answer.
    """
    documents = {name: results for name, results in outcomes.items() if not isinstance(results, GdsError)}
    rows = [(name, row) for name, results in documents.items() for row in results["processes"]]
    rows.sort(key=lambda pair: (order(pair[1]), pair[0]))
    head = f"{len(documents)} of {len(outcomes)} hosts; {total([row for _, row in rows])}"
    missing = [
        f"{name}: processes may be missing: {results['incomplete']}"
        for name, results in documents.items()
        if results["incomplete"]
    ]
    failed = {name: results for name, results in outcomes.items() if errors and isinstance(results, GdsError)}
    return [head, *lines(rows, most), *missing, *(f"✗ {error.message}" for error in model.errors_alike(failed))]
