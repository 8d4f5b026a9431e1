"""Records the content of a file, folder or link and the output of a program, or why it couldn't be read.

An expectation adds to the evidence: packages, mounts and files that are collected only if expected.
"""

from __future__ import annotations

import errno
import fnmatch
import gzip
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .. import process
from ..errors import HostError
from ..io import cache
from ..io.mounts import Mounts, mounts_in
from ..model.expectation import Expectation
from ..odirect.scratch import LONGEST, SECONDS
from ..paths import CUFILE, MOUNTINFO


class EvidenceRequest(NamedTuple):
    """What is collected in addition to the rest: ``mounts`` are mount points, or paths on them."""

    packages: Tuple[str, ...] = ()
    cufile_path: str = CUFILE
    mounts: Tuple[str, ...] = ()
    #: mount points on which a scratch file may be made, for the audit of direct I/O and the proof of the path
    scratch: Tuple[str, ...] = ()
    #: (mount point, seconds): mounts that are read from under load
    load: Tuple[Tuple[str, float], ...] = ()
    #: whether GPU memory may be registered with RDMA adapters
    registration: bool = False
    #: whether package repositories and their keys are collected
    sources: bool = False
    #: whether nvidia-smi is asked for the NVLinks between GPUs
    nvlink: bool = False
    #: whether the end of the audit trail is collected
    trail: bool = False
    #: whether libcufile is opened again where nothing has changed that its last answer depends on
    fresh: bool = False
    #: what the modules are audited against
    expectation: Optional[Expectation] = None


NOTHING = EvidenceRequest()


def request_for(expectation: Expectation, load: bool = False) -> EvidenceRequest:
    """What is collected for ``expectation``; ``load``: also the rate of its mounts, where it has thresholds."""
    points = {mount["mount"]: mount for mount in expectation.storage if "mount" in mount}
    scratch = tuple(point for point, mount in points.items() if mount.get("scratch") != "no")
    limits = {point: points[point].get("load") for point in scratch if load}
    return EvidenceRequest(
        load=tuple(
            (point, min(LONGEST, float(limit.get("seconds", SECONDS))))
            for point, limit in limits.items()
            if isinstance(limit, dict)
        ),
        expectation=expectation,
        registration=expectation.rdma != "none",
        packages=tuple(sorted(expectation.packages)),
        cufile_path=expectation.cufile_path or CUFILE,
        mounts=tuple(points),
        scratch=scratch,
    )


VERSION = 1

#: Bytes kept of one file, and of each output of one program.
FILE_LIMIT = 64 * 1024
OUTPUT_LIMIT = 256 * 1024
#: Bytes looked through for an excerpt; /proc/kallsyms has about 15 MB.
EXCERPT_LIMIT = 256 * 1024 * 1024
#: Lines kept of an excerpt, and names of a listing.
LINES_LIMIT = 2000
NAMES_LIMIT = 5000
#: Sections of the document that map keys to records; the package's docstring describes them.
SECTIONS = (
    "files", "binaries", "links", "listings", "excerpts", "commands", "modules", "trees", "audits", "inodes",
    "features", "opens", "odirect", "load", "insides", "acs", "ports", "vpd", "space", "configs",
    "processes", "dkms", "modulefiles", "owners", "excludes",
)  # fmt: skip


class TimeLimitError(Exception):
    """A collector used up its time."""


