"""Every check of the registry on every host; what is asserted is in gdsdeploy/host/subjects, and nowhere else."""

from __future__ import annotations

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, WAIVED, Finding


def shown(finding: Finding | str) -> tuple[str, str]:
    """(passed, failed or skipped, the finding's own words); "could not tell" is not a pass.

    A check that is waived or not applicable is skipped, with the reason.
    """
    if isinstance(finding, str):
        return "failed", f"this host could not be asked: {finding}"
    if finding.verdict == WAIVED and finding.waiver:
        return "skipped", f"waived until {finding.waiver['until']}: {finding.waiver['reason']}; {finding.found}"
    if finding.verdict == NOT_APPLICABLE:
        return "skipped", f"not applicable: {finding.found}"
    return "passed" if finding.verdict == PASS else "failed", _words(finding)


def _words(finding: Finding) -> str:
    lines = [
        f"{finding.check} {'failed' if finding.verdict == FAIL else 'could not be decided'}: {finding.title}",
        f"  expected:   {finding.expected}",
        f"  found:      {finding.found}",
        f"  what to do: {finding.hint}",
    ]
    return "\n".join([*lines, *(f"  | {line}" for line in finding.evidence)])
