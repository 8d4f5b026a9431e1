"""Provision a fleet: check every host, then run Ansible where something differs.  A refused host stays unchanged."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gdsdeploy import console, paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.converge.plan_fleet import plan_fleet, write_run_files
from gdsdeploy.converge.plan_report import origins, supply_words
from gdsdeploy.errors import GdsError, HostUnfit, NotProvisioned
from gdsdeploy.host.apply.packages.transaction import REFUSAL as REMOVALS
from gdsdeploy.lock import releases
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh import machines
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.ssh.transport import ask

#: Seconds that a host may take to show that it has Python and that we may become root.
CONTACT_TIMEOUT = 60


@dataclass(frozen=True)
class ProvisionRun:
    """One provisioning run: where it kept things, what happened, and which hosts could not be reached at all."""

    outcome: ansible.Outcome
    refused: dict[str, GdsError]
    log: Path
    #: machines that had nothing to change, for which no role was run
    satisfied: tuple[str, ...] = ()

    def failures(self) -> dict[str, GdsError]:
        """Host → why it failed, refusals included."""
        failed = {name: result.failure for name, result in self.outcome.hosts.items() if result.failure}
        return {**self.refused, **failed}


def provision(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    *,
    names: Sequence[str],
    flags: ansible.Flags = ansible.NO_FLAGS,
    playbook: str = "provision",
    force_roles: bool = False,
    progress: Callable[[str], None],
    image: Image | None = None,
) -> ProvisionRun:
    """Run ``playbook`` on the machines ``names`` (hosts and builders) of the fleet.

    Machines that do not answer, or that give no Python or root, are left out and reported.  Machines that are proven
    to be as the lock wants them are left alone, unless ``force_roles`` is set, or ``flags`` for ansible-playbook
    do something else than to converge.  Lock and fleet file are kept, so that a rollout can return to them.
    image: stands for its host, which isn't reached and gets no release on record.
    """
    play = partial(_play, fleet, lock, fleet_path, names, playbook=playbook, flags=flags, progress=progress)
    if playbook != "provision":
        refused = first_contact(fleet, fleet_path, names) if image is None else {}
        files = replace(write_run_files(paths.folder_of(fleet_path).resolve()), image=image)
        return play(files, refused=refused)
    release = releases.store(fleet_path, lock) if image is None else None
    with assign.open_run_archives(fleet_path) as shelf:
        planned = plan_fleet(fleet, lock, fleet_path, names, shelf=shelf, image=image)
        refused = {name: plan for name, plan in planned.hosts.items() if isinstance(plan, GdsError)}
        plans = {name: plan for name, plan in planned.hosts.items() if isinstance(plan, HostPlan)}
        leave = not force_roles and flags.converges
        satisfied = tuple(name for name, plan in plans.items() if leave and plan.satisfied)
        if satisfied:
            progress(f"  {words(satisfied)}: nothing to change")
        if not flags.checks:
            refused |= _without_supply(plans, satisfied) | _with_removals(plans)
        if image is not None:
            refused |= {name: error for name, plan in plans.items() if (error := image.refusal(plan)) is not None}
        supplies = {name: supply_words(each) for name, each in planned.supplies.items()}
        at_work = ((name, what) for name, what in supplies.items() if name not in {*satisfied, *refused})
        for what, hosts in grouped(at_work).items():
            progress(f"  {words(hosts)}: {what}")
        for line in origins(planned.supplies):
            progress(f"  {line}")
        kept = release if flags.converges else None
        if kept is not None:
            # What is known is on record also where the run is interrupted.
            releases.record_hosts(kept, satisfied)
        try:
            run = play(planned.files, refused=refused, satisfied=satisfied)
        finally:
            # Also of a run that was interrupted: what was built is not built again.
            for error in shelf.keep(lock, fleet, planned.supplies):
                progress(f"  {error.message}")
            for name, key in shelf.first_keys().items():
                progress(f"  {name}: signs its modules with the key {key}, now on record")
        explained = _explained(run, planned.supplies, shelf.folder)
        if kept is not None:
            done = set(names) - explained.failures().keys() - set(satisfied)
            releases.record_hosts(kept, sorted(done))
        return explained


@dataclass(frozen=True)
class Identity:
    """What hosts know a run by while it keeps them for itself."""

    run: str
    who: str

    @classmethod
    def of(cls, verb: str) -> Identity:
        """A new run of a verb, by the user of this process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(os.getuid())
        run = f"{verb}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        return cls(run, f"{user}@{socket.gethostname()}: {verb}")


def release(fleet: Fleet, fleet_path: Path, names: Sequence[str], program: bytes, identity: Identity) -> None:
    """Let other runs change the hosts ``names`` again.  A host that isn't reached is free when the lease ends."""
    argv = ["apply", "--json", "--release", identity.run]
    answers = ask(fleet, fleet_path, names, argv, Answer.require_document, timeout=CONTACT_TIMEOUT, program=program)
    with contextlib.suppress(GdsError):
        list(answers)


