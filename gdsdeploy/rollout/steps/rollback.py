"""Rolls a host back: the same roles with the lock that it had, then a comparison with its snapshot."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from gdsdeploy import paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import RunArchives, Supply
from gdsdeploy.converge import desired, diff
from gdsdeploy.converge.machine import Files, Machine, packages_for, superseded
from gdsdeploy.converge.plan_fleet import facts_to_fit, names_to_fit, write_run_files
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import GdsError, HostUnfit, RollbackFailed, RolloutRefused, translated
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.lock import releases
from gdsdeploy.model.events import ModulesBefore
from gdsdeploy.model.lock import Target
from gdsdeploy.model.rollout import Step
from gdsdeploy.repo import credentials
from gdsdeploy.rollout import previous_packages
from gdsdeploy.rollout.steps import answers, upgrade
from gdsdeploy.rollout.steps.work import Work, wait_until_free

#: Differences that an error names one by one.
_NAMED = 10
#: Kinds of changes of modules that a host builds; received modules are compared with the snapshot.
_BUILT = ("build", "audit", "sign")


def towards_before(work: Work) -> Work:
    """The same work towards the lock that the host had; raises RollbackFailed where that is not known."""
    last_release = work.facts.release
    with translated(RolloutRefused, lambda error: RollbackFailed(error.message, hint=error.hint)):
        if last_release is not None:
            return work.towards(releases.of_plan(work.fleet_path, last_release.lock, last_release.fleet))
        release = upgrade.release_of(work, work.facts.current or "")
        if release is None:
            raise RollbackFailed(
                f"{work.name}: there is no record of what this builder was before",
                hint=f"Provision it with the lock that it should have: gdsdeploy provision {work.fleet_path}",
            )
        return work.towards(release)


def undo(work: Work) -> dict[str, Any]:
    """Restore packages, pins, kernel, modules, cufile.json and boot default; raises RollbackFailed."""
    back = towards_before(work)
    wait_until_free(work)
    if back.machine.boots:
        work.ask(answers.ONCE, "--clear")
    with assign.open_run_archives(back.fleet_path) as shelf:
        machine = _machine(back, shelf)
        modules = work.facts.modules_before
        builds = modules.mode == "build" if modules is not None else work.is_builder
        was, becomes = upgrade.packages_of(back, builds=builds), upgrade.packages_of(work, builds=True)
        logins = credentials.of_fleet(work.fleet, work.fleet_path)
        files = previous_packages.fetch_packages(
            back.machine.target, previous_packages.differing_packages(was, becomes), work.say, logins
        )
        with previous_packages.offer_packages(back.machine.target, files) as offer:
            extra = {
                **_restore_variables(work, back),
                "gds_restore_files": _files(work, _managed(machine)),
                "gds_restore_archive": str(offer.archive) if offer else "",
                "gds_restore_keyring": str(offer.keyring) if offer and offer.keyring else "",
            }
            changed = upgrade.play(back, "undo", machine, extra)
        differences = _differences(work, back, machine, shelf, leftovers=True)
    _refuse(work, [*differences, *_objections(back)])
    status = work.ask(answers.STATUS)
    return {"changed": changed, "boot_id": status.boot_id, "how": "none"}


def _supply(back: Work, shelf: RunArchives) -> Supply:
    """Where its modules come from; an archive from the cache is then in the run's folder."""
    modules = back.facts.modules_before or ModulesBefore()
    match modules.mode:
        case "build":
            return Supply("build", "it has built them before", modules.want)
        case "packaged":
            return Supply("packaged", "it has had them from packages", modules.want)
        case _ if modules.archive:
            return Supply("receive", "it has kept what it had", modules.want)
    shelf.look(modules.want, [modules.origin])
    return Supply(
        "receive", "the controller has kept a build of its key", modules.want, cached=True, origin=modules.origin
    )


def _machine(back: Work, shelf: RunArchives) -> Machine:
    """The machine as it was: where its modules come from, and what its cufile.json is fitted to."""
    names = names_to_fit(back.fleet, [back.name])
    fits: dict[str, FitTarget] = {}
    for name, fit in facts_to_fit(back.fleet, back.lock, back.fleet_path, names).items():
        if isinstance(fit, GdsError):
            raise fit
        fits[name] = fit
    files = write_run_files(paths.folder_of(back.fleet_path).resolve(), shelf, fits)
    return upgrade.machine_in_run(back, replace(files, supplies={back.name: _supply(back, shelf)}))


def _snapshot(work: Work) -> answers.Snapshot:
    """The snapshot from before the first change, which every changed machine has.  Raises RollbackFailed."""
    with translated(HostUnfit, lambda error: RollbackFailed(error.message, hint=error.hint)):
        return answers.SNAPSHOT.read(work.name, work.facts.snapshot)


