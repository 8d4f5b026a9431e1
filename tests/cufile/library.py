"""How a real libcufile reads a configuration: the final answer to every question about cufile.json.

Every release from 1.4.0 to 1.20.0 reads, checks and logs its configuration in ``cuFileDriverOpen``.  Short-lived child
processes (ask.py) call it, each in a separate folder and with a time limit, in a private mount namespace where the
document lies at /etc/cufile.json.  A machine with a GPU uses the real libcuda; others use a stand-in (standin.py).
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gdsdeploy import run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.host.gdscheck.reader import parse_log
from gdsdeploy.host.subjects.libcufile import INVALID, REFUSAL
from tests.cufile import standin
from tests.cufile.ask import FAILED

#: Seconds for one document; an answer takes 2 to 150 ms with the stand-in and up to some seconds with a real GPU.
TIMEOUT = 10.0
#: Documents of one child program; limits the memory for their logs.
_BATCH = 500
_KEY = re.compile(r"error reading config (\S+)")
_FIELD = re.compile(r"config read failed for json field (\S+)")
#: Lines that report a problem without naming it; an earlier line names it.
_GENERAL = re.compile(
    r"error reading config|failed to load (user )?config|cuFile configuration load error|cuFile initialization failed"
    r"|^terminate called"
)


@dataclass(frozen=True)
class Answer:
    """The library's answer to one document."""

    #: whether it accepted the document; None: it ended without an answer (see ``output`` and ``hung``)
    accepted: bool | None
    #: its own words about the refusal, without the lines that don't name the problem
    reason: str | None
    #: the dotted key that it names in a refusal
    key: str | None
    #: the values in effect as gdscheck prints them, by the library's own names; empty if the library refused the
    #: document, or stopped before it logged them
    effective: Mapping[str, str]
    #: CUfileOpError of cuFileDriverOpen; None: it didn't return
    error: int | None
    #: the lines of stdout and stderr
    output: tuple[str, ...]
    log: str
    #: killed at its time limit
    hung: bool
    seconds: float
    #: the part of ``seconds`` in cuFileDriverOpen itself; None: it didn't return
    inside: float | None = None


@dataclass(frozen=True)
class Library:
    """One libcufile.so on this machine.

    standin: use the stand-in libcuda also where the machine has a GPU.
    """

    path: Path
    standin: bool = False

    @functools.cached_property
    def version(self) -> str:
        """The version that it logs: ``1.9.1.3``."""
        return self.version_in(self.ask("{}"))

    def version_in(self, answer: Answer) -> str:
        """The same from an answer to a document that it accepted."""
        match = re.search(r"GDS release version: (\d+(?:\.\d+)+)", answer.log)
        assert match, f"{self.path} does not say which release of libcufile it is: {answer}"
        return match[1]

    def ask(self, document: str | bytes, *, folders: Sequence[str] = ()) -> Answer:
        """The answer to one document; see ``ask_all``."""
        return next(self.ask_all([document], folders=folders))

    def ask_all(self, documents: Iterable[str | bytes], *, folders: Sequence[str] = ()) -> Iterator[Answer]:
        """The answer to each document (its whole text), in their order.

        folders: paths that exist as folders, although this machine may not have them.
        Raises ProgramFailed if the library can't be loaded or this machine allows no mount namespace, MissingProgram if
        a stand-in libcuda is needed and there is no compiler.
        """
        pending = iter(documents)
        while batch := [text.encode() if isinstance(text, str) else text for text in islice(pending, _BATCH)]:
            yield from self._batch(batch, folders)

    def _batch(self, documents: list[bytes], folders: Sequence[str]) -> list[Answer]:
        path, jobs = self.path.resolve(), len(os.sched_getaffinity(0))
        stands_in = self.standin or not has_gpu()
        request = {
            "library": str(path),
            "standin": str(standin.libcuda(path)) if stands_in else None,
            "timeout": TIMEOUT,
            "jobs": jobs,
            "folders": list(folders),
            "documents": [base64.b64encode(text).decode() for text in documents],
        }
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-cufile-") as folder:
            output = _start(request, Path(folder), limit=60 + TIMEOUT * (1 + len(documents) / jobs))
        rows = sorted((json.loads(line) for line in output.splitlines()), key=lambda row: int(row["number"]))
        assert len(rows) == len(documents)
        return [_answer(row) for row in rows]


def has_gpu() -> bool:
    """Whether this machine's NVIDIA driver has a GPU."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return gpus.is_dir() and any(gpus.iterdir())


def _start(request: Mapping[str, Any], folder: Path, *, limit: float) -> str:
    """Run ask.py in a private namespace and return its output."""
    program = Path(__file__).with_name("ask.py")
    clean = ["env", *(word for name in sorted(os.environ) if name.startswith("CUFILE_") for word in ("-u", name))]
    python = [*clean, sys.executable, "-I", "-S", str(program)]
    return run.run(
        [run.which("unshare"), *_namespace(), *python],
        doing=f"ask {request['library']}",
        input=json.dumps(request),
        cwd=folder,
        timeout=limit,
    ).stdout


@functools.cache
def _namespace() -> tuple[str, ...]:
    """unshare(1)'s flags for private mounts and IPC: as root directly, else as root of a user namespace.

    In the machine's own namespace of IPC, a library would leave the shared memory of its statistics behind.
    """
    unshare = run.which("unshare")
    for flags in (("--mount", "--ipc"), ("--user", "--map-root-user", "--mount", "--ipc")):
        flags = (*flags, "--propagation", "private")
        if run.run([unshare, *flags, "true"], doing="make a mount namespace", ok=range(-64, 256)).status == 0:
            return flags
    raise ProgramFailed("this machine allows no mount namespace, which has to have its own /etc/cufile.json")


def _answer(row: Mapping[str, Any]) -> Answer:
    output = tuple(line.strip() for line in row["said"].splitlines() if line.strip())
    error = row["result"][0] if row["result"] else None
    effective = parse_log(row["log"]).config
    # Some values end the process: a size of 0, by which 1.4 to 1.18 divide, or a number in place of an object.
    died = error is None and not row["hung"] and row["status"] != FAILED
    refused = died or error in INVALID or any(REFUSAL.search(line) for line in output)
    return Answer(
        accepted=False if refused else True if effective or error is not None else None,
        reason=_reason(output, row["status"] if died else None) if refused else None,
        key=_key(output) if refused else None,
        effective={} if refused else effective,
        error=error,
        output=output,
        log=row["log"],
        hung=row["hung"],
        seconds=row["seconds"],
        inside=row["result"][2] if row["result"] else None,
    )


def _reason(output: tuple[str, ...], status: int | None) -> str:
    """``status``: of a process that the document ended."""
    lines = [line for line in output if not _GENERAL.search(line)] or list(output)
    if status is not None:
        lines.append(f"it ends the process ({signal.Signals(-status).name if status < 0 else f'status {status}'})")
    return "; ".join(lines)


def _key(output: tuple[str, ...]) -> str | None:
    matches = (pattern.search(line) for pattern in (_KEY, _FIELD) for line in output)
    return next((match[1] for match in matches if match), None)
