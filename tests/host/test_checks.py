"""Every check of the registry on every host; what is asserted is in gdsdeploy/host/subjects, and nowhere else."""

from __future__ import annotations

import pytest

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, WAIVED, Finding


def test_check(finding: Finding | str) -> None:
    """Fails with the finding's own words; "could not tell" is not a pass.

    A check that is waived or not applicable is skipped, with the reason.
    """
    if isinstance(finding, str):
        pytest.fail(f"this host could not be asked: {finding}", pytrace=False)
    if finding.verdict == WAIVED and finding.waiver:
        pytest.skip(f"waived until {finding.waiver['until']}: {finding.waiver['reason']}; {finding.found}")
    if finding.verdict == NOT_APPLICABLE:
        pytest.skip(f"not applicable: {finding.found}")
    if finding.verdict != PASS:
        pytest.fail(_words(finding), pytrace=False)


def _words(finding: Finding) -> str:
    lines = [
        f"{finding.check} {'failed' if finding.verdict == FAIL else 'could not be decided'}: {finding.title}",
        f"  expected:   {finding.expected}",
        f"  found:      {finding.found}",
        f"  what to do: {finding.hint}",
    ]
    return "\n".join([*lines, *(f"  | {line}" for line in finding.evidence)])