def _restore_variables(work: Work, back: Work) -> dict[str, Any]:
    """Variables of gds_restore: what the host had before, and what it didn't have."""
    snapshot = _snapshot(work)
    new = sorted(name for name, package in snapshot.packages.items() if not package.version)
    modules, kernel = work.facts.modules_before, work.machine.release
    # The lock's kernel, where the host did not have it before.
    other = kernel not in snapshot.kernels and kernel != back.machine.release
    return {
        "gds_driver_superseded": desired.plain(superseded(back.machine.target))
        + [{"package": name, "version": ""} for name in new if name not in kernel_packages(work.machine.target)],
        "gds_restore_manager": back.machine.manager,
        "gds_restore_modules": modules.archive if modules is not None else "",
        "gds_restore_kernel_release": back.machine.release,
        "gds_restore_new_packages": new,
        "gds_restore_new_kernels": [kernel] if other else [],
        "gds_restore_has_record": True,
        "gds_restore_removed": snapshot.provision.removed,
        "gds_restore_installed": snapshot.provision.installed,
        "gds_restore_holds": snapshot.provision.held,
    }


def kernel_packages(target: Target) -> set[str]:
    """Packages of the lock's kernel and of its headers; they're removed last, because that kernel may run.

    Packages with modules for it leave earlier: they need the driver's userland, which moves.
    """
    return {package.package for package in target.packages if package.part in {"kernel-image", "kernel-headers"}}


def _compared(work: Work) -> list[answers.Difference]:
    """How the host differs now from its snapshot."""
    document = json.dumps(_snapshot(work).model_dump()).encode()
    return work.ask(answers.COMPARE, "--with", "-", stdin=document).differences


def _managed(machine: Machine) -> set[str]:
    """Paths that the roles write with the lock that the host had."""
    return desired.paths(desired.desired_states(replace(machine, controller=Files())))


def _files(work: Work, managed: Collection[str]) -> list[dict[str, str]]:
    """Files that differ from the snapshot and that the earlier lock doesn't write: path and sha256 of each.

    A file that didn't exist has no digest; any other comes back from the host's own record.
    """
    before = _snapshot(work).files
    names = {difference.name for difference in _compared(work) if difference.what == "file"} - set(managed)
    return [{"path": name, "sha256": file.sha256 if (file := before.get(name)) else ""} for name in sorted(names)]


def undo_validate(work: Work) -> dict[str, Any]:
    """Every check with the earlier lock, and the snapshot; removes what still ran during the rollback."""
    back = towards_before(work)
    if work.facts.snapshot is not None:
        with assign.open_run_archives(back.fleet_path) as shelf:
            machine = _machine(back, shelf)
            if _differences(work, back, machine, shelf, leftovers=False):
                # The kernel that ran during the rollback.
                upgrade.play(back, "leftovers", machine, _restore_variables(work, back))
            _refuse(work, _differences(work, back, machine, shelf, leftovers=False))
    return upgrade.validate(back)


def _differences(work: Work, back: Work, machine: Machine, shelf: RunArchives, *, leftovers: bool) -> list[str]:
    """How the host differs from what it was, each as a sentence.

    A file that is as the earlier lock has it is right, even where the snapshot has other content.
    leftovers: what belongs to a running kernel doesn't count yet.
    """
    snapshot = _snapshot(work)
    look = upgrade.look_at(back, shelf)
    wrong = [
        "{role}: {what}: found {found}, wanted {wanted}".format(**diff.change_to_json(change))
        for change in look.plan.changes
        if change.disruption == "none" and (change.resource != "modules" or change.kind in _BUILT)
    ]
    managed = _managed(machine)
    versions = {
        package.package: package.version for package in packages_for(back.machine.target, host=True, build=True)
    }
    running = work.ask(answers.STATUS).kernel if leftovers else ""
    for difference in _compared(work):
        what, name = difference.what, difference.name
        right = (
            (what == "file" and name in managed)
            or (what == "package" and versions.get(name) == difference.now)
            # What DKMS builds again need not have the same bytes; it was audited.
            or (what in ("module", "chosen") and machine.builds)
            or (what == "kernel" and name == "running" and leftovers)
            or (leftovers and bool(running) and running in name and running not in snapshot.kernels)
        )
        if not right:
            wrong.append(difference.says)
    return wrong


def _objections(back: Work) -> list[str]:
    """The audit's objections to the modules for the kernel that the host had."""
    if back.is_builder:
        return []
    kernel = back.machine.release
    return [f"modules of {kernel}: {text}" for text in back.ask(answers.JUDGE, "--kernel", kernel).reasons]


def _refuse(work: Work, reasons: Sequence[str]) -> None:
    if reasons:
        lines = first_few([f"- {text}" for text in reasons], _NAMED, "\n  ")
        raise RollbackFailed(
            f"{work.name}: it is not what it was before:\n  {lines}",
            hint="It stays out of work. Repair what is named, or provision it with the lock that it should have",
        )


STEPS = {
    Step.UNDO: undo,
    Step.UNDO_REBOOT: lambda work: upgrade.reboot(towards_before(work)),
    Step.UNDO_BOOT: lambda work: upgrade.boot(towards_before(work)),
    Step.UNDO_VALIDATE: undo_validate,
}
