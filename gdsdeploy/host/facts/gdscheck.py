"""What NVIDIA's own gdscheck says about the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .. import gdscheck
from ..paths import CUFILE_OPEN, GDSCHECK
from .document import Document
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class GdscheckFacts:
    """``installed``: a gdscheck was found."""

    installed: Maybe[bool]
    #: what it printed
    report: Maybe[gdscheck.Report]
    #: the same rows as libcufile logged them when its driver was opened; None: it did not come so far
    logged: Maybe[Optional[gdscheck.Report]]


def gdscheck_facts(document: Document) -> GdscheckFacts:
    found = document.names(GDSCHECK)
    installed: Maybe[bool] = found if isinstance(found, Unknown) else bool(found)
    run = document.ran(GDSCHECK)
    report: Maybe[gdscheck.Report] = (
        run if isinstance(run, Unknown) else gdscheck.parse(run.stdout + "\n" + run.stderr, run.status)
    )
    opened = document.attempted(CUFILE_OPEN)
    if isinstance(opened, Unknown):
        return GdscheckFacts(installed, report, opened)
    logged = gdscheck.parse_log(opened.log)
    return GdscheckFacts(installed, report, logged if logged.complete else None)
