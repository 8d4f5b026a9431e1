"""The steps of an upgrade, from the first look at a host until it's back in work.

A step plays the roles of one playbook on one host, and refuses a change that the rollout's plan didn't show.  The boot
default stays until every check has passed in the boot of the new kernel.  A person enrols keys at a host's console.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import atomic, console, paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import RunArchives, Supply
from gdsdeploy.converge import ansible, boot as boot_settings
from gdsdeploy.converge.desired import FREE_MIB
from gdsdeploy.converge.diff import DISRUPTIONS, HostPlan
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.machine import Machine, RunFiles, packages_for
from gdsdeploy.converge.plan_fleet import plan_fleet
from gdsdeploy.converge.plan_report import supply_words
from gdsdeploy.converge.provision import Identity
from gdsdeploy.errors import (
    Busy,
    ChecksFailed,
    ChecksUnknown,
    ControllerUnfit,
    ConvergeFailed,
    GdsError,
    HostUnfit,
    HostUnreachable,
    Interrupted,
    MissingProgram,
    ModuleBuildFailed,
    ProgramFailed,
    RebootFailed,
    RollbackFailed,
    RolloutRefused,
    error_named,
)
from gdsdeploy.host.apply.model import INSTALLS, Change
from gdsdeploy.host.archive import pack
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN
from gdsdeploy.lock import releases
from gdsdeploy.lock.releases import Release
from gdsdeploy.model.lock import Package
from gdsdeploy.model.rollout import Standing, Step
from gdsdeploy.model.rollout_settings import fill
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import credentials
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout import previous_packages
from gdsdeploy.rollout.drain import reason_of
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.answers import Enrolment, Status
from gdsdeploy.rollout.steps.work import Work, await_status, wait_until_free
from gdsdeploy.run import run
from gdsdeploy.validate import fleet_validation as validation
from gdsdeploy.zipapp import hostapp

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
        look = look_at(work, shelf)
    disruption = _disruption(work, status, look)
    if not look.plan.satisfied:
        refuse(work, look)
        if not work.console:
            refuse_missing_key(work, look)
        release_of(work, status.lock_digest)
        if disruption == "reboot" and not work.machine.profile.reboot:
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
    if not work.machine.boots:
        return "none"
    other = status.kernel != work.machine.release
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
    coming = [package for package in work.machine.target.packages if package.package in names]
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
    problems += [
        f"{folder} has {left.bytes / 1e6:.0f} MB left, of {least[folder] / 1e6:.0f} MB that are required"
        for folder, left in status.space.items()
        if left.bytes < least.get(folder, 0)
    ]
    if problems:
        old_kernels = {"apt": "apt-get autoremove", "rpm": "dnf remove --oldinstallonly"}
        kind = stack_platform_for(work.machine.target.os).kind
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
    return dict(work.drainer.undrain(work.name, reason_of(work.rollout, "done"), progress=work.say))


def snapshot(work: Work) -> dict[str, Any]:
    """Take the host's snapshot, and make sure that it can be rolled back; else raise RollbackFailed."""
    digest = work.facts.current or ""
    release = release_of(work, digest)
    if release is None:
        document = work.ask(answers.SNAPSHOT)
        return {"snapshot": document.model_dump(), "boot_id": document.boot_id}
    back = work.towards(release)
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = look_at(back, shelf)
    builds = look.supply.mode == "build"
    was, becomes = packages_of(back, builds=builds), packages_of(work, builds=True)
    names = sorted({package.package for package in (*was, *becomes)})
    document = work.ask(answers.SNAPSHOT, "--packages", ",".join(names))
    logins = credentials.of_fleet(work.fleet, work.fleet_path)
    previous_packages.fetch_packages(
        back.machine.target, previous_packages.differing_packages(was, becomes), work.say, logins
    )
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
    kernel = back.machine.release
    if kernel in document.kernels and work.ask(answers.KEEP, "--id", work.rollout, "--kernel", kernel).archive:
        return pack.kept_path(work.rollout, kernel)
    if not look.supply.cached:
        raise RollbackFailed(
            f"{work.name}: its modules for kernel {kernel} could not be put back: it has received them, and they are"
            " neither there any more nor in the cache",
            hint=f"Provision it with its present lock first: gdsdeploy provision {work.fleet_path} --limit {work.name}",
        )
    return ""


