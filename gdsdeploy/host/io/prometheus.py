"""Prometheus' text format (its documentation's "Exposition formats", version 0.0.4)."""

from __future__ import annotations

from typing import Iterable, List, Sequence, Tuple

#: [(label, value), …] and the value of a sample.
Sample = Tuple[Sequence[Tuple[str, str]], str]
#: name, help, samples; all are gauges.
Metric = Tuple[str, str, Sequence[Sample]]


def text(metrics: Iterable[Metric]) -> str:
    """Every metric with its help; pure."""
    lines: List[str] = []
    for name, words, samples in metrics:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Sequence[Tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
