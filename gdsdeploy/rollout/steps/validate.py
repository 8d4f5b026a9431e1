"""Whether a host is what its lock says: every check, in this boot, before it gets work again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gdsdeploy.errors import ChecksFailed, ChecksUnknown, GdsError, HostUnreachable
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN
from gdsdeploy.lock import releases
from gdsdeploy.model.rollout import Step
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.work import Work, error_named
from gdsdeploy.validate import fleet_validation as validation

#: Checks of what the next boot starts.
NEXT_BOOT = frozenset({"kernel.boot-default", "modules.next-boot"})
#: Checks that an error names one by one.
_NAMED = 8


def validate(work: Work) -> dict[str, Any]:
    """Every check; then the lock's kernel becomes the boot default, and the host's own gate judges this boot.

    Raises ChecksFailed, ChecksUnknown, and what asking raises.
    """
    if work.is_builder:
        return _validated_facts(work, work.ask(answers.STATUS).boot_id, PASS)
    default = work.ask(answers.SHOW_DEFAULT).default if work.has_kernel else ""
    if work.has_kernel and default != work.target.kernel.release:
        # Until the boot default changes, a power cycle boots the earlier kernel.
        check_host(work, but=NEXT_BOOT, load=True)
        report = _default(work, default)
    else:
        report = check_host(work, load=True)
    if work.has_kernel:
        work.ask(answers.ONCE, "--clear")
    if work.profile.gate.enabled:
        _gate(work, report)
    return _validated_facts(work, report.boot_id, report.verdict)


def _validated_facts(work: Work, boot_id: str, verdict: str) -> dict[str, Any]:
    """The facts of a machine that is as its lock says; later rollouts find the record."""
    if work.release is not None:
        releases.record_hosts(work.release, [work.name])
    return {"validated_boot": boot_id, "verdict": verdict, "lock": work.lock.digest}


def _default(work: Work, before: str) -> HostReport:
    """Make the lock's kernel the boot default, and check everything; restore the default if a check fails."""
    # It audits the modules once more, and refuses a kernel that lacks them.
    work.ask(answers.GUARD_DEFAULT)
    try:
        return check_host(work)
    except GdsError:
        if before:
            work.ask(answers.SET_DEFAULT, "--kernel", before)
        raise


def soak(work: Work) -> dict[str, Any]:
    """Every check again, while it works; changes nothing.  Raises as :func:`validate`."""
    if work.is_builder:
        return {"lock": work.lock.digest}
    report = check_host(work)
    return {"soaked_boot": report.boot_id, "verdict": report.verdict}


def check_host(work: Work, *, but: Collection[str] = (), load: bool = False) -> HostReport:
    """The report of a host on which every check except ``but`` passed or was waived; raises as ``validate``.

    load: also read from the mounts for which the fleet has a threshold; only on a host that is out of work.
    """
    answer = validation.validate(
        work.fleet,
        work.lock,
        work.fleet_path,
        [work.name],
        timeout=work.patience.validation,
        options=validation.ValidateOptions(load=load),
        progress=lambda text: work.say(text.strip()),
    )
    (report,) = answer.hosts
    if report.trouble is not None:
        kind = error_named(report.trouble.kind)
        raise (HostUnreachable if kind is GdsError else kind)(report.trouble.message, hint=report.trouble.hint)
    for verdict, kind, words in ((FAIL, ChecksFailed, "failed"), (UNKNOWN, ChecksUnknown, "could not be decided")):
        bad = [finding for finding in report.findings if finding.verdict == verdict and finding.check not in but]
        if bad:
            lines = [f"- {finding.check}: {finding.title}: found {finding.found}" for finding in bad]
            raise kind(
                f"{work.name}: {len(bad)} check{'s'[: len(bad) > 1]} {words}:\n  " + first_few(lines, _NAMED, "\n  "),
                hint=f"gdsdeploy validate {work.fleet_path} --limit {work.name} says what to do with each",
            )
    if report.verdict == UNKNOWN and not any(finding.verdict == UNKNOWN for finding in report.findings):
        raise ChecksUnknown(
            f"{work.name}: no check examined anything",
            hint=f"gdsdeploy validate {work.fleet_path} --limit {work.name} --verbose lists the reasons",
        )
    return report


def _gate(work: Work, report: HostReport) -> None:
    """Have the gate judge this boot, and require that it opens."""
    # It may wait for the boot's own run, and judge again if that closed the gate.
    record = work.ask(answers.RUN_GATE, "--once", timeout=2 * work.profile.gate.seconds + 120.0)
    if record.state != "open" or record.boot_id != report.boot_id:
        state, boot_id = record.state or "without a verdict", record.boot_id or "unknown"
        raise ChecksFailed(
            f"{work.name}: its gate is {state} in boot {boot_id}: {record.reason}",
            hint="On the host: journalctl -u gds-gate",
        )


STEPS = {Step.VALIDATE: validate, Step.SOAK: soak}