def packages_of(work: Work, *, builds: bool) -> Sequence[Package]:
    """The machine's packages with this lock.  builds: whether it builds modules."""
    return packages_for(work.machine.target, host=not work.is_builder, build=builds)


#: The playbook of a step.  Each has the roles of one step only, because Ansible starts a process for each skipped task.
PLAYBOOK = "rollout_{}"
#: Step → its resources, as its playbook has them.  The boot default, loaded modules and the reboot have other steps.
RESOURCES_OF_STEP: Mapping[str, frozenset[str]] = {
    "apply": frozenset({
        "repositories", "pins", "removals", "program", "expectation", "driver_options", "guard", "cufile",
        "packages.driver", "packages.kernel", "packages.cufile", "imex", "module_options", "boot_arguments",
    }),
    "modules": frozenset({"signing", "recipes", "packages.modules", "modules", "peermem", "gate", "watch"}),
}  # fmt: skip
#: Times that a step is played again after another run kept the host.
_TRIES = 3


@dataclass(frozen=True)
class Look:
    """What a machine lacks, and the machine with what the run has for it."""

    plan: HostPlan
    machine: Machine

    @property
    def supply(self) -> Supply:
        return self.machine.supply

    def lacks(self, step: str) -> list[Change]:
        """What the roles of ``step`` would change."""
        return [change for change in self.plan.changes if change.resource in RESOURCES_OF_STEP[step]]


def look_at(work: Work, shelf: RunArchives) -> Look:
    """Ask the machine what it lacks towards the lock; raises its error."""
    planned = plan_fleet(work.fleet, work.lock, work.fleet_path, [work.name], shelf=shelf)
    plan = planned.hosts[work.name]
    if isinstance(plan, GdsError):
        raise plan
    return Look(plan, machine_in_run(work, planned.files))


def refuse(work: Work, look: Look) -> None:
    """Raise an objection to the machine: another system, unreadable facts, or no builder."""
    if look.plan.refusal:
        raise HostUnfit(f"{work.name}: {look.plan.refusal}", hint=look.plan.refusals[0].hint)
    if look.plan.unknown:
        lines = "\n".join(f"  - {text}" for text in look.plan.unknown)
        raise RolloutRefused(
            f"{work.name}: not everything about it could be read:\n{lines}",
            hint=f"gdsdeploy plan {work.fleet_path} --limit {work.name} shows the same; repair what it names",
        )
    if look.supply.lack:
        raise RolloutRefused(
            f"{work.name}: no machine builds its modules: {look.supply.lack}",
            hint="Include its builder, or set modules: build for it in the fleet file",
        )


def machine_in_run(work: Work, files: RunFiles) -> Machine:
    """The machine with what the run has for it, which hosts know as this rollout."""
    who = f"{Identity.of('rollout').who} {work.rollout}"
    return replace(work.machine, files=replace(files, run=work.rollout, who=who))


def play(work: Work, step: str, machine: Machine, extra: Mapping[str, Any] | None = None) -> list[str]:
    """Play the roles of ``step``; returns what was changed, as ``role: task``.

    extra: more variables.  Waits where another run keeps the host.  Raises the failed task's error, and as require_out.
    """
    document = inventory(machine.fleet, machine.lock, machine.files, {machine.name}, extra)
    for left in range(_TRIES, -1, -1):
        work.require_out()
        result = _play_once(work, step, document)
        if not isinstance(result.failure, Busy) or not left:
            break
        wait_until_free(work)
    if result.failure is not None:
        raise result.failure
    return result.changed


