"""Make gdscheck's report on this host from libcufile alone: the library logs at level INFO all that gdscheck prints.

The library is opened in a child of ours, as ``cufile_probe`` does it, since releases from 1.16 never return where
/proc/modules is not there (seen without CUDA); its log goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Optional

from ..libcufile import errors as cufile_errors
from ..libcufile.probe import CHILD, TIMEOUT, libraries, without_cufile
from ..process import PYTHON, TIMED_OUT, Output, run
from . import document, runs
from .report import REFUSED, Report

_LOADED = re.compile(r"gdsdeploy: loaded (.*)")
_NOT_LOADED = re.compile(r"gdsdeploy: (?:not loaded: )?(.*)")
_RETURNED = re.compile(r"gdsdeploy: cuFileDriverOpen returned err=(-?\d{1,18}) cu_err=(-?\d{1,18})")


class NoLibraryError(Exception):
    """No libcufile could be asked; the message says why, and what to do."""


@dataclass(frozen=True)
class Opened:
    """What came of opening the library whose file is ``library``.

    ``error`` and ``cuda_error`` are what cuFileDriverOpen returned, None where it did not; ``hung``: it was killed at
    its time limit.
    """

    recording: runs.Recording
    library: str
    error: Optional[int]
    cuda_error: Optional[int]
    hung: bool


def open_library(library: Optional[str] = None, timeout: float = TIMEOUT) -> Opened:
    """Open libcufile (at the path ``library``, else the one that the loader finds) for at most ``timeout`` seconds.

    Raises NoLibraryError.
    """
    names = [library] if library else libraries()
    with tempfile.TemporaryDirectory(prefix="gdscheck-") as folder:
        log = os.path.join(folder, "cufile.log")
        argv = [*without_cufile(), "CUFILE_LOGFILE_PATH=" + log, "CUFILE_LOGGING_LEVEL=INFO"]
        argv += [*PYTHON, "-c", CHILD, *names]
        done = run(argv, timeout=timeout, cwd=folder)
        return _opened(done, _head(log))


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(runs.LIMIT)
    except FileNotFoundError:
        return b""


def _opened(done: Output, log: bytes) -> Opened:
    loaded = _LOADED.search(done.stdout)
    if loaded is None:
        said = _NOT_LOADED.search(done.stdout)
        why = said.group(1) if said else done.stderr.strip() or "the child said nothing"
        raise NoLibraryError(f"no libcufile can be asked: {why}; install it (Debian: libcufile0)")
    returned = _RETURNED.search(done.stdout)
    error, cuda = (int(returned.group(1)), int(returned.group(2))) if returned else (None, None)
    library = next((path for path in loaded.group(1).split() if "/libcufile" in path), "")
    recording = runs.read(log)
    if not recording.report.complete:
        # A configuration that is refused is told on the terminal only: the log is not open yet.
        lines = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if not line.startswith("gdsdeploy:")]
        printed = runs.read(("\n".join(lines) + "\n").encode("utf-8"))
        if printed.report.verdict == REFUSED and recording.report.verdict != REFUSED:
            recording = printed
    if error:
        recording = replace(recording, runs=(*recording.runs[:-1], _failed(recording.report, error, cuda or 0)))
    return Opened(recording, library, error, cuda, done.status == TIMED_OUT)


def _failed(report: Report, error: int, cuda: int) -> Report:
    """The library returned an error, whatever its rows say."""
    line = "cuFileDriverOpen returned {}{}".format(error, f", cu_err {cuda}" if cuda else "")
    return replace(report, verdict=REFUSED, errors=(*report.errors, line), complete=False)


def as_document(opened: Opened) -> Dict[str, Any]:
    """The JSON object of ``gdscheck parse``, and under ``opened`` what cuFileDriverOpen did."""
    found = document.document(opened.recording, opened.library)
    if opened.hung:
        found["reasons"].insert(
            0, "cuFileDriverOpen did not return, as releases from 1.16 do not where /proc/modules is not there"
        )
    found["opened"] = {
        "error": opened.error,
        "name": _name(opened.error),
        "cuda_error": opened.cuda_error,
        "hung": opened.hung,
    }
    return found


def _name(error: Optional[int]) -> Optional[str]:
    if not error:
        return None
    try:
        return cufile_errors.lookup(str(error))[0].name
    except cufile_errors.UnknownCodeError:
        return None


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``gdscheck`` to the host program's commands; ``action`` runs it."""
    words = "what gdscheck -p prints, from libcufile alone"
    parser = commands.add_parser("gdscheck", help=words, description=words)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--library", metavar="FILE", help="the libcufile to ask (default: the one that programs load)")
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, help="seconds until the library is killed (default: %(default)g)"
    )
    parser.set_defaults(run=action)


def seconds(word: str) -> float:
    """A number of seconds on a command line; raises ArgumentTypeError."""
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found <= 3600:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of seconds up to 3600")
    return found


def command(arguments: argparse.Namespace) -> int:
    """Print the report.  Raises NoLibraryError."""
    opened = open_library(arguments.library, arguments.timeout)
    if arguments.json:
        print(json.dumps(as_document(opened), indent=2))
        return 0
    print(document.text(opened.recording, opened.library))
    if opened.hung:
        print(f"  it did not return within {arguments.timeout:g} s, and was killed")
    return 0
