"""What others have installed of this stack: each kind is a row of data/foreign.json and one recognizer.

A recognizer is a pure function from facts to what it found.  data/foreign.json describes the kinds.
"""

from __future__ import annotations

from .model import (
    ADOPT,
    ANSWERS,
    NOTE,
    REFUSE,
    TAKE_OVER,
    ForeignInstall,
    Kind,
    Locked,
    Trace,
    install_from,
    kind,
    kinds,
)
from .recognizers import findings

__all__ = [
    "ADOPT",
    "ANSWERS",
    "NOTE",
    "REFUSE",
    "TAKE_OVER",
    "ForeignInstall",
    "Kind",
    "Locked",
    "Trace",
    "findings",
    "install_from",
    "kind",
    "kinds",
]