def _play_once(work: Work, step: str, document: Mapping[str, Any]) -> ansible.HostResult:
    """What one start of Ansible did with the playbook of ``step`` and the inventory ``document``."""
    work.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{work.name}-{work.task.step.value}"
    path, log = work.logs / f"{stem}.yml", work.logs / f"{stem}.log"
    path.write_text(dump(document), encoding="utf-8")
    # One folder for each start: an open connection must not outlive the host's reboot.
    with ansible.control_folder() as control:
        command = ansible.argv(PLAYBOOK.format(step), path, limit=[work.name], extra=[])
        program = hostapp.keep(paths.cache() / "program")
        environment = ansible.environment(control_dir=control, program=program)
        outcome = ansible.play(command, environment, log=log, progress=work.say)
    # Its task may not have come to its end.
    console.board.end(work.name, done=False)
    result = outcome.hosts.get(work.name)
    if result is None:
        raise ConvergeFailed(f"{work.name}: Ansible did nothing on it", hint=f"Whole output: {log}")
    return result


#: Want → lock while a host builds what others may receive.
_BUILDING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_GUARD = threading.Lock()


def apply(work: Work) -> dict[str, Any]:
    """Repositories, pins, packages, kernel, cufile.json and the expectation; what boots by default stays.

    Raises what the roles end in.
    """
    wait_until_free(work)
    _keep_default(work)
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = look_at(work, shelf)
        refuse(work, look)
        if not look.lacks("apply"):
            work.say("packages and files are as the lock has them")
            return {"changed": []}
        return {"changed": play(work, "apply", look.machine)}


def _keep_default(work: Work) -> None:
    """Make the running kernel the boot default before a kernel package sets the newest one."""
    if not work.machine.boots:
        return
    kernel = work.facts.kernel or work.ask(answers.STATUS).kernel
    if work.ask(answers.SET_DEFAULT, "--kernel", kernel).changed:
        work.say(f"{kernel}, which runs, is the boot default")


def modules(work: Work) -> dict[str, Any]:
    """Build or receive the modules, as provision decides; hosts that can share a build wait for the first one.

    Raises ModuleBuildFailed and what the roles end in.
    """
    with _look(work) as (shelf, look):
        refuse(work, look)
        supply = look.supply
        if not look.lacks("modules"):
            work.say("modules are as the lock has them")
            changed: list[str] = []
        else:
            work.say(supply_words(supply))
            try:
                changed = play(work, "modules", look.machine)
            finally:
                # After an interruption, too, so that no build is repeated.
                for error in shelf.keep(work.lock, work.fleet, {work.name: supply}):
                    work.say(error.message)
    return {"supply": {"from": supply.source, "why": supply.why, "want": supply.want}, "changed": changed}


@contextmanager
def _look(work: Work) -> Iterator[tuple[RunArchives, Look]]:
    """A look at the machine; while one builds what others may receive, the others wait and look again."""
    with ExitStack() as stack:
        shelf = stack.enter_context(assign.open_run_archives(work.fleet_path))
        look = look_at(work, shelf)
        if look.supply.mode == "build" and work.fleet.modules(work.name) == "auto" and look.lacks("modules"):
            with _GUARD:
                lock = _BUILDING[look.supply.want]
            stack.enter_context(lock)
            shelf = stack.enter_context(assign.open_run_archives(work.fleet_path))
            look = look_at(work, shelf)
        yield shelf, look


def audit(work: Work) -> dict[str, Any]:
    """Audit the modules for the lock's kernel on the host; then have that kernel boot once.

    Raises ModuleBuildFailed with every objection, RebootFailed.
    """
    kernel = work.machine.release
    if work.is_builder:
        # Its builds are audited after each build, and by the host that receives them.
        return {"audit": {"kernel": kernel, "once": False}}
    verdict = work.ask(answers.JUDGE, "--kernel", kernel)
    if not verdict.admitted:
        reasons = "\n".join(f"  - {text}" for text in verdict.reasons)
        raise ModuleBuildFailed(
            f"{work.name}: the audit refuses the modules for kernel {kernel}:\n{reasons}",
            hint=f"On the host: gdsdeploy-host.pyz kmod audit --kernel {kernel}",
        )
    running = work.ask(answers.STATUS).kernel if work.machine.boots else kernel
    if running == kernel:
        return {"audit": {"kernel": kernel, "once": False}}
    answer = work.ask(answers.ONCE, "--kernel", kernel, "--default", running)
    if not answer.once:
        document = json.dumps(answer.model_dump(), sort_keys=True)
        raise RebootFailed(
            f"{work.name}: kernel {kernel} would boot not only once: {document}",
            hint="On the host: gdsdeploy-host.pyz boot show",
        )
    work.say(f"boots {kernel} once; the boot after that is of {running} again")
    return {"audit": {"kernel": kernel, "once": True}}


