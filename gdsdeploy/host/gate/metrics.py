"""The gate's verdict in Prometheus' text format, for node_exporter's textfile collector: see docs/prometheus.md.

The labels of a series say what it is about.  They never say how it went, so that a host keeps its series for as long as
it has its stack.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter
from typing import Dict, Iterator, List

from ..io.prometheus import Metric, Sample, text
from ..model.finding import FAIL, NOT_APPLICABLE, PASS, PATHS, UNKNOWN, VERDICTS, WAIVED, Finding
from . import gate

FILE = "gdsdeploy.prom"

OPEN = "gdsdeploy_gate_open"
TIMESTAMP = "gdsdeploy_gate_timestamp_seconds"
BOOT_TIME = "gdsdeploy_gate_boot_time_seconds"
DURATION = "gdsdeploy_gate_duration_seconds"
INFO = "gdsdeploy_gate_info"
CHECKS = "gdsdeploy_gate_checks"
CHECK = "gdsdeploy_check_verdict"
PATH = "gdsdeploy_mount_path"
#: Every series that a host exports.
NAMES = (OPEN, TIMESTAMP, BOOT_TIME, DURATION, INFO, CHECKS, CHECK, PATH)
#: The value of CHECK: the larger, the worse.  A check that is not applicable has no sample; CHECKS counts it.
CODES: Dict[str, int] = {PASS: 0, WAIVED: 1, UNKNOWN: 2, FAIL: 3}
#: The value of PATH's label ``path`` where no evidence proves a path.
UNPROVEN = "unknown"


def render(record: gate.Record) -> str:
    """Every metric with its help; pure."""
    return text(_metrics(record))


def _metrics(record: gate.Record) -> Iterator[Metric]:
    findings = record.read_findings()
    about = [("boot_id", record.boot_id), ("profile", record.profile), ("lock", record.lock_digest)]
    about += [(name.replace("-", "_"), value) for name, value in record.stack]
    yield OPEN, "Whether this host may take work.", [([], str(int(record.state == gate.OPEN)))]
    moment = calendar.timegm(time.strptime(record.when, "%Y-%m-%dT%H:%M:%SZ"))
    yield TIMESTAMP, "When the gate judged this host.", [([], str(moment))]
    words = "When the boot began that was judged; node_boot_time_seconds differs in another boot."
    yield BOOT_TIME, words, [([], str(record.boot_time))]
    yield DURATION, "How long that took.", [([], str(record.seconds))]
    yield INFO, "What was judged, and against what.", [(about, "1")]
    counts = Counter(finding.verdict for finding in findings)
    yield CHECKS, "Number of checks by verdict.", [([("verdict", each)], str(counts[each])) for each in VERDICTS]
    results: List[Sample] = []
    paths: List[Sample] = []
    for finding in findings:
        check, _, subject = finding.check.partition(":")
        if finding.verdict == NOT_APPLICABLE:
            continue
        results.append(([("check", check), ("subject", subject)], str(CODES[finding.verdict])))
        if check == "storage.path" and subject:
            path = _path(finding)
            states = (*PATHS, UNPROVEN)
            paths += [([("mount", subject), ("path", each)], str(int(each == path))) for each in states]
    yield CHECK, "0 the check passed, 1 it is waived, 2 it could not tell, 3 it failed.", results
    yield PATH, "1 for the path that I/O on a mount takes, 0 for the others.", paths


def _path(finding: Finding) -> str:
    """The path that is proven: that of an undecided check is only expected."""
    verdict = finding.waiver["was"] if finding.verdict == WAIVED and finding.waiver else finding.verdict
    return finding.path if finding.path and verdict != UNKNOWN else UNPROVEN
