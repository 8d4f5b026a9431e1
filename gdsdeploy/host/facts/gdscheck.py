"""What NVIDIA's own gdscheck says about the host."""

from __future__ import annotations

from dataclasses import dataclass

from .. import gdscheck
from ..places import GDSCHECK
from .document import Document
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class GdscheckFacts:
    """``installed``: a gdscheck was found; ``report``: what it printed."""

    installed: Maybe[bool]
    report: Maybe[gdscheck.Report]


def gdscheck_facts(document: Document) -> GdscheckFacts:
    found = document.names(GDSCHECK)
    installed: Maybe[bool] = found if isinstance(found, Unknown) else bool(found)
    run = document.ran(GDSCHECK)
    if isinstance(run, Unknown):
        return GdscheckFacts(installed, run)
    return GdscheckFacts(installed, gdscheck.parse(run.stdout + "\n" + run.stderr, run.status))
