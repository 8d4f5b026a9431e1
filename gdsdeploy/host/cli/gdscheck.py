"""``gdscheck``: what gdscheck -p prints, from libcufile alone."""

from __future__ import annotations

import argparse
import json

from ..gdscheck import document
from ..gdscheck.live import as_document, open_library
from ..libcufile.probe import TIMEOUT
from .parsers import PROGRAM, option, seconds


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
    opened = open_library(arguments.library, arguments.timeout)
    if arguments.json:
        print(json.dumps(as_document(opened), indent=2))
        return 0
    print(document.text(opened.recording, opened.said.library))
    if opened.hung:
        print(f"  libcufile did not return within {arguments.timeout:g} s and was killed")
    return 0
