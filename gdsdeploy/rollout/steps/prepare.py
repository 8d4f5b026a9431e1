"""Steps before the first change: look at the host, drain it, take its snapshot; and the return into work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gdsdeploy.builds import assign
from gdsdeploy.converge.diff import DISRUPTIONS
from gdsdeploy.converge.inventory import FREE_MIB, packages_for
from gdsdeploy.errors import DrainFailed, HostUnfit, HostUnreachable, RebootFailed, RollbackFailed, RolloutRefused
from gdsdeploy.host.apply.model import INSTALLS
from gdsdeploy.host.archive import pack
from gdsdeploy.lock import releases
from gdsdeploy.lock.releases import Release
from gdsdeploy.model.lock import Package
from gdsdeploy.model.rollout import Step
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import credentials
from gdsdeploy.rollout import previous_packages
from gdsdeploy.rollout.drain import reason_of
from gdsdeploy.rollout.steps import answers, apply, enrol
from gdsdeploy.rollout.steps.answers import Status
from gdsdeploy.rollout.steps.apply import Look
from gdsdeploy.rollout.steps.work import Work, wait_until_free

_MIB = 1 << 20
#: Room for a kernel image with its initramfs, and for its modules; Debian's take about 100 MB and 500 MB.
_BOOT, _KERNEL_MODULES = 200 * _MIB, 700 * _MIB
#: Room for the driver's modules beside those that they replace.
_MODULES = 150 * _MIB
#: A package's content is about so many times larger than its file.
_UNPACKED = 3


def preflight(work: Work) -> dict[str, Any]:
    """Whether the host can become what the lock says.  Changes nothing.

    Raises RolloutRefused and HostUnfit with every reason, and what asking raises.
    """
    status = wait_until_free(work)
    broken = status.packages.broken
    if broken or status.packages.interrupted:
        names = ", ".join(f"{package.package} ({package.state})" for package in broken) or "dpkg was interrupted"
        raise HostUnfit(
            f"{work.name}: packages are half-installed: {names}",
            hint="On the host: dpkg --configure -a, or dnf check; see what fails, and begin again",
        )
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = apply.look_at(work, shelf)
    disruption = _disruption(work, status, look)
    if not look.plan.satisfied:
        apply.refuse(work, look)
        if not work.console:
            enrol.refuse(work, look)
        release_of(work, status.lock_digest)
        if disruption == "reboot" and not work.profile.reboot:
            raise RolloutRefused(
                f"{work.name}: it needs a reboot, and its profile does not allow one",
                hint="Set reboot: true in its profile, or provision it and reboot it yourself",
            )
        require_room(work, status, look)
    return {
        "current": status.lock_digest,
        "boot_id": status.boot_id,
        "kernel": status.kernel,
        "satisfied": look.plan.satisfied,
        "disruption": disruption,
    }


def _disruption(work: Work, status: Status, look: Look) -> str:
    """The least disruption of the change; the new modules may turn out to need more."""
    if not work.has_kernel:
        return "none"
    other = status.kernel != work.target.kernel.release
    return max("reboot" if other else "none", look.plan.disruption, key=DISRUPTIONS.index)


def release_of(work: Work, digest: str) -> Release | None:
    """What the host was provisioned with; None for a builder without a record.

    Raises RolloutRefused for a host without one, because it couldn't be rolled back.
    """
    hint = f"Give the lock that it has: gdsdeploy rollout start {work.fleet_path} --from LOCK"
    if work.is_builder:
        return releases.last(work.fleet_path, work.name)
    if not digest:
        raise RolloutRefused(
            f"{work.name}: it was never provisioned, so there is nothing to roll it back to",
            hint=f"Provision it first: gdsdeploy provision {work.fleet_path} --limit {work.name}",
        )
    release = releases.find(work.fleet_path, digest, work.name)
    if release is None:
        words = "which is not kept on this machine: it could not be rolled back"
        raise RolloutRefused(f"{work.name}: it has the lock {releases.short(digest)}, {words}", hint=hint)
    release.for_host(work.name, work.everyone)
    return release


def require_room(work: Work, status: Status, look: Look) -> None:
    """Raise HostUnfit when what is to come does not fit into /boot, /lib/modules and /var."""
    names = {change.subject for change in look.plan.changes if change.kind in INSTALLS}
    coming = [package for package in work.target.packages if package.package in names]
    size = sum(package.size for package in coming)
    kernel = any(package.part == "kernel-image" for package in coming)
    need = {
        "/": size * _UNPACKED,
        "/boot": _BOOT if kernel else 0,
        "/var": size,
        "/lib/modules": _KERNEL_MODULES if kernel else _MODULES,
    }
    space = work.ask(answers.SPACE, "--need", "-", stdin=json.dumps(need).encode())
    problems = [row.says for row in space.filesystems if not row.fits]
    # The role refuses later below these limits.
    least = {folder: size * _MIB for folder, size in FREE_MIB.items()}
    for folder, left in status.space.items():
        if left.bytes < least.get(folder, 0):
            problems.append(
                f"{folder} has {left.bytes / 1e6:.0f} MB left, of {least[folder] / 1e6:.0f} MB that are required"
            )
    if problems:
        old_kernels = {"apt": "apt-get autoremove", "rpm": "dnf remove --oldinstallonly"}
        kind = stack_platform_for(work.target.os).kind
        raise HostUnfit(
            f"{work.name}: there is no room for the new files: {'; '.join(problems)}",
            hint=f"Make room there (old kernels: {old_kernels[kind]}), and begin again",
        )


def drain(work: Work) -> dict[str, Any]:
    """Take the host out of work and wait until no work is left on it.  Raises DrainFailed."""
    reason = reason_of(work.rollout, f"to lock {releases.short(work.lock.digest)}")
    return dict(work.drainer.drain(work.name, reason, timeout=work.settings.drain.timeout, progress=work.say))


def give_back(work: Work) -> dict[str, Any]:
    """Return the host to work.  Raises DrainFailed, and RebootFailed in another boot than the validated one."""
    validated, boot_id = work.facts.validated_boot or "", work.ask(answers.STATUS).boot_id
    if not validated or boot_id != validated:
        raise RebootFailed(
            f"{work.name}: it has booted since its validation (boot {boot_id}, validated {validated or 'in none'})",
            hint="The rollout validates it again before its return",
        )
    try:
        return dict(work.drainer.undrain(work.name, reason_of(work.rollout, "done"), progress=work.say))
    except HostUnreachable as error:
        raise DrainFailed(error.message, hint=error.hint) from None


def snapshot(work: Work) -> dict[str, Any]:
    """Take the host's snapshot, and make sure that it can be rolled back; else raise RollbackFailed."""
    digest = work.facts.current or ""
    release = release_of(work, digest)
    if release is None:
        document = work.ask(answers.SNAPSHOT)
        return {"snapshot": document.model_dump(), "boot_id": document.boot_id}
    back = work.towards(release)
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = apply.look_at(back, shelf)
    builds = look.supply.mode == "build"
    was, becomes = packages(back, builds=builds), packages(work, builds=True)
    names = sorted({package.package for package in (*was, *becomes)})
    document = work.ask(answers.SNAPSHOT, "--packages", ",".join(names))
    logins = credentials.of_fleet(work.fleet, work.fleet_path)
    previous_packages.fetch_packages(back.target, previous_packages.differing_packages(was, becomes), work.say, logins)
    return {
        "snapshot": document.model_dump(),
        "boot_id": document.boot_id,
        "release": {"lock": release.lock.digest, "fleet": release.fleet_digest},
        "modules_before": {
            "mode": look.supply.mode,
            "want": look.supply.want,
            "origin": look.supply.origin,
            "archive": _kept_archive(work, back, look, document) if look.supply.mode == "receive" else "",
        },
    }


def _kept_archive(work: Work, back: Work, look: Look, document: answers.Snapshot) -> str:
    """Where the host keeps the modules that it has received; empty where the cache has them."""
    kernel = back.target.kernel.release
    if kernel in document.kernels and work.ask(answers.KEEP, "--id", work.rollout, "--kernel", kernel).archive:
        return pack.kept_path(work.rollout, kernel)
    if not look.supply.cached:
        raise RollbackFailed(
            f"{work.name}: its modules for kernel {kernel} could not be put back: it has received them, and they are"
            " neither there any more nor in the cache",
            hint=f"Provision it with its present lock first: gdsdeploy provision {work.fleet_path} --limit {work.name}",
        )
    return ""


def packages(work: Work, *, builds: bool) -> Sequence[Package]:
    """The machine's packages with this lock.  builds: whether it builds modules."""
    return packages_for(work.target, host=not work.is_builder, build=builds)


STEPS = {Step.PREFLIGHT: preflight, Step.DRAIN: drain, Step.SNAPSHOT: snapshot, Step.RETURN: give_back}
