"""Write down what a file, folder, link or program says, or why it could not be read.  The only reader of the host."""

from __future__ import annotations

import errno
import fnmatch
import gzip
import os
import platform
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Sequence

from .. import process
from ..errors import HostError

VERSION = 1

#: Bytes kept of one file, and of each output of one program.
FILE_LIMIT = 64 * 1024
OUTPUT_LIMIT = 256 * 1024
#: Bytes looked through for an excerpt; /proc/kallsyms has about 15 MB.
EXCERPT_LIMIT = 256 * 1024 * 1024
#: Lines kept of an excerpt, and names of a listing.
LINES_LIMIT = 2000
NAMES_LIMIT = 5000


class TimeLimitError(Exception):
    """A collector used up its time."""


class Recorder:
    """Collects one document; the methods name its sections.  ``root`` is where absolute paths begin (tests move it)."""

    def __init__(self, total: float = 600.0, root: str = "/") -> None:
        self._root = root
        self._begin = time.monotonic()
        self._end = self._begin + total
        uname = os.uname()
        self.document: Dict[str, Any] = {
            "version": VERSION,
            "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0.0,
            "host": {
                "name": socket.gethostname(),
                "uid": -1,
                "python": platform.python_version(),
                "uname": {
                    "sysname": uname.sysname,
                    "release": uname.release,
                    "version": uname.version,
                    "machine": uname.machine,
                },
            },
            "files": {},
            "binaries": {},
            "links": {},
            "listings": {},
            "excerpts": {},
            "commands": {},
            "modules": {},
            "trees": {},
            "audits": {},
            "inodes": {},
            "features": {},
            "opens": {},
            "odirect": {},
            "load": {},
            "insides": {},
            "acs": {},
            "space": {},
            "gaps": [],
        }

    def finish(self) -> Dict[str, Any]:
        self.document["seconds"] = round(time.monotonic() - self._begin, 3)
        return self.document

    def attempt(self, name: str, collector: Callable[[], None], seconds: float) -> None:
        """Run ``collector``; if it fails or takes longer, the rest of the document goes on without it."""
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
        """Record the file ``path``; also returns its text, or None where there is none."""
        known = self.document["files"].get(path)
        if known is None:
            known = self.document["files"][path] = self._text(path, limit)
        return known if isinstance(known, str) else None

    def _text(self, path: str, limit: int) -> Any:
        try:
            with open(self._at(path), "rb") as file:
                data = read_all(file, limit + 1)
        except OSError as error:
            return failure(error)
        text = data[:limit].decode("utf-8", "replace")
        return text if len(data) <= limit else {"error": f"longer than {limit} bytes", "text": text}

    def texts(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self.text(folder + "/" + name)

    def binary(self, path: str, limit: int = 4096) -> None:
        try:
            with open(self._at(path), "rb") as file:
                value: Any = read_all(file, limit).hex()
        except OSError as error:
            value = failure(error)
        self.document["binaries"][path] = value

    def link(self, path: str) -> Optional[str]:
        try:
            value: Any = os.readlink(self._at(path))
        except OSError as error:
            value = failure(error)
        self.document["links"][path] = value
        return value if isinstance(value, str) else None

    def value(self, section: str, key: str, read: Callable[[str], Any], path: str = "") -> None:
        """Record as ``key`` what ``read`` finds at ``path`` (default: ``key``)."""
        try:
            found: Any = read(self._at(path or key))
        except (OSError, ValueError) as error:
            found = failure(error)
        self.document[section][key] = found

    def names(self, folder: str, pattern: str = "") -> List[str]:
        """Record the names in ``folder`` (those that match a shell ``pattern``); returns them."""
        key = folder + "/" + pattern if pattern else folder
        try:
            found = sorted(os.listdir(self._at(folder)))
        except OSError as error:
            self.document["listings"][key] = failure(error)
            return []
        if pattern:
            found = [name for name in found if fnmatch.fnmatchcase(name, pattern)]
        if len(found) > NAMES_LIMIT:
            self.document["listings"][key] = {"error": f"more than {NAMES_LIMIT} names"}
        else:
            self.document["listings"][key] = found
        return found[:NAMES_LIMIT]

    def excerpt(self, path: str, pattern: str) -> None:
        """Record the lines of ``path`` (plain or .gz) in which the regular expression ``pattern`` is found."""
        try:
            opener: Any = gzip.open if path.endswith(".gz") else open
            with opener(self._at(path), "rb") as file:
                lines = matching_lines(file.read(EXCERPT_LIMIT), pattern)
        except (OSError, EOFError) as error:
            self.document["excerpts"][path] = failure(error)
            return
        if len(lines) > LINES_LIMIT:
            self.document["excerpts"][path] = {"error": f"more than {LINES_LIMIT} lines match"}
        else:
            self.document["excerpts"][path] = {"pattern": pattern, "lines": lines}

    def space(self, path: str) -> None:
        try:
            found = os.statvfs(self._at(path))
            value: Any = {
                "total": found.f_frsize * found.f_blocks,
                "free": found.f_frsize * found.f_bavail,
                "inodes_free": found.f_favail,
            }
        except OSError as error:
            value = failure(error)
        self.document["space"][path] = value

    def command(
        self,
        name: str,
        argv: Sequence[str],
        timeout: float = 10.0,
        env: Optional[Dict[str, str]] = None,
        cwd: Optional[str] = None,
        pattern: str = "",
    ) -> process.Output:
        """Run ``argv`` and record what it left as ``name``; with ``pattern``, only the lines of stdout that match."""
        begin = time.monotonic()
        left = max(1.0, min(timeout, self._end - begin))
        output = process.run(list(argv), timeout=left, env=env, cwd=cwd)
        value: Dict[str, Any] = {
            "argv": list(argv),
            "status": output.status,
            "stdout": output.stdout,
            "stderr": output.stderr[-OUTPUT_LIMIT:],
            "seconds": round(time.monotonic() - begin, 3),
        }
        if pattern:
            matcher = re.compile(pattern)
            kept = [line for line in output.stdout.splitlines() if matcher.search(line)]
            value["stdout"] = "".join(line + "\n" for line in kept)
            value["pattern"] = pattern
        if output.truncated or len(value["stdout"]) > OUTPUT_LIMIT:
            value["error"] = f"longer than {OUTPUT_LIMIT} bytes"
            value["stdout"] = value["stdout"][:OUTPUT_LIMIT]
        self.document["commands"][name] = value
        return output

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def real(self, path: str) -> str:
        """The path behind all links, as seen from the root."""
        found = os.path.realpath(self._at(path))
        if self._root == "/":
            return found
        return "/" + os.path.relpath(found, self._root)

    def _at(self, path: str) -> str:
        return path if self._root == "/" else os.path.join(self._root, path.lstrip("/"))


def matching_lines(data: bytes, pattern: str) -> List[str]:
    """The lines in which ``pattern`` is found; it must not match across lines.

    Over all lines at once: one by one, the 200,000 of /proc/kallsyms take seconds on a slow machine.
    """
    lines: List[str] = []
    end = 0
    for found in re.compile(pattern.encode("utf-8"), re.MULTILINE).finditer(data):
        if found.start() < end:
            continue
        start = data.rfind(b"\n", 0, found.start()) + 1
        end = data.find(b"\n", found.end())
        end = len(data) if end < 0 else end
        lines.append(data[start:end].decode("utf-8", "replace"))
    return lines


def failure(error: BaseException) -> Dict[str, str]:
    number = getattr(error, "errno", None)
    return {"error": errno.errorcode.get(number, str(error)) if number else str(error) or type(error).__name__}


def read_all(file: IO[bytes], limit: int) -> bytes:
    """At most ``limit`` bytes; files in /proc and /sys may hand out less per read than they have."""
    chunks: List[bytes] = []
    left = limit
    while left > 0:
        chunk = file.read(left)
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


@contextmanager
def time_limit(idle: float, total: float) -> Iterator[None]:
    """Raise TimeLimitError in the body once it waited ``idle`` seconds, or after ``total``.

    A limit is for what hangs.  Time on the processor, its own or that of programs it ran to their end, is no waiting:
    an audit on a slow machine is slow, not stuck.  Elsewhere than in the main thread no limit holds.
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
