"""``gdscheck``: what gdscheck -p prints, from libcufile alone, which logs all of it at level INFO.

The library is opened in a child process, because releases from 1.16 never return without /proc/modules (seen without
CUDA).  Its log goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from typing import Any, Dict, NamedTuple, Optional

from ..errors import UsageError
from ..gdscheck import document, reader
from ..gdscheck.reader import REFUSED
from ..libcufile import errors as cufile_errors, probe
from ..libcufile.probe import TIMEOUT, child, libraries
from ..process import TIMED_OUT, Output, run
from .parsers import PROGRAM, option, seconds

HUNG = "cuFileDriverOpen did not return; releases from 1.16 never return without /proc/modules"


class _Opened(NamedTuple):
    """The result of opening a library; ``hung``: the child was killed at its time limit."""

    recording: reader.Recording
    said: probe.Said
    hung: bool


def _open_library(library: Optional[str], timeout: float) -> _Opened:
    """Open libcufile (at the path ``library``, else the one that the loader finds) for at most ``timeout`` seconds.

    Raises UsageError where no libcufile could be opened.
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


def _result(result: Output, log: bytes) -> _Opened:
    said = probe.said(result.stdout)
    if not said.loaded:
        why = said.problem.removeprefix("not loaded: ") if said.problem else result.stderr.strip()
        raise UsageError(
            f"libcufile can't be opened: {why or 'the child process printed nothing'}; install it (Debian: libcufile0)"
        )
    recording = reader.read_recording(log)
    if not recording.report.complete:
        # The refusal of a configuration is on the terminal only: the log isn't open yet.
        lines = (result.stdout + "\n" + result.stderr).splitlines()
        printed = reader.read_recording(
            "".join(line + "\n" for line in lines if not line.startswith("gdsdeploy:")).encode("utf-8")
        )
        if printed.report.verdict == REFUSED and recording.report.verdict != REFUSED:
            recording = printed
    if said.error:
        # An error that the library returned outweighs its rows.
        line = f"cuFileDriverOpen returned {said.error}" + (f", cu_err {said.cuda_error}" if said.cuda_error else "")
        errors = (*recording.report.errors, line)
        report = recording.report._replace(verdict=REFUSED, errors=errors, complete=False)
        recording = recording._replace(runs=(*recording.runs[:-1], report))
    return _Opened(recording, said, result.status == TIMED_OUT)


def _as_document(opened: _Opened) -> Dict[str, Any]:
    """The JSON object of ``gdscheck parse``, and under ``opened`` the result of cuFileDriverOpen."""
    said = opened.said
    result = document.document(opened.recording, said.library)
    if opened.hung:
        result["reasons"].insert(0, HUNG)
    name = None
    if said.error:
        with contextlib.suppress(cufile_errors.UnknownCodeError):
            name = cufile_errors.lookup(str(said.error))[0].name
    error = {"error": said.error, "name": name, "cuda_error": said.cuda_error, "hung": opened.hung}
    return {**result, "opened": error}


@PROGRAM.command(
    "gdscheck",
    "print the report of gdscheck -p, from libcufile alone",
    option("--library", metavar="FILE", help="the libcufile to open (default: the one that programs load)"),
    option(
        "--timeout", type=seconds, default=TIMEOUT, help="seconds until the library is killed (default: %(default)g)"
    ),
)
def command(arguments: argparse.Namespace) -> int:
    """Print the report.  Raises UsageError where no libcufile could be opened."""
    opened = _open_library(arguments.library, arguments.timeout)
    if arguments.json:
        print(json.dumps(_as_document(opened), indent=2))
        return 0
    print(document.text(opened.recording, opened.said.library))
    if opened.hung:
        print(f"  libcufile did not return within {arguments.timeout:g} s and was killed")
    return 0
