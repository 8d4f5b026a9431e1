"""I/O through cuFile in Prometheus' text format, for node_exporter's textfile collector: see docs/watch.md.  Pure."""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterator, List, Optional

from ..facts.unknown import if_known
from ..io.prometheus import Metric, Sample, text
from ..io.wording import line
from ..libcufile.counters import WAYS, Counters
from .look import Look
from .owner import named
from .totals import Totals

FILE = "gdsdeploy-watch.prom"

OPERATIONS = "gdsdeploy_cufile_operations_total"
BYTES = "gdsdeploy_cufile_bytes_total"
BOUNCED = "gdsdeploy_cufile_bounced_bytes_total"
ERRORS = "gdsdeploy_cufile_errors_total"
PROCESSES = "gdsdeploy_cufile_processes"
STALE = "gdsdeploy_cufile_stale_segments"
EXPECTED = "gdsdeploy_cufile_direct_expected"
INCOMPLETE = "gdsdeploy_cufile_incomplete"
TIMESTAMP = "gdsdeploy_cufile_timestamp_seconds"
#: Every series that a host exports.
NAMES = (OPERATIONS, BYTES, BOUNCED, ERRORS, PROCESSES, STALE, EXPECTED, INCOMPLETE, TIMESTAMP)
#: The label ``statistics`` of a process with counters; else it is the reason why it has none.
COUNTED = "counted"


def render(look: Look, totals: Totals, pods: Dict[str, str], *, direct: Optional[bool]) -> str:
    """Every series with its help.

    pods: UID → name.  direct: whether the lock expects a direct path on this host; None: it has no expectation.
    """
    return text(_metrics(look, totals, pods, direct))


def _metrics(look: Look, totals: Totals, pods: Dict[str, str], direct: Optional[bool]) -> Iterator[Metric]:
    rows: Dict[str, List[Sample]] = {name: [] for name in (OPERATIONS, BYTES, BOUNCED, ERRORS)}
    for whose, sums in sorted(totals.sums.items()):
        kind, name = named(whose, pods)
        for (gpu, direction), one in sorted(sums.items()):
            # Never ``job``: Prometheus itself has that label.
            labels = [("kind", kind), ("name", line(name)), ("gpu", gpu), ("direction", direction)]
            rows[OPERATIONS] += [
                ([*labels, ("path", way)], str(number)) for way, number in zip(WAYS, one.operations) if number
            ]
            rows[BYTES].append((labels, str(one.bytes)))
            rows[BOUNCED].append((labels, str(one.bounced)))
            rows[ERRORS].append((labels, str(one.errors)))
    yield OPERATIONS, "Operations of cuFile with a GPU, by the path that they took.", rows[OPERATIONS]
    yield BYTES, "Bytes between files and a GPU.", rows[BYTES]
    yield BOUNCED, "Bytes of them that went through CPU memory; estimated where paths were mixed.", rows[BOUNCED]
    yield ERRORS, "Operations of cuFile that failed.", rows[ERRORS]
    yield PROCESSES, "Processes that have libcufile loaded, and whether they are counted.", _processes(look)
    stale: List[Sample] = [] if look.dead is None else [([], str(look.dead))]
    yield STALE, "Segments of statistics that ended processes have left.", stale
    expected: List[Sample] = [] if direct is None else [([], str(int(direct)))]
    yield EXPECTED, "1: the lock expects a direct path on this host.", expected
    missing = str(int(look.incomplete is not None))
    yield INCOMPLETE, "1: not every process was looked at, so some I/O may not be counted.", [([], missing)]
    yield TIMESTAMP, "When the processes were looked at.", [([], str(int(look.at)))]


def _processes(look: Look) -> List[Sample]:
    counts: Counter[tuple[str, str]] = Counter()
    for program, result in look.programs:
        releases = sorted({if_known(version, "unknown") for version in program.libraries.values()})
        state = COUNTED if isinstance(program.counters, Counters) and not result.reason else result.reason
        counts[(line(",".join(releases))[:64], state)] += 1
    return [([("libcufile", release), ("statistics", state)], str(n)) for (release, state), n in sorted(counts.items())]
