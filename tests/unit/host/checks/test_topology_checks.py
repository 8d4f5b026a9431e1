"""The check of access control on a recorded tree of switches; tests/cases/checks/topology.yml has the others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import findings
from tests.unit.host.facts.sysfs_root import REDIRECT
from tests.unit.later_evidence import complete

EVIDENCE = Path(__file__).parents[3] / "evidence"


def judge(document: dict[str, Any], check: str) -> Finding:
    return findings(document)[check]


def test_a_switch_that_redirects_peers_is_named() -> None:
    """QEMU's switches as a real kernel showed them, with the control bits that a kernel sets for an IOMMU."""
    document = complete(json.loads((EVIDENCE / "topology" / "switches.json").read_text()))
    files = document["files"]
    for path in [path for path in files if path.endswith("/class") and str(files[path]).startswith("0x0380")]:
        files[path.removesuffix("/class") + "/vendor"] = "0x10de\n"
    good = judge(document, "topology.acs")
    assert (good.verdict, "of a GPU and a peer below one switch is redirected" in good.found) == (PASS, True)
    for port in ("0000:02:01.0", "0000:02:02.0", "0000:02:03.0"):
        document["acs"][port] = REDIRECT
    finding = judge(document, "topology.acs")
    assert finding.verdict == FAIL
    assert re.match(r"[1-9]\d* of \d+ pairs of a GPU and a peer below one switch are redirected", finding.found)
    assert any("0000:02:0" in line and line.endswith("redirects") for line in finding.evidence)
    document["acs"].clear()
    assert judge(document, "topology.acs").verdict == UNKNOWN
