"""gdscheck as a second witness: what it says in states where it ends well and nothing is well."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN
from tests.unit.host.checks.test_checks_on_hosts import GOOD, findings

EVIDENCE = Path(__file__).parents[3] / "evidence"
FORCED = EVIDENCE / "gdscheck-live" / "gdscheck-p.libcufile-1.9.1.3.forced-compat.txt"
HOOKLESS = EVIDENCE / "gdscheck-live" / "gdscheck-p.libcufile-1.9.1.3.no-sections.txt"
OLD_MODULE = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.9.1.nvfs-version-2.3.txt"


@pytest.mark.parametrize(
    ("recording", "status", "verdict", "words"),
    [
        (FORCED, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 134, UNKNOWN, "gdscheck ended with status 134 after a whole report"),
        (OLD_MODULE, 0, FAIL, "an impossible direct path: the loaded nvidia-fs 2.3 is older than the minimum 2.12"),
    ],
    ids=["forced-compat", "no-hooks", "aborted", "below-minimum"],
)
def test_states_in_which_it_ends_well(recording: Path, status: int, verdict: str, words: str) -> None:
    document = copy.deepcopy(GOOD)
    # The recordings are of nvidia-fs 2.28, the host runs 2.19.7.
    text = recording.read_text().replace("nvidia_fs version:  2.28 ", "nvidia_fs version:  2.19 ")
    document["commands"]["gdscheck"].update(stdout=text.rpartition("rc=")[0], stderr="", status=status)
    finding = findings(document)["gdscheck.agrees"]
    assert (finding.verdict, words in finding.found) == (verdict, True), finding