class Recorder:
    """Collects one document; the methods name its sections.  ``root`` is where absolute paths begin (tests move it)."""

    def __init__(self, total: float = 600.0, root: str = "/") -> None:
        self.root = root
        #: kernels by their release, whose folders were walked already
        self.kernels: Dict[str, Any] = {}
        self._begin = time.monotonic()
        self._end = self._begin + total
        uname = os.uname()
        self.document: Dict[str, Any] = {
            "version": VERSION,
            "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0.0,
            "host": {
                "name": uname.nodename,
                "uid": -1,
                "python": ".".join(map(str, sys.version_info[:3])),
                "uname": {
                    "sysname": uname.sysname,
                    "release": uname.release,
                    "version": uname.version,
                    "machine": uname.machine,
                },
            },
            **{section: {} for section in SECTIONS},
            "gaps": [],
        }

    def finish(self) -> Dict[str, Any]:
        self.document["seconds"] = round(time.monotonic() - self._begin, 3)
        return self.document

    def attempt(self, name: str, collector: Callable[[], None], seconds: float) -> None:
        """Run ``collector``; if it fails or takes longer, the document records a gap and continues."""
        left = self._end - time.monotonic()
        if left <= 0:
            self.gap(name, "no time left")
            return
        try:
            with time_limit(min(seconds, left), left):
                collector()
        except TimeLimitError as error:
            self.gap(name, str(error))
        except (OSError, ValueError, HostError) as error:
            self.gap(name, f"{type(error).__name__}: {error}")

    def gap(self, collector: str, reason: str) -> None:
        self.document["gaps"].append({"collector": collector, "reason": reason})

    def text(self, path: str, limit: int = FILE_LIMIT) -> Optional[str]:
        """Record the file ``path`` once; also returns its text, or None where there is none."""
        if path not in self.document["files"]:
            self.value("files", path, lambda place: _text(place, limit))
        text = self.document["files"][path]
        return text if isinstance(text, str) else None

    def texts(self, paths: Iterable[str], folder: str = "") -> None:
        """Record files; with a folder, those of these names in it."""
        for path in paths:
            self.text(f"{folder}/{path}" if folder else path)

    def mounts(self, again: bool = False) -> Mounts:
        """Record the mounts of this program once, or ``again``; returns them."""
        if again:
            self.document["files"].pop(MOUNTINFO, None)
        return mounts_in(self.text(MOUNTINFO, limit=1024 * 1024) or "")

    def binary(self, path: str, limit: int = 4096) -> None:
        self.value("binaries", path, lambda place: _bytes(place, limit).hex())

    def link(self, path: str) -> Optional[str]:
        target = self.value("links", path, os.readlink)
        return target if isinstance(target, str) else None

    def value(self, section: str, key: str, read: Callable[[str], Any], path: str = "") -> Any:
        """Record as ``key`` what ``read`` returns for ``path`` (default: ``key``), or its error; returns the record."""
        try:
            record = read(self.at(path or key))
        except (OSError, ValueError, EOFError, HostError) as error:
            record = failure(error)
        self.document[section][key] = record
        return record

    def names(self, folder: str, pattern: str = "") -> List[str]:
        """Record the names in ``folder`` (those that match a shell ``pattern``); returns them."""
        key = folder + "/" + pattern if pattern else folder
        names = self.value("listings", key, os.listdir, folder)
        if not isinstance(names, list):
            return []
        names = sorted(name for name in names if not pattern or fnmatch.fnmatchcase(name, pattern))
        too_many = {"error": f"more than {NAMES_LIMIT} names"}
        self.document["listings"][key] = too_many if len(names) > NAMES_LIMIT else names
        return names[:NAMES_LIMIT]

    def paths(self, *folders: str, pattern: str = "") -> List[str]:
        """Record the names in each folder, likewise; returns their paths."""
        return [f"{folder}/{name}" for folder in folders for name in self.names(folder, pattern)]

    def excerpt(self, path: str, pattern: str, inputs: Sequence[str] = ()) -> None:
        """Record the lines of ``path`` (plain or .gz) in which the regular expression ``pattern`` is found.

        inputs: texts that decide what ``path`` has, if it need not be read again while they are the same.
        """

        def read(place: str) -> Any:
            words = cache.Inputs((), (self.root, pattern, *inputs))
            return cache.of(path, words, lambda: find(place)) if inputs else find(place)

        def find(place: str) -> Dict[str, Any]:
            opener: Any = gzip.open if path.endswith(".gz") else open
            with opener(place, "rb") as file:
                lines = matching_lines(file.read(EXCERPT_LIMIT), pattern)
            if len(lines) > LINES_LIMIT:
                return {"error": f"more than {LINES_LIMIT} lines match"}
            return {"pattern": pattern, "lines": lines}

        self.value("excerpts", path, read)

    def excerpts(self, paths: Iterable[str], pattern: str) -> None:
        for path in paths:
            self.excerpt(path, pattern)

    def space(self, path: str) -> None:
        self.value("space", path, _space)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        timeout: float = 10.0,
        env: Optional[Dict[str, str]] = None,
        cwd: Optional[str] = None,
        pattern: str = "",
        inputs: Optional[cache.Inputs] = None,
        output: Optional[process.Output] = None,
    ) -> process.Output:
        """Run ``argv`` and record its output as ``name``; with ``pattern``, only the lines of stdout that match.

        inputs: all that decides about the output, if the program need not run again while it is the same.
        output: what it would print, where that is known without it.
        """
        begin = time.monotonic()

        def run() -> process.Output:
            return process.run(list(argv), max(1.0, min(timeout, self._end - begin)), env=env, cwd=cwd)

        if output is None:
            output = run() if inputs is None else cache.stored_run(name, argv, inputs, run)
        value: Dict[str, Any] = {
            "argv": list(argv),
            "status": output.status,
            "stdout": output.stdout,
            "stderr": output.stderr[-OUTPUT_LIMIT:],
            "seconds": round(time.monotonic() - begin, 3),
        }
        if pattern:
            matcher = re.compile(pattern)
            value["stdout"] = "".join(line + "\n" for line in output.stdout.splitlines() if matcher.search(line))
            value["pattern"] = pattern
        if output.truncated or len(value["stdout"]) > OUTPUT_LIMIT:
            value["error"] = f"longer than {OUTPUT_LIMIT} bytes"
            value["stdout"] = value["stdout"][:OUTPUT_LIMIT]
        self.document["commands"][name] = value
        return output

    def exists(self, path: str) -> bool:
        return os.path.exists(self.at(path))

    def real(self, path: str) -> str:
        """The path behind all links, as seen from the root."""
        target = os.path.realpath(self.at(path))
        return target if self.root == "/" else "/" + os.path.relpath(target, self.root)

    def at(self, path: str) -> str:
        """Where ``path`` is below the root."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))


def _bytes(path: str, limit: int) -> bytes:
    with open(path, "rb") as file:
        return read_all(file, limit)


def _text(path: str, limit: int) -> Any:
    data = _bytes(path, limit + 1)
    text = data[:limit].decode("utf-8", "replace")
    return text if len(data) <= limit else {"error": f"longer than {limit} bytes", "text": text}


def _space(path: str) -> Dict[str, int]:
    space = os.statvfs(path)
    size = space.f_frsize
    return {"total": size * space.f_blocks, "free": size * space.f_bavail, "inodes_free": space.f_favail}


def matching_lines(data: bytes, pattern: str) -> List[str]:
    """The lines in which ``pattern`` is found; it must not match across lines.

    It searches all lines at once: one by one, the 200,000 of /proc/kallsyms take seconds on a slow machine.
    """
    lines: List[str] = []
    end = 0
    for match in re.compile(pattern.encode("utf-8"), re.MULTILINE).finditer(data):
        if match.start() < end:
            continue
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        lines.append(data[start:end].decode("utf-8", "replace"))
    return lines


def failure(error: BaseException) -> Dict[str, str]:
    number = getattr(error, "errno", None)
    return {"error": errno.errorcode.get(number, str(error)) if number else str(error) or type(error).__name__}


def read_all(file: IO[bytes], limit: int) -> bytes:
    """At most ``limit`` bytes; one read of a file in /proc and /sys may return less than the file has."""
    data = b""
    while len(data) < limit:
        chunk = file.read(limit - len(data))
        if not chunk:
            break
        data += chunk
    return data


@contextmanager
def time_limit(idle: float, total: float) -> Iterator[None]:
    """Raise TimeLimitError in the body once it has waited ``idle`` seconds, or after ``total``.

    Processor time of this process and of its ended children isn't waiting: an audit on a slow machine is slow, not
    stuck.  Outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begin, busy = time.monotonic(), _busy()

    def stop(_signal: int, _frame: Any) -> None:
        spent = time.monotonic() - begin
        left = min(idle - (spent - (_busy() - busy)), total - spent)
        if left <= 0:
            raise TimeLimitError(f"stopped after {spent:.0f} s")
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.01))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(idle, total))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _busy() -> float:
    """Seconds of processor time that this process has used, and those of its children that ended."""
    return sum(os.times()[:4])
