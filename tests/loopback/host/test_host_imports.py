"""What a verb of the host program imports: every module costs processor time on each host, at each start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EVIDENCE = """
import importlib
from gdsdeploy.host import evidence
for module in evidence.COLLECTORS.values():
    importlib.import_module("." + module, evidence.__name__)
"""
HELLO = """
from gdsdeploy.host.__main__ import main
main(["hello"])
"""
#: Code of a verb → what it doesn't need.
NEEDLESS = {
    EVIDENCE: (
        "ctypes", "difflib", "gdsdeploy.host.apply", "gdsdeploy.host.build", "gdsdeploy.host.checks",
        "gdsdeploy.host.explain", "gdsdeploy.host.facts.host_facts", "gdsdeploy.host.facts.storage",
        "gdsdeploy.host.gdscheck", "gdsdeploy.host.odirect.trials", "platform",
    ),
    HELLO: (
        "ctypes", "gdsdeploy.host.checks", "gdsdeploy.host.evidence", "gdsdeploy.host.explain", "gdsdeploy.host.facts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", NEEDLESS, ids=["evidence", "hello"])
def test_only_what_a_verb_needs_is_imported(code: str) -> None:
    program = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nimport json\nprint(json.dumps(list(sys.modules)))"
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert "gdsdeploy.host.errors" in modules, "the code ran"
    assert sorted(modules & set(NEEDLESS[code])) == []
