"""The report of NVIDIA's gdscheck about the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .. import gdscheck
from ..paths import CUFILE_OPEN, GDSCHECK
from .document import Document, Ran
from .unknown import Maybe, when_known


@dataclass(frozen=True)
class GdscheckFacts:
    """``installed``: the host has a gdscheck."""

    installed: Maybe[bool]
    #: its output
    report: Maybe[gdscheck.Report]
    #: the same rows as libcufile logged them when its driver was opened; None: it stopped before it logged them
    logged: Maybe[Optional[gdscheck.Report]]

    @property
    def best(self) -> Optional[gdscheck.Report]:
        """The report in libcufile's log, else that of gdscheck; None without either."""
        report = self.logged if isinstance(self.logged, gdscheck.Report) else self.report
        return report if isinstance(report, gdscheck.Report) else None

    def row(self, label: str) -> Optional[gdscheck.Row]:
        """The library's own row about a kind of storage; None: there is none."""
        return self.best.storage.get(label) if self.best is not None else None


def gdscheck_facts(document: Document) -> GdscheckFacts:
    return GdscheckFacts(
        when_known(document.names(GDSCHECK), bool),
        when_known(document.ran(GDSCHECK), lambda run: gdscheck.parse(run.stdout + "\n" + run.stderr, run.status)),
        when_known(document.attempted(CUFILE_OPEN), _logged),
    )


def _logged(run: Ran) -> Optional[gdscheck.Report]:
    report = gdscheck.parse_log(run.log)
    return report if report.complete else None