#: States in which the kernel gets the key, or needs none.
_READY = frozenset({"no-efi", "enrolled", "firmware", "leaving", "not-needed"})


def refuse_missing_key(work: Work, look: Look) -> None:
    """Raise RolloutRefused for a host without the key in a wave that doesn't wait for a person."""
    if look.plan.lacks_key:
        raise RolloutRefused(
            f"{work.name}: Secure Boot is on, and its firmware doesn't have the key of the modules",
            hint=f"Enrol it with a person at its console: gdsdeploy rollout start {work.fleet_path} --enrol-keys",
        )


def enrol(work: Work) -> dict[str, Any]:
    """Request the key's enrolment, reboot, and wait until a person has confirmed it at the console.

    Raises HostUnfit where the firmware doesn't have the key afterwards, HostUnreachable, and what asking raises.
    """
    certificate, content = _certificate(work)

    def ask(*options: str) -> Enrolment:
        return work.ask(answers.ENROL, "--certificate", certificate, *options, stdin=content)

    before = work.facts.boot_id or ""
    answer = ask("--check")
    if answer.state in _READY:
        work.say("its firmware has the key")
        return {"boot_id": answer.boot_id}
    if answer.boot_id == before or not before:
        before = answer.boot_id
        work.require_out()
        answer = ask()
        _tell_person(work, answer)
        work.ask(answers.REBOOT, "--boot-id", answer.boot_id, "--rollout", work.rollout)
        answer = _await(work, before, ask)
    _password_file(work).unlink(missing_ok=True)
    if answer.state in _READY:
        return {"boot_id": answer.boot_id}
    ask("--withdraw")
    raise HostUnfit(
        f"{work.name}: the key was not confirmed at its console, so shim has dropped the request",
        hint="Begin again with a person at its console; docs/secure-boot.md has the steps",
    )


def _certificate(work: Work) -> tuple[str, bytes]:
    """The certificate as an option's value, and what the host gets on its standard input."""
    with assign.open_run_archives(work.fleet_path) as shelf:
        machine = look_at(work, shelf).machine
    if machine.builds:
        return machine.profile.signing.certificate if machine.profile.signing else "", b""
    path = Path(machine.certificate_path)
    if not path.is_file():
        raise RolloutRefused(
            f"{work.name}: this controller doesn't have the certificate that its modules are signed with",
            hint=f"Provision the builder of its profile first: gdsdeploy provision {work.fleet_path}",
        )
    return "-", path.read_bytes()


def _tell_person(work: Work, answer: Enrolment) -> None:
    """Keep the one-time password for the person at the console, for this user only; it goes into no log."""
    path = _password_file(work)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    atomic.write(path, f"{answer.password}\n", mode=0o600)
    work.say("reboots, and waits for a person at its console")
    work.announce(
        f"{work.name} reboots now. At its console, press a key within 10 s of shim's screen. Choose Enroll MOK and View"
        f" key 0: the SHA1 fingerprint has to be {answer.fingerprint}. Choose Continue and Yes, type the password in"
        f" {path}, and choose Reboot."
    )


def _password_file(work: Work) -> Path:
    return work.logs / f"{work.name}.mok-password"


def _await(work: Work, before: str, ask: Callable[..., Enrolment]) -> Enrolment:
    """The state of the key after the reboot; raises HostUnreachable."""
    limit = float(work.settings.console.timeout)
    message = "it is still in the boot before"
    for _ in work.attempts(limit):
        try:
            answer = ask("--check")
        except HostUnreachable as error:
            message = error.message
            continue
        if answer.boot_id != before:
            return answer
    raise HostUnreachable(
        f"{work.name}: no new boot within {limit:.0f} s: {message}",
        hint="Look at its console: shim's menu may be open",
    )


