"""The report as one JSON object; ``report.schema.json`` beside this file has its shape, version 1."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gdsdeploy import __version__
from gdsdeploy.host.model.finding import VERDICTS
from gdsdeploy.report.model import ORDER, HostReport, Report

VERSION = 1


def render(report: Report) -> str:
    """One object, indented, hosts in the fleet's order."""
    value = {
        "version": VERSION,
        "tool": f"gdsdeploy {__version__}",
        "fleet": report.fleet,
        "lock": report.lock_digest,
        "when": report.when,
        "verdict": report.verdict,
        "counts": {verdict: report.count(verdict) for verdict in reversed(ORDER)},
        "waivers": [asdict(waiver) for waiver in report.waivers],
        "hosts": {host.host: _host(host) for host in report.hosts},
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


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
