"""What NVIDIA's gdscheck says, of every release from 1.4 to 1.20, as data.

``parse`` reads one run, ``parse_log`` the same rows from a libcufile log; ``reader.read_recording`` reads a file of
either, and ``document.document`` makes the JSON object of it.  ``live`` makes the report on a host that has libcufile
alone.
"""

from __future__ import annotations

from .reader import BROKEN, COMPAT, DIRECT, ERRORS, REFUSED, UNKNOWN, VERDICTS, Gpu, Report, Row, parse, parse_log

__all__ = [
    "BROKEN",
    "COMPAT",
    "DIRECT",
    "ERRORS",
    "REFUSED",
    "UNKNOWN",
    "VERDICTS",
    "Gpu",
    "Report",
    "Row",
    "parse",
    "parse_log",
]
