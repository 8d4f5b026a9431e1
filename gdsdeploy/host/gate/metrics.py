"""The gate's verdict in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

import calendar
import os
import time
from collections import Counter
from typing import Iterator, List

from ..io.prometheus import Metric, Sample, text
from ..model.finding import NOT_APPLICABLE, PASS, VERDICTS
from . import gate

#: Where node_exporter reads files: Debian's package, then what its documentation uses.
FOLDERS = ("/var/lib/prometheus/node-exporter", "/var/lib/node_exporter/textfile_collector")
FILE = "gdsdeploy.prom"


def folders(settings: gate.Settings) -> List[str]:
    """Where the metrics go: the folder of the settings, which is made, or those usual ones that are there."""
    return [settings.metrics] if settings.metrics else [folder for folder in FOLDERS if os.path.isdir(folder)]


def render(record: gate.Record) -> str:
    """Every metric with its help; pure."""
    return text(_metrics(record))


def _metrics(record: gate.Record) -> Iterator[Metric]:
    findings = record.read_findings()
    about = [("boot_id", record.boot_id), ("profile", record.profile), ("lock", record.lock_digest)]
    about += [("verdict", record.verdict)]
    about += [(name.replace("-", "_"), value) for name, value in record.stack]
    yield "gdsdeploy_gate_open", "Whether this host may take work.", [([], str(int(record.state == gate.OPEN)))]
    moment = calendar.timegm(time.strptime(record.when, "%Y-%m-%dT%H:%M:%SZ"))
    yield "gdsdeploy_gate_timestamp_seconds", "When the gate judged this host.", [([], str(moment))]
    yield "gdsdeploy_gate_duration_seconds", "How long that took.", [([], str(record.seconds))]
    yield "gdsdeploy_gate_info", "What was judged, and against what.", [(about, "1")]
    counts = Counter(finding.verdict for finding in findings)
    samples: List[Sample] = [([("verdict", verdict)], str(counts[verdict])) for verdict in VERDICTS]
    yield "gdsdeploy_gate_checks", "Number of checks by verdict.", samples
    results: List[Sample] = []
    for finding in findings:
        if finding.verdict == NOT_APPLICABLE:
            # It neither passed nor didn't; the number above counts it.
            continue
        check, _, subject = finding.check.partition(":")
        names = [("check", check), ("subject", subject), ("verdict", finding.verdict)]
        results.append((names, str(int(finding.verdict == PASS))))
    yield "gdsdeploy_check_passed", "Whether a check passed; one that is waived or could not tell did not.", results
