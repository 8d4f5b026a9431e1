"""Make gdscheck's report on this host from libcufile alone, which logs at level INFO all that gdscheck prints.

The library is opened in a child process, because releases from 1.16 never return without /proc/modules (seen without
CUDA).  Its log goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import tempfile
from dataclasses import dataclass, replace
from typing import Any, Dict, Optional

from ..errors import UsageError
from ..libcufile import errors as cufile_errors
from ..libcufile.probe import TIMEOUT, child, libraries, returned
from ..process import TIMED_OUT, Output, run
from . import document, reader
from .reader import REFUSED

_LOADED = re.compile(r"gdsdeploy: loaded (.*)")
_NOT_LOADED = re.compile(r"gdsdeploy: (?:not loaded: )?(.*)")

HUNG = "cuFileDriverOpen did not return; releases from 1.16 never return without /proc/modules"


class NoLibraryError(UsageError):
    """No libcufile could be opened; the message says why, and what to do."""


@dataclass(frozen=True)
class Opened:
    """The result of opening the library whose file is ``library``.

    ``error`` and ``cuda_error`` are what cuFileDriverOpen returned, None where it didn't return; ``hung``: the
    child was killed at its time limit.
    """

    recording: reader.Recording
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
        result = run(child(names, log), timeout=timeout, cwd=folder)
        try:
            with open(log, "rb") as file:
                return _result(result, file.read(reader.LIMIT))
        except FileNotFoundError:
            return _result(result, b"")


def _result(result: Output, log: bytes) -> Opened:
    loaded = _LOADED.search(result.stdout)
    if loaded is None:
        refusal = _NOT_LOADED.search(result.stdout)
        why = refusal[1] if refusal else result.stderr.strip() or "the child process printed nothing"
        raise NoLibraryError(f"libcufile can't be opened: {why}; install it (Debian: libcufile0)")
    error, cuda = returned(result.stdout)
    library = next((path for path in loaded[1].split() if "/libcufile" in path), "")
    recording = reader.read_recording(log)
    if not recording.report.complete:
        # The refusal of a configuration is on the terminal only: the log isn't open yet.
        lines = (result.stdout + "\n" + result.stderr).splitlines()
        printed = reader.read_recording(
            "".join(line + "\n" for line in lines if not line.startswith("gdsdeploy:")).encode("utf-8")
        )
        if printed.report.verdict == REFUSED and recording.report.verdict != REFUSED:
            recording = printed
    if error:
        # An error that the library returned outweighs its rows.
        line = f"cuFileDriverOpen returned {error}" + (f", cu_err {cuda}" if cuda else "")
        errors = (*recording.report.errors, line)
        report = replace(recording.report, verdict=REFUSED, errors=errors, complete=False)
        recording = replace(recording, runs=(*recording.runs[:-1], report))
    return Opened(recording, library, error, cuda, result.status == TIMED_OUT)


def as_document(opened: Opened) -> Dict[str, Any]:
    """The JSON object of ``gdscheck parse``, and under ``opened`` the result of cuFileDriverOpen."""
    result = document.document(opened.recording, opened.library)
    if opened.hung:
        result["reasons"].insert(0, HUNG)
    name = None
    if opened.error:
        with contextlib.suppress(cufile_errors.UnknownCodeError):
            name = cufile_errors.lookup(str(opened.error))[0].name
    error = {"error": opened.error, "name": name, "cuda_error": opened.cuda_error, "hung": opened.hung}
    return {**result, "opened": error}


def add_parser(commands: Any) -> None:
    """Add ``gdscheck`` to the host program's commands."""
    words = "print the report of gdscheck -p, from libcufile alone"
    parser = commands.add_parser("gdscheck", help=words, description=words)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--library", metavar="FILE", help="the libcufile to open (default: the one that programs load)")
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, help="seconds until the library is killed (default: %(default)g)"
    )
    parser.set_defaults(run=command)


def seconds(word: str) -> float:
    """A number of seconds on a command line; raises ArgumentTypeError."""
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"{word!r} isn't a number of seconds above 0 and up to 3600")
    return number


def command(arguments: argparse.Namespace) -> int:
    """Print the report.  Raises NoLibraryError."""
    opened = open_library(arguments.library, arguments.timeout)
    if arguments.json:
        print(json.dumps(as_document(opened), indent=2))
        return 0
    print(document.text(opened.recording, opened.library))
    if opened.hung:
        print(f"  libcufile did not return within {arguments.timeout:g} s and was killed")
    return 0
