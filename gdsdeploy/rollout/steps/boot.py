"""Reboots and their proof: which boot it is, which kernel runs, and that what is loaded is what is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdsdeploy.converge import boot as boot_settings
from gdsdeploy.converge.inventory import PEERMEM, load_order
from gdsdeploy.errors import GdsError, HostUnreachable, MissingProgram, ProgramFailed, RebootFailed
from gdsdeploy.model.rollout import Step
from gdsdeploy.model.rollout_settings import fill
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.work import Work
from gdsdeploy.run import run

NONE, RELOAD, REBOOT = "none", "reload", "reboot"
#: Seconds for a power controller.
_POWER = 120.0


def reboot(work: Work) -> dict[str, Any]:
    """Exchange the modules, order a reboot, or neither, as the host needs; at most one reboot of one boot.

    In another boot than the last recorded one, the reboot has happened.
    Raises RebootFailed, HostUnfit, and what asking raises.
    """
    if not work.has_kernel:
        return {"how": NONE, "boot_id": work.ask(answers.STATUS).boot_id}
    status = work.ask(answers.STATUS)
    recorded, boot_id = work.facts.boot_id or status.boot_id, status.boot_id
    if boot_id != recorded:
        # BOOT checks its kernel.
        work.say("it has rebooted already")
        return {"how": REBOOT, "boot_id": recorded}
    pending = needed(work)
    if not pending.needed:
        return {"how": NONE, "boot_id": boot_id}
    reasons = "; ".join(pending.reasons)
    may_reload = work.settings.reload and pending.by_reload and status.kernel == work.target.kernel.release
    if may_reload and _try_reload(work, boot_id):
        return {"how": RELOAD, "boot_id": boot_id}
    if not work.profile.reboot:
        raise RebootFailed(
            f"{work.name}: it needs a reboot ({reasons}), and its profile does not allow one",
            hint="Set reboot: true in its profile, or reboot it yourself",
        )
    work.say(f"reboots: {reasons}")
    work.ask(answers.REBOOT, "--boot-id", boot_id, "--rollout", work.rollout)
    return {"how": REBOOT, "boot_id": boot_id}


def _try_reload(work: Work, boot_id: str) -> bool:
    """Whether the host exchanged the loaded modules for the installed ones; it refuses where that is unsafe."""
    try:
        work.ask(answers.RELOAD, "--boot-id", boot_id, "--id", work.rollout, "--check")
    except HostUnreachable:
        raise
    except GdsError as error:
        work.say(f"no exchange of modules without a reboot: {error.message}")
        return False
    work.ask(answers.RELOAD, "--boot-id", boot_id, "--id", work.rollout)
    return True


def needed(work: Work) -> answers.Needed:
    """What a reboot would change."""
    settings = [f"--argument={word}" for word in boot_settings.arguments(work.profile)]
    values = boot_settings.expected_parameters(work.profile)
    settings += [f"--parameter={key}={value}" for key, value in values.items()]
    return work.ask(answers.REBOOT_NEEDED, "--kernel", work.target.kernel.release, *settings, *names(work))


def names(work: Work) -> Sequence[str]:
    """Modules whose loaded version must be the installed one; nvidia-peermem comes last."""
    peermem = [PEERMEM] if work.profile.rdma == "peermem" else []
    return [*load_order(work.profile, work.target), *peermem]


def boot(work: Work) -> dict[str, Any]:
    """Wait until the host answers, and prove in which boot and with which kernel.

    Raises HostUnreachable when it does not answer in time, RebootFailed when it came back otherwise.
    """
    how, before = work.facts.how or NONE, work.facts.boot_id or ""
    deadline = float(work.settings.reboot_timeout)
    for waited in work.attempts(deadline):
        status = _await_status(work, deadline - waited)
        if how != REBOOT or not before or status.boot_id != before:
            break
    else:
        raise RebootFailed(
            f"{work.name}: {deadline:.0f} s after its reboot was ordered it still is in boot {before}",
            hint="On the host: systemctl list-jobs, systemd-inhibit --list",
        )
    if not work.has_kernel:
        return {"boot_id": status.boot_id, "kernel": status.kernel, "how": NONE}
    release = work.target.kernel.release
    if status.kernel != release:
        once = status.once
        fallback = f"; {once.kernel} was to boot once, and fell back" if once.state == "fell back" else ""
        raise RebootFailed(
            f"{work.name}: it runs kernel {status.kernel}, not {release}{fallback}",
            hint="On the host: journalctl --boot=-1, and its console",
        )
    settled = _await_modules(work)
    # With how NONE, a second attempt accepts the same boot.
    return {"boot_id": settled.boot_id, "kernel": settled.running, "how": NONE}


def _await_status(work: Work, seconds: float) -> answers.Status:
    """The host's status as soon as it answers; raises HostUnreachable after ``seconds``."""
    for _ in work.attempts(seconds):
        try:
            return work.ask(answers.STATUS, timeout=max(work.patience.knock, 1.0), tries=1)
        except HostUnreachable as error:
            message = error.message
    raise HostUnreachable(
        f"{work.name}: no answer for {work.settings.reboot_timeout} s: {message}",
        hint="Look at its console; a power cycle boots the kernel that it had before",
    )


def _await_modules(work: Work) -> answers.Needed:
    """What runs once the modules are loaded, which is later than sshd answers; raises RebootFailed."""
    for _ in work.attempts(work.patience.settle):
        pending = needed(work)
        if not pending.needed:
            return pending
    raise RebootFailed(
        f"{work.name}: it is back, but {'; '.join(pending.reasons)}",
        hint="On the host: journalctl -b -u systemd-modules-load",
    )


def power(work: Work) -> dict[str, Any]:
    """Switch the host off and on; raises RebootFailed."""
    command = work.settings.power_cycle
    if not command:
        raise RebootFailed(
            f"{work.name}: the fleet file has no rollout.power_cycle", hint='Write it: [ipmi, power, cycle, "{host}"]'
        )
    try:
        run(
            fill(command, {"host": work.name}),
            doing=f"switch {work.name} off and on",
            timeout=_POWER,
            cwd=work.fleet_path.resolve().parent,
        )
    except (ProgramFailed, MissingProgram) as error:
        raise RebootFailed(error.message, hint="rollout.power_cycle in the fleet file") from None
    return {}


STEPS = {Step.REBOOT: reboot, Step.BOOT: boot, Step.POWER: power}
