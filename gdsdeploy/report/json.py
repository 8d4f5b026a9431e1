"""The report as one JSON object.

Shape (version 1)::

    {"version": 1, "tool": "gdsdeploy 0.1", "fleet": "fleet.yml", "lock": "sha256:…", "when": "2026-…Z",
     "verdict": "fail" | "unreachable" | "unknown" | "waived" | "pass",
     "counts": {"pass": 1, "waived": 0, "unknown": 0, "unreachable": 0, "fail": 0},           # hosts
     "waivers": [{"check": "…", "until": "2026-…", "reason": "…", "expired": false, "hosts": ["…"]}],
     "hosts": {"gpu1": {"profile": "gds", "verdict": "pass", "boot_id": "…", "seconds": 1.2,
                        "stack": {"kernel": "…", …}, "gaps": ["…"],
                        "error": null | {"kind": "HostUnreachable", "message": "…", "hint": "…", "exit_code": 20},
                        "findings": [{"check": "…", "verdict": "pass" | "fail" | "unknown" | "waived", "title": "…",
                                      "expected": "…", "found": "…", "hint": "…", "evidence": ["…"],
                                      "waiver": null | {"until": "…", "reason": "…", "was": "fail"},
                                      "path": "nvidia-fs"}]}}}       # of storage.path, where it is known

``report.schema.json`` beside this file has the same as a JSON Schema.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gdsdeploy import __version__
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
        "waivers": [asdict(item) for item in report.waivers],
        "hosts": {host.host: _host(host) for host in report.hosts},
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _host(host: HostReport) -> dict[str, Any]:
    return {
        "profile": host.profile,
        "verdict": host.verdict,
        "boot_id": host.boot_id,
        "seconds": round(host.seconds, 3),
        "stack": dict(host.stack),
        "gaps": list(host.gaps),
        "error": asdict(host.trouble) if host.trouble else None,
        "findings": [finding.as_dict() for finding in host.findings],
    }
