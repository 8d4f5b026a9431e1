"""Prometheus' text format (its documentation's "Exposition formats", version 0.0.4)."""

from __future__ import annotations

import os
from typing import Iterable, List, Sequence, Tuple

from .wording import printable

#: Where node_exporter reads files: Debian's package, then what its documentation uses.
FOLDERS = ("/var/lib/prometheus/node-exporter", "/var/lib/node_exporter/textfile_collector")

#: [(label, value), …] and the value of a sample.
Sample = Tuple[Sequence[Tuple[str, str]], str]
#: name, help, samples; counters have a name that ends with _total, the others are gauges.
Metric = Tuple[str, str, Sequence[Sample]]


def text(metrics: Iterable[Metric]) -> str:
    """Every metric with its help; pure."""
    lines: List[str] = []
    for name, words, samples in metrics:
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            shown = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels)
            lines.append(f"{name}{{{shown}}} {value}" if labels else f"{name} {value}")
    return "\n".join(lines) + "\n"


def places(setting: str, file: str) -> List[str]:
    """Every path that a file of metrics may have, on any host.  setting: a folder; empty: the usual ones."""
    return [f"{folder}/{file}" for folder in ([setting] if setting else FOLDERS)]


def folders(setting: str) -> List[str]:
    """Where a host's metrics go: the folder of the settings, which is made, or those usual ones that are there."""
    return [setting] if setting else [folder for folder in FOLDERS if os.path.isdir(folder)]


def _escaped(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