def _play(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    files: RunFiles,
    *,
    playbook: str,
    flags: ansible.Flags,
    refused: dict[str, GdsError],
    satisfied: tuple[str, ...] = (),
    progress: Callable[[str], None],
) -> ProvisionRun:
    """Run the playbook on those of ``names`` that are neither satisfied nor refused."""
    identity = Identity.of(playbook)
    if refused:
        progress(f"  {words(list(refused))}: refused")
    reachable = [name for name in names if name not in refused and name not in satisfied]
    work = paths.runs(fleet_path)
    # Each run has another log: a run of other hosts of the fleet may be under way.
    log = work / f"{playbook}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not reachable:
        return ProvisionRun(ansible.Outcome(status=0), refused, log, satisfied)
    path = log.with_suffix(".yml")
    if files.image is None:
        files = replace(files, run=identity.run, who=identity.who)
    path.write_text(dump(inventory(fleet, lock, files, set(reachable))), encoding="utf-8")
    command = ansible.argv(playbook, path, limit=reachable, extra=flags.words)
    try:
        # Connections are kept by the hosts' names, which another fleet may have, too.
        with ansible.control_folder() as control:
            environment = ansible.environment(control_dir=control, program=files.program)
            outcome = ansible.play(
                command, environment, log=log, progress=progress, each=console.say_each(len(reachable)),
                inventory=path.stat().st_size,
            )  # fmt: skip
    finally:
        for name in reachable:
            # A host whose task never came to its end.
            console.board.end(name, done=False)
        path.replace(work / "inventory.yml")
        if files.image is None and not flags.checks:
            release(fleet, fleet_path, reachable, files.program.read_bytes(), identity)
    hint = f"None of the run's tasks was for it, or the run ended before. Whole output: {log}"
    unplayed = {
        name: NotProvisioned(f"{name}: not played: Ansible did nothing on it", hint=hint)
        for name in reachable
        if name not in outcome.hosts
    }
    return ProvisionRun(outcome, {**refused, **unplayed}, log, satisfied)


def _without_supply(plans: Mapping[str, HostPlan], satisfied: Sequence[str]) -> dict[str, GdsError]:
    """The machines for which no machine builds modules."""
    hint = "Provision a machine that builds for it first or with it, or set modules: build for it in the fleet file"
    return {
        name: NotProvisioned(f"{name}: not provisioned: no machine builds its modules: {plan.supply.lack}", hint=hint)
        for name, plan in plans.items()
        if plan.supply is not None and plan.supply.lack and name not in satisfied
    }


def _with_removals(plans: Mapping[str, HostPlan]) -> dict[str, GdsError]:
    """The machines that would refuse to lose packages; their own refusal comes after other roles have changed them."""
    refusals = {name: [one for one in plan.refusals if one.id == REMOVALS] for name, plan in plans.items()}
    return {
        name: HostUnfit(f"{name}: {'; '.join(one.message for one in listed)}", hint=listed[0].hint)
        for name, listed in refusals.items()
        if listed
    }


def _explained(run: ProvisionRun, supplies: Mapping[str, Supply], folder: Path) -> ProvisionRun:
    """The same run, with the failure of a builder as the reason why others of its key have no modules."""
    failures = run.failures()
    for name, supply in supplies.items():
        cause, result = failures.get(supply.builder), run.outcome.hosts.get(name)
        delivered = archive_of(supply.want, folder).exists()
        if cause is None or delivered or result is None or result.kind != "not-delivered":
            continue
        reason = cause.message.splitlines()[0]
        why = f"{name}: not provisioned because {supply.builder}, which builds its modules (key {supply.want[:12]})"
        hint = f"Repair {supply.builder} and provision again; what is done on {name} stays"
        result.failure = NotProvisioned(f"{why}, failed: {reason}", hint=hint)
    return run


def first_contact(fleet: Fleet, fleet_path: Path, names: Sequence[str]) -> dict[str, GdsError]:
    """Ask every machine for one small answer; return those that cannot be worked with, and why.

    Raises FleetInvalid where two names are one machine.
    """
    answers = list(ask(fleet, fleet_path, names, ["hello"], Answer.require_document, timeout=CONTACT_TIMEOUT))
    identities = {answer.host: machines.identity_from(answer.document) for answer, _ in answers}
    machines.require_machines({name: identities[name] for name in names}, fleet_path, console.warn)
    return {answer.host: outcome for answer, outcome in answers if isinstance(outcome, GdsError)}


def summary(run: ProvisionRun, image: Mapping[str, object] | None = None) -> str:
    """One JSON object about the run, for machines; image: what is said about the image that it was for."""
    results = {
        **run.outcome.hosts,
        **{name: ansible.HostResult(failure=error) for name, error in run.refused.items()},
        **{name: ansible.HostResult() for name in run.satisfied},
    }
    hosts = {
        name: {
            "changed": result.changed,
            "changes": [change.to_json() for change in result.changes],
            "error": result.failure.message if result.failure else None,
        }
        for name, result in sorted(results.items())
    }
    log = str(run.log) if run.log.exists() else None
    about = {"hosts": hosts, "satisfied": sorted(run.satisfied), "log": log}
    return json.dumps(about | ({} if image is None else {"image": image}), indent=2)