#: Seconds for a power controller.
_POWER = 120.0


def reboot(work: Work) -> dict[str, Any]:
    """Exchange the modules, order a reboot, or neither, as the host needs; at most one reboot of one boot.

    In another boot than the last recorded one, the reboot has happened.
    Raises RebootFailed, HostUnfit, and what asking raises.
    """
    if not work.machine.boots:
        return {"how": "none", "boot_id": work.ask(answers.STATUS).boot_id}
    status = work.ask(answers.STATUS)
    recorded, boot_id = work.facts.boot_id or status.boot_id, status.boot_id
    if boot_id != recorded:
        # BOOT checks its kernel.
        work.say("it has rebooted already")
        return {"how": "reboot", "boot_id": recorded}
    pending = _needed(work)
    if not pending.needed:
        return {"how": "none", "boot_id": boot_id}
    work.require_out()
    reasons = "; ".join(pending.reasons)
    may_reload = work.settings.reload and pending.by_reload and status.kernel == work.machine.release
    if may_reload and _try_reload(work, boot_id):
        return {"how": "reload", "boot_id": boot_id}
    if not work.machine.profile.reboot:
        raise RebootFailed(
            f"{work.name}: it needs a reboot ({reasons}), and its profile does not allow one",
            hint="Set reboot: true in its profile, or reboot it yourself",
        )
    work.say(f"reboots: {reasons}")
    work.ask(answers.REBOOT, "--boot-id", boot_id, "--rollout", work.rollout)
    return {"how": "reboot", "boot_id": boot_id}


def _try_reload(work: Work, boot_id: str) -> bool:
    """Whether the host exchanged the loaded modules for the installed ones; it refuses where that is unsafe."""
    try:
        work.ask(answers.RELOAD, "--boot-id", boot_id, "--id", work.rollout, "--check")
    except (HostUnreachable, ControllerUnfit):
        raise
    except GdsError as error:
        work.say(f"no exchange of modules without a reboot: {error.message}")
        return False
    work.ask(answers.RELOAD, "--boot-id", boot_id, "--id", work.rollout)
    return True


def _needed(work: Work) -> answers.Needed:
    """What a reboot would change."""
    settings = [f"--argument={word}" for word in boot_settings.arguments(work.machine.profile)]
    values = boot_settings.expected_parameters(work.machine.profile)
    settings += [f"--parameter={key}={value}" for key, value in values.items()]
    # The loaded version of these has to be the installed one; nvidia-peermem comes last.
    names = [*work.machine.loads, *work.machine.peermem]
    return work.ask(answers.REBOOT_NEEDED, "--kernel", work.machine.release, *settings, *names)


def boot(work: Work) -> dict[str, Any]:
    """Wait until the host answers, and prove in which boot and with which kernel.

    Raises HostUnreachable when it does not answer in time, RebootFailed when it came back otherwise.
    """
    how, before = work.facts.how, work.facts.boot_id or ""
    deadline = float(work.settings.reboot_timeout)
    # An interrupted REBOOT may have ordered it: then the host goes down soon.
    for waited in work.attempts(work.patience.settle if how is None else deadline):
        status = await_status(work, deadline - waited)
        if how not in ("reboot", None) or not before or status.boot_id != before:
            break
    else:
        if how == "reboot":
            raise RebootFailed(
                f"{work.name}: {deadline:.0f} s after its reboot was ordered it still is in boot {before}",
                hint="On the host: systemctl list-jobs, systemd-inhibit --list",
            )
    if not work.machine.boots:
        return {"boot_id": status.boot_id, "kernel": status.kernel, "how": "none"}
    release = work.machine.release
    if status.kernel != release:
        once = status.once
        fallback = f"; {once.kernel} was to boot once, and fell back" if once.state == "fell back" else ""
        raise RebootFailed(
            f"{work.name}: it runs kernel {status.kernel}, not {release}{fallback}",
            hint="On the host: journalctl --boot=-1, and its console",
        )
    settled = _await_modules(work)
    # With how "none", a second attempt accepts the same boot.
    return {"boot_id": settled.boot_id, "kernel": settled.running, "how": "none"}


