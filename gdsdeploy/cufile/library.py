"""Ask a real libcufile what it makes of a configuration: the last word on every question about cufile.json.

Any release from 1.4.0 to 1.20.0 reads, judges and logs its configuration in ``cuFileDriverOpen``.  It is called in
short-lived children (ask.py), each in a folder of its own and killed when its time is over, in a private mount
namespace where the document lies at /etc/cufile.json.  On a machine with a GPU the real libcuda answers; elsewhere a
stand-in (standin.py), under which every release goes as far as it does with a GPU that has no memory to give.
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
from typing import Any, Literal

from gdsdeploy import run
from gdsdeploy.cufile import standin
from gdsdeploy.cufile.ask import FAILED
from gdsdeploy.errors import LibraryUnusable, ProgramFailed
from gdsdeploy.host.facts.cufile import INVALID, REFUSAL
from gdsdeploy.host.facts.effective import effective_values

#: Seconds for one document; an answer takes 2 to 150 ms with the stand-in and up to some seconds with a real GPU.
TIMEOUT = 10.0
#: Documents of one child program: bounds the memory that their logs take.
_BATCH = 500
#: Where packages put the library: Debian's, then NVIDIA's.
_INSTALLED = (
    "/usr/lib/*-linux-gnu/libcufile.so.0",
    "/usr/lib64/libcufile.so.0",
    "/usr/local/cuda*/lib64/libcufile.so.0",
    "/usr/local/cuda*/targets/*/lib/libcufile.so.0",
)
_KEY = re.compile(r"error reading config (\S+)")
_FIELD = re.compile(r"config read failed for json field (\S+)")
#: Lines that only say that there is a problem, after the one that says which.
_GENERAL = re.compile(
    r"error reading config|failed to load (user )?config|cuFile configuration load error|cuFile initialization failed"
    r"|^terminate called"
)


@dataclass(frozen=True)
class Answer:
    """What the library did with one document."""

    #: whether it took the document as a configuration; None: it ended without saying so (see ``said`` and ``hung``)
    accepted: bool | None
    #: its own words about the refusal, without the lines that say only that there was one
    reason: str | None
    #: the dotted key that it names in a refusal
    key: str | None
    #: what it works with, as gdscheck prints it: names as the library writes them, values as text.
    #: Empty when it was refused, and when the library stopped before it said so.
    effective: Mapping[str, str]
    #: CUfileOpError of cuFileDriverOpen; None: it did not return
    error: int | None
    #: what it wrote to stdout and stderr, line by line
    said: tuple[str, ...]
    log: str
    #: killed after its time
    hung: bool
    seconds: float
    #: of these, in cuFileDriverOpen itself; None: it did not return
    inside: float | None = None


@dataclass(frozen=True)
class Library:
    """One libcufile.so on this machine.

    cuda: ``real`` takes the machine's libcuda and GPU, ``standin`` ours; ``auto`` the real one where the machine has
    a GPU.
    """

    path: Path
    cuda: Literal["auto", "real", "standin"] = "auto"

    @functools.cached_property
    def version(self) -> str:
        """Version as it calls itself (``1.9.1.3``); raises LibraryUnusable."""
        return self.version_in(self.ask("{}"))

    def version_in(self, answer: Answer) -> str:
        """The same from an answer to a document that it took; raises LibraryUnusable."""
        found = re.search(r"GDS release version: (\d+(?:\.\d+)+)", answer.log)
        if not found:
            words = "; ".join(answer.said[-2:]) or ("it did not return" if answer.hung else "it logged nothing")
            raise LibraryUnusable(f"{self.path} does not say which release of libcufile it is: {words}")
        return found[1]

    def ask(self, document: str | bytes, *, timeout: float = TIMEOUT, folders: Sequence[str] = ()) -> Answer:
        """One document; see ``ask_all``."""
        return next(self.ask_all([document], timeout=timeout, folders=folders))

    def ask_all(
        self,
        documents: Iterable[str | bytes],
        *,
        timeout: float = TIMEOUT,
        jobs: int | None = None,
        level: str = "INFO",
        folders: Sequence[str] = (),
    ) -> Iterator[Answer]:
        """The answer to each document (its whole text), in their order.

        timeout: seconds for one document; jobs: children at a time (default: one for each CPU); level: of the log;
        folders: paths that exist as folders, although this machine may not have them.
        Raises LibraryUnusable when the library cannot be loaded or this machine gives us no mount namespace,
        MissingProgram when a stand-in libcuda is needed and there is no compiler.
        """
        todo = iter(documents)
        jobs = jobs or len(os.sched_getaffinity(0))
        while batch := [text.encode() if isinstance(text, str) else text for text in islice(todo, _BATCH)]:
            request = {"timeout": timeout, "jobs": jobs, "level": level, "folders": list(folders)}
            yield from self._batch(batch, request)

    def _batch(self, documents: list[bytes], request: dict[str, Any]) -> list[Answer]:
        path = self.path.resolve()
        if not path.is_file():
            raise LibraryUnusable(f"{self.path}: there is no such library", hint=_hint(self.path))
        ours = standin.libcuda(path) if self._stands_in else None
        request |= {
            "library": str(path),
            "standin": str(ours) if ours else None,
            "documents": [base64.b64encode(text).decode() for text in documents],
        }
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-cufile-") as folder:
            output = _start(
                request, Path(folder), limit=60 + request["timeout"] * (1 + len(documents) / request["jobs"])
            )
        rows = sorted((json.loads(line) for line in output.splitlines()), key=lambda row: int(row["number"]))
        if len(rows) != len(documents):
            raise LibraryUnusable(f"{self.path}: {len(documents)} questions, but {len(rows)} answers")
        return [_answer(row) for row in rows]

    @property
    def _stands_in(self) -> bool:
        return self.cuda == "standin" or (self.cuda == "auto" and not has_gpu())


def has_gpu() -> bool:
    """Whether the NVIDIA driver of this machine has a GPU."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return gpus.is_dir() and any(gpus.iterdir())


