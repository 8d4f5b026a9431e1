"""The report as one JSON object; ``report.schema.json`` beside this file has its shape, version 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gdsdeploy import __version__
from gdsdeploy.host.model.finding import VERDICTS
from gdsdeploy.report.model import ORDER, HostReport, Report

VERSION = 1


def render(report: Report) -> str:
    """One object, indented, hosts in the fleet's order."""
    return "".join(stream(report))


def stream(report: Report) -> Iterator[str]:
    """The text of :func:`render` in parts, of which each has one host at most: a large fleet's is never held whole."""
    head = {
        "version": VERSION,
        "tool": f"gdsdeploy {__version__}",
        "fleet": report.fleet,
        "lock": report.lock_digest,
        "when": report.when,
        "verdict": report.verdict,
        "counts": {verdict: report.count(verdict) for verdict in reversed(ORDER)},
        "waivers": [asdict(waiver) for waiver in report.waivers],
    }
    yield _text(head).removesuffix("\n}") + ',\n  "hosts": {'
    for number, host in enumerate(report.hosts):
        # A line end within a text is written as \\n.
        value = _text(_host(host)).replace("\n", "\n    ")
        yield f"{',' if number else ''}\n    {_text(host.host)}: {value}"
    yield "\n  }\n}\n" if report.hosts else "}\n}\n"


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _host(host: HostReport) -> dict[str, Any]:
    return {
        "profile": host.profile,
        "verdict": host.verdict,
        "counts": {verdict: host.count(verdict) for verdict in VERDICTS},
        "boot_id": host.boot_id,
        "seconds": round(host.seconds, 3),
        "stack": dict(host.stack),
        "gaps": list(host.gaps),
        "error": asdict(host.trouble) if host.trouble else None,
        "findings": [finding.as_dict() for finding in host.findings],
    }