def _await_modules(work: Work) -> answers.Needed:
    """What runs once the modules are loaded, later than sshd answers; raises RebootFailed, or the last error."""
    error: GdsError
    for _ in work.attempts(work.patience.settle):
        try:
            pending = _needed(work)
        except Interrupted:
            raise
        except GdsError as caught:
            error = caught
            continue
        if not pending.needed:
            return pending
        error = RebootFailed(
            f"{work.name}: it is back, but {'; '.join(pending.reasons)}",
            hint="On the host: journalctl -b -u systemd-modules-load",
        )
    raise error


def power(work: Work) -> dict[str, Any]:
    """Switch the host off and on, unless it answers after all; raises RebootFailed, and as ``Work.require_out``."""
    command = work.settings.power_cycle
    if not command:
        raise RebootFailed(
            f"{work.name}: the fleet file has no rollout.power_cycle", hint='Write it: [ipmi, power, cycle, "{host}"]'
        )
    try:
        # An earlier attempt may have done it, and a boot takes its time.
        await_status(work, work.settings.reboot_timeout if work.task.attempt > 1 else 0)
    except HostUnreachable:
        work.require_out()
    except (Interrupted, ControllerUnfit):
        raise
    except GdsError as error:
        work.say(f"{error.message}; whatever answers isn't switched off")
        return {}
    else:
        work.say("it answers, and isn't switched off")
        return {}
    try:
        doing, folder = f"switch {work.name} off and on", paths.folder_of(work.fleet_path).resolve()
        run(fill(command, {"host": work.name}), doing=doing, timeout=_POWER, cwd=folder)
    except (ProgramFailed, MissingProgram) as error:
        raise RebootFailed(error.message, hint="rollout.power_cycle in the fleet file") from None
    return {}


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
    default = work.ask(answers.SHOW_DEFAULT).default if work.machine.boots else ""
    # The way back of an unchanged host has no UNDO, and its jobs may not have ended.
    unchanged = work.task.step is Step.UNDO_VALIDATE and "changed" not in work.task.data
    load = not unchanged and work.standing() is Standing.OURS
    if work.machine.boots and default != work.machine.release:
        # Until the boot default changes, a power cycle boots the earlier kernel.
        check_host(work, but=NEXT_BOOT, load=load)
        report = _make_default(work, default)
    else:
        report = check_host(work, load=load)
    if work.machine.boots:
        work.ask(answers.ONCE, "--clear")
    if work.machine.profile.gate.enabled:
        _gate(work, report)
    return _validated_facts(work, report.boot_id, report.verdict)


def _validated_facts(work: Work, boot_id: str, verdict: str) -> dict[str, Any]:
    """The facts of a machine that is as its lock says; later rollouts find the record."""
    if work.release is not None:
        releases.record_hosts(work.release, [work.name])
    return {"validated_boot": boot_id, "verdict": verdict, "lock": work.lock.digest}


def _make_default(work: Work, before: str) -> HostReport:
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
        options=validation.ValidateOptions(load=load, fresh=True),
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
    record = work.ask(answers.RUN_GATE, "--once", timeout=2 * work.machine.profile.gate.seconds + 120.0)
    if record.state != "open" or record.boot_id != report.boot_id:
        state, boot_id = record.state or "without a verdict", record.boot_id or "unknown"
        raise ChecksFailed(
            f"{work.name}: its gate is {state} in boot {boot_id}: {record.reason}",
            hint="On the host: journalctl -u gds-gate",
        )


STEPS = {
    Step.PREFLIGHT: preflight,
    Step.DRAIN: drain,
    Step.ENROL: enrol,
    Step.SNAPSHOT: snapshot,
    Step.APPLY: apply,
    Step.MODULES: modules,
    Step.AUDIT: audit,
    Step.REBOOT: reboot,
    Step.BOOT: boot,
    Step.POWER: power,
    Step.VALIDATE: validate,
    Step.RETURN: give_back,
    Step.SOAK: soak,
}