def installed() -> Library:
    """The libcufile of this machine; raises LibraryUnusable when there is none."""
    for pattern in _INSTALLED:
        for found in sorted(Path("/").glob(pattern.lstrip("/"))):
            return Library(found)
    raise LibraryUnusable(
        "no libcufile is installed on this machine",
        hint="Name one with --library; NVIDIA's wheel nvidia-cufile and Debian's package libcufile0 hold it",
    )


def _start(request: Mapping[str, Any], folder: Path, *, limit: float) -> str:
    """Run ask.py in a namespace of its own and return what it wrote."""
    program = Path(__file__).with_name("ask.py")
    clean = ["env", *(word for name in sorted(os.environ) if name.startswith("CUFILE_") for word in ("-u", name))]
    python = [*clean, sys.executable, "-I", "-S", str(program)]
    hint = _hint(Path(str(request["library"])))
    try:
        done = run.run(
            [run.which("unshare"), *_namespace(), *python],
            doing=f"ask {request['library']}",
            input=json.dumps(request),
            cwd=folder,
            timeout=limit,
            ok=range(-64, 256),
        )
    except ProgramFailed as error:
        raise LibraryUnusable(error.message, hint=hint) from error
    if done.status == 0:
        return done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"it ended with status {done.status}"]
    # Python's own words of a library that it could not load.
    what = next((line for line in reversed(lines) if line.startswith("OSError")), lines[-1])
    raise LibraryUnusable(f"{request['library']} cannot be asked: {what}", hint=hint)


@functools.cache
def _namespace() -> tuple[str, ...]:
    """unshare(1)'s flags for a mount namespace of our own: as root directly, else as root of a user namespace."""
    unshare = run.which("unshare")
    for flags in (("--mount",), ("--user", "--map-root-user", "--mount")):
        flags = (*flags, "--propagation", "private")
        if run.run([unshare, *flags, "true"], doing="make a mount namespace", ok=range(-64, 256)).status == 0:
            return flags
    raise LibraryUnusable(
        "libcufile cannot be asked here: this machine lets us make no mount namespace, in which the file would lie at"
        " /etc/cufile.json",
        hint="Run it as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1); a container needs"
        " the capability SYS_ADMIN",
    )


def _hint(path: Path) -> str:
    return f"Name the file of a libcufile for this machine; `ldd {path}` says what it lacks"


def _answer(row: Mapping[str, Any]) -> Answer:
    said = tuple(line.strip() for line in row["said"].splitlines() if line.strip())
    error = row["result"][0] if row["result"] else None
    effective = effective_values(row["log"])
    # Some values end the process: a size of 0 by which 1.4 to 1.18 divide, a number where an object should be.
    died = error is None and not row["hung"] and row["status"] != FAILED
    refused = died or error in INVALID or any(REFUSAL.search(line) for line in said)
    return Answer(
        accepted=False if refused else True if effective or error is not None else None,
        reason=_reason(said, row["status"] if died else None) if refused else None,
        key=_key(said) if refused else None,
        effective={} if refused else effective,
        error=error,
        said=said,
        log=row["log"],
        hung=row["hung"],
        seconds=row["seconds"],
        inside=row["result"][2] if row["result"] else None,
    )


def _reason(said: tuple[str, ...], status: int | None) -> str:
    """``status``: of a process that died of it."""
    words = [line for line in said if not _GENERAL.search(line)] or list(said)
    if status is not None:
        words.append(f"it ends the process ({signal.Signals(-status).name if status < 0 else f'status {status}'})")
    return "; ".join(words)


def _key(said: tuple[str, ...]) -> str | None:
    for pattern in (_KEY, _FIELD):
        for line in said:
            if found := pattern.search(line):
                return found[1]
    return None
