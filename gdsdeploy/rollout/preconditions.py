"""Plans a rollout: asks every host once, lays out waves, and collects every objection for the user.

It also says which machines take part, and from earlier rollouts how long each will take.
"""

from __future__ import annotations

import fnmatch
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gdsdeploy import paths, run
from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import plan_fleet as planning
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import FleetPlan, plan_fleet
from gdsdeploy.errors import ControllerUnfit, DrainFailed, FleetInvalid, GdsError, JournalUnusable, RolloutRefused
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.lock import compat, lockfile, releases
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.rollout import Outcome, Plan
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import PreflightRecord
from gdsdeploy.rollout import journal, machine, waves
from gdsdeploy.rollout.drain import Drainer, drainer, rollout_of
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.waves import Candidate, window_opens_at
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.ssh.transport import ask


@dataclass(frozen=True)
class Participants:
    """The machines that take part."""

    hosts: tuple[str, ...]
    #: machines that build modules for them, and run no jobs
    builders: tuple[str, ...]
    #: hosts of the fleet that take no part, and why
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [*self.builders, *self.hosts]


def choose_participants(fleet: Fleet, fleet_path: Path, limit: str | None, exclude: str | None) -> Participants:
    """The hosts that ``limit`` selects and ``exclude`` doesn't, without the label ``rollout.skip``, and their builders.

    Raises FleetInvalid for an unknown name, and where no host is left.
    """
    chosen = selection.select(limit, list(fleet.hosts), fleet_path)
    out = selection.select(exclude, list(fleet.hosts), fleet_path, option="--exclude") if exclude else []
    others = {name: "not in --limit" for name in fleet.hosts if name not in chosen}
    others.update({name: "in --exclude" for name in out if name in chosen})
    skip = fleet.rollout.skip
    others.update({name: f"it has the label {skip}" for name, host in fleet.hosts.items() if skip in host.labels})
    hosts = tuple(name for name in chosen if name not in others)
    if not hosts:
        raise FleetInvalid(
            "no host is left that takes part",
            hint=f"--limit selects only hosts that --exclude names, or that have the label {skip}",
        )
    profiles = {fleet.hosts[name].profile for name in hosts}
    return Participants(hosts, tuple(name for name, host in fleet.builders.items() if host.profile in profiles), others)


def within(settings: Rollout, fleet: Fleet, participants: Participants) -> Rollout:
    """Without the canaries that ``--limit`` and ``--exclude`` leave out, for which a host of each kind steps in."""
    canary = settings.canary
    hosts = tuple(
        pattern for pattern in canary.hosts
        if fnmatch.filter(participants.hosts, pattern) or not fnmatch.filter(fleet.hosts, pattern)
    )  # fmt: skip
    having = {name for name, host in fleet.hosts.items() if canary.labels.items() <= host.labels.items()}
    labels = canary.labels if having & set(participants.hosts) or not having else {}
    if (hosts, labels) == (canary.hosts, canary.labels):
        return settings
    return settings.model_copy(
        update={"canary": canary.model_copy(update={"hosts": hosts, "labels": labels, "per_kind": True})}
    )


#: Seconds for a host without an earlier rollout.
GUESS: Mapping[str, float] = {"none": 300.0, "module reload": 600.0, "reboot": 1200.0}
#: Earlier rollouts that count.
LOOKED_AT = 10


def newest_rollout(fleet_path: Path) -> journal.Summary | None:
    """The fleet's newest rollout; None: there was none.  Raises JournalUnusable."""
    path = journal.path_of(fleet_path)
    if not path.exists():
        return None
    with journal.reading(path) as book:
        return next(reversed(book.rollouts()), None)


def expected_durations(fleet_path: Path, plans: Mapping[str, HostPlan]) -> tuple[dict[str, float], bool]:
    """(host → seconds, whether any were measured): its last time, else the median of other hosts, else a guess."""
    own, others = _measured_times(fleet_path)
    medians: dict[str, float] = {**GUESS, **{key: statistics.median(times) for key, times in others.items()}}
    seconds = {
        name: 0.0 if plan.satisfied else own.get((name, plan.disruption), medians[plan.disruption])
        for name, plan in plans.items()
    }
    return {name: round(value, 1) for name, value in seconds.items()}, bool(others)


def _measured_times(fleet_path: Path) -> tuple[dict[tuple[str, str], float], dict[str, list[float]]]:
    """(host, disruption) → seconds the last time, and disruption → all seconds; of hosts that came to DONE."""
    path = journal.path_of(fleet_path)
    own: dict[tuple[str, str], float] = {}
    others: dict[str, list[float]] = {}
    if not path.exists():
        return own, others
    with journal.reading(path) as book:
        for summary in book.rollouts()[-LOOKED_AT:]:
            try:
                done = machine.fold(book.events(summary.id)).hosts.values()
            except (ValueError, JournalUnusable):
                continue  # written by another gdsdeploy
            for host in done:
                disruption = host.facts.disruption
                if host.outcome == Outcome.DONE and disruption:
                    took = host.worked(host.ended)
                    own[host.name, disruption] = took
                    others.setdefault(disruption, []).append(took)
    return own, others


#: Seconds for a host that takes no part; without an answer it counts as unavailable.
KNOCK = 30.0
_STATUS = (*answers.STATUS.words, "--json")


@dataclass(frozen=True)
class Reason:
    """One objection to a rollout; ``hosts`` is empty where it's about the fleet."""

    text: str
    hosts: tuple[str, ...] = ()
    hint: str = ""

    @classmethod
    def of(cls, error: GdsError, *hosts: str) -> Reason:
        return cls(error.message, hosts, error.hint or "")


@dataclass(frozen=True)
class Trial:
    """Whether the kernel and driver of one profile were tried."""

    profile: str
    kernel: str
    driver: str
    #: of the preflight; None: there was none
    record: PreflightRecord | None
    #: whether hosts of the profile have the same packages already
    same: bool = False
    #: whether hosts of the profile have the same kernel and driver already
    same_driver: bool = False
    #: machines whose modules for this stack, built and audited, the controller keeps for every host of the profile
    builders: tuple[str, ...] = ()
    #: whether packages bring the modules, so that there is nothing to build
    packaged: bool = False
    #: whether the lock says that these packages were proven
    proven: bool = False

    @property
    def ok(self) -> bool:
        tried = self.record is not None and self.record.ok
        return self.same or self.packaged or self.proven or bool(self.builders) or tried


@dataclass(frozen=True)
class RolloutPreview:
    """The plan as a user sees it; the journal gets ``plan``."""

    plan: Plan
    #: changes on each machine that takes part
    hosts: Mapping[str, HostPlan]
    trials: tuple[Trial, ...]
    #: host → why it is out of work already
    down: Mapping[str, str]
    #: expected seconds for the whole rollout
    seconds: float
    #: whether the expectation is from earlier rollouts
    measured: bool
    #: seconds since the epoch at which hosts may be begun; None: in no window
    opens: float | None
    reasons: tuple[Reason, ...] = ()

    @property
    def satisfied(self) -> tuple[str, ...]:
        """Hosts that have the lock already."""
        return tuple(name for name, plan in self.hosts.items() if plan.satisfied)

    @property
    def pending(self) -> tuple[str, ...]:
        """Hosts that would be changed."""
        return tuple(name for name, plan in self.hosts.items() if not plan.satisfied)

    def require(self) -> None:
        """Raise RolloutRefused with every reason, unless there is none."""
        if not self.reasons:
            return
        lines = [f"the rollout can't begin, for {len(self.reasons)} reason{'s'[: len(self.reasons) > 1]}:"]
        for reason in self.reasons:
            first, *more = reason.text.splitlines()
            who = f"{', '.join(reason.hosts)}: " if reason.hosts and not first.startswith(reason.hosts[0]) else ""
            lines += [f"  - {who}{first}", *(f"    {line}" for line in more)]
            lines += [f"    {reason.hint}"] if reason.hint else []
        raise RolloutRefused("\n".join(lines), hint="Remove these causes, or leave hosts out with --exclude or --limit")


def prepare(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    participants: Participants,
    *,
    since: Lock | None = None,
    enrol_keys: bool = False,
    timeout: float = planning.PLAN_TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
) -> RolloutPreview:
    """Ask the machines that take part, and plan; objections are in the outlook's ``reasons``.

    since: the lock of ``--from``, which hosts may have.  enrol_keys: whether people are at the consoles of hosts
    without the key of their modules.  timeout: seconds for each machine.
    Raises LockStale, FleetInvalid, BuildCacheUnusable, JournalUnusable, Interrupted.
    """
    lockfile.require_fresh(fleet, lock, fleet_file=fleet_path)
    settings, folder = fleet.rollout, paths.folder_of(fleet_path).resolve()
    drains = drainer(settings.drain, folder)
    reasons = [*_unfinished(fleet_path), *(Reason(text) for text in drains.check(list(participants.hosts)))]
    reasons += _programs(settings, folder)
    planned = plan_fleet(fleet, lock, fleet_path, participants.names, timeout=timeout, progress=progress)
    plans = {name: plan for name, plan in planned.hosts.items() if isinstance(plan, HostPlan)}
    replies = present_states(fleet, fleet_path, list(plans), timeout=timeout)
    states = {name: state for name, state in replies.items() if isinstance(state, answers.Status)}
    previous = {name: state.lock_digest for name, state in states.items() if state.lock_digest}
    pending = [name for name, plan in plans.items() if not plan.satisfied and name in fleet.hosts]
    reasons += [
        *_unread(planned, fleet_path),
        *(Reason.of(reply, name) for name, reply in replies.items() if isinstance(reply, GdsError)),
        *_unknown_before(pending, previous, fleet, fleet_path, since),
    ]
    consoles = [name for name in pending if plans[name].lacks_key]
    if consoles and not enrol_keys:
        words = "Secure Boot is on, and the firmware doesn't have the key of the modules: a person has to enrol it"
        hint = f"With a person at their consoles: gdsdeploy rollout start {fleet_path} --enrol-keys"
        reasons.append(Reason(words, tuple(consoles), hint))
    trials = tuple(_trials(fleet, lock, fleet_path, pending, previous, planned.supplies))
    reasons += _untried(trials, fleet_path)
    down = {**silent(fleet, fleet_path, list(participants.others)), **_drained(drains, list(fleet.hosts), reasons)}
    candidates = [_candidate(fleet, name, plans, states, consoles) for name in participants.names]
    layout = waves.layout(within(settings, fleet, participants), candidates)
    if len(down) >= layout.max_unavailable and set(pending) - set(down) - set(layout.skipped):
        names = ", ".join(sorted(down))
        text = f"{len(down)} of at most {layout.max_unavailable} hosts are out of work already: {names}"
        reasons.append(Reason(text, hint="Return them to work, or raise rollout.max_unavailable in the fleet file"))
    expected, measured = expected_durations(fleet_path, plans)
    plan = Plan(
        id=f"{time.strftime('%Y%m%dT%H%M', time.gmtime())}-{secrets.token_hex(2)}",
        fleet=str(fleet_path.resolve()),
        lock_digest=lock.digest,
        fleet_digest=releases.digest_of(fleet_path),
        waves=layout.waves,
        settings=settings.model_dump(mode="json"),
        labels={name: host.labels for name, host in fleet.hosts.items() if host.labels},
        previous=previous,
        down=tuple(down),
        skipped={**participants.others, **layout.skipped},
        max_unavailable=layout.max_unavailable,
        expected=expected,
        any_serial=fleet.any_serial,
    )
    left = machine.Status(plan).left() or 0.0
    opens = window_opens_at(settings, time.time())
    return RolloutPreview(plan, plans, trials, down, left, measured, opens, tuple(reasons))


def _candidate(
    fleet: Fleet,
    name: str,
    plans: Mapping[str, HostPlan],
    states: Mapping[str, answers.Status],
    consoles: Sequence[str],
) -> Candidate:
    machine, state = fleet.machine(name), states.get(name)
    return Candidate(
        name,
        machine.labels,
        # What makes hosts of a profile one kind.
        kind=f"{machine.profile} {state.devices if state else ''} {state.kernel if state else ''}",
        builder=name in fleet.builders,
        satisfied=name in plans and plans[name].satisfied,
        console=name in consoles,
    )


def present_states(
    fleet: Fleet, fleet_path: Path, names: Sequence[str], *, timeout: float
) -> dict[str, answers.Status | GdsError]:
    """The present state of each of the machines ``names``; one that doesn't answer is left out."""
    read = answers.STATUS.read
    outcomes = ask(
        fleet, fleet_path, names, _STATUS, lambda answer: read(answer.host, answer.require_document()), timeout=timeout
    )
    return {answer.host: outcome for answer, outcome in outcomes if answer.document is not None}


def _unfinished(fleet_path: Path) -> Iterator[Reason]:
    summary = newest_rollout(fleet_path)
    if summary is not None and not summary.finished:
        yield Reason(
            f"the rollout {summary.id} is not finished",
            hint=f"Continue: gdsdeploy rollout resume {fleet_path}; or end it: gdsdeploy rollout abort {fleet_path}",
        )


def _programs(settings: Rollout, folder: Path) -> Iterator[Reason]:
    """Programs of the fleet file that couldn't be started when they're needed; the drain has its own."""
    named = {"power_cycle": settings.power_cycle, "notify.command": settings.notify.command}
    for key, command in named.items():
        if command and (why := run.objection(command[0], folder)):
            yield Reason(f"rollout.{key}: {why}")


def _unread(planned: FleetPlan, fleet_path: Path) -> Iterator[Reason]:
    """Machines without an answer, with another profile's hardware, with unknown facts, or without a builder."""
    for name, plan in planned.hosts.items():
        if isinstance(plan, GdsError):
            yield Reason.of(plan, name)
        elif plan.refusal:
            yield Reason(plan.refusal, (name,), plan.refusals[0].hint)
        elif plan.unknown and not plan.satisfied:
            text = f"not everything about it could be read: {first_few(plan.unknown, 3, '; ')}"
            yield Reason(text, (name,), f"gdsdeploy plan {fleet_path} --limit {name} shows all of it")
        elif (supply := planned.supplies.get(name)) is not None and supply.lack:
            hint = "Include its builder, or set modules: build for it in the fleet file"
            yield Reason(f"no machine builds its modules: {supply.lack}", (name,), hint)


def _unknown_before(
    pending: Sequence[str], previous: Mapping[str, str], fleet: Fleet, fleet_path: Path, since: Lock | None
) -> Iterator[Reason]:
    """Hosts that couldn't be rolled back."""
    if never := tuple(name for name in pending if name not in previous):
        yield Reason(
            "it was never provisioned, so it has no earlier state for a rollback",
            never,
            f"Provision it first: gdsdeploy provision {fleet_path} --limit {','.join(never)}",
        )
    lost: dict[str, list[str]] = {}
    for name in pending:
        digest = previous.get(name, "")
        if digest and (since is None or since.digest != digest):
            try:
                release = releases.find(fleet_path, digest, name)
                if release is not None:
                    release.for_host(name, fleet)
            except GdsError as error:
                yield Reason.of(error, name)
            else:
                if release is None:
                    lost.setdefault(digest, []).append(name)
    for digest, names in lost.items():
        yield Reason(
            f"it has the lock {releases.short(digest)}, which isn't kept on this machine, so a rollback is impossible",
            tuple(names),
            f"Pass that lock: gdsdeploy rollout start {fleet_path} --from LOCK",
        )


def _trials(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    pending: Sequence[str],
    previous: Mapping[str, str],
    supplies: Mapping[str, Supply],
) -> Iterator[Trial]:
    for profile in sorted({fleet.hosts[name].profile for name in pending}):
        target = lock.targets[profile]
        names = [name for name in pending if fleet.hosts[name].profile == profile]
        digests = {previous.get(name, "") for name in names}
        before = [releases.find(fleet_path, digest) if digest else None for digest in digests]
        had = [release.lock.targets.get(profile) if release is not None else None for release in before]
        caches = [supplies[name] for name in names if name in supplies and supplies[name].cached]
        tried = record.find(target)
        yield Trial(
            profile,
            target.kernel.release,
            target.driver.version,
            tried,
            same=_had_same(had, target),
            same_driver=_had_same(had, target, nvidia_fs=False),
            builders=tuple(sorted({supply.origin for supply in caches})) if len(caches) == len(names) else (),
            packaged=bool(target.packaged),
            proven=compat.is_proven(target) and not (tried is not None and tried.failed),
        )


def _had_same(had: Sequence[Target | None], target: Target, *, nvidia_fs: bool = True) -> bool:
    """Whether hosts with the stacks ``had`` have what the modules of ``target`` are made from."""
    made_from = compat.ingredients(target, nvidia_fs=nvidia_fs)
    return all(was is not None and compat.ingredients(was, nvidia_fs=nvidia_fs) == made_from for was in had)


def _untried(trials: Sequence[Trial], fleet_path: Path) -> Iterator[Reason]:
    for trial in trials:
        if not trial.ok:
            stack = f"profile {trial.profile}: kernel {trial.kernel} with driver {trial.driver}"
            stack += " and another nvidia-fs" if trial.same_driver else ""
            problem, hint = _problem(trial)
            command = f"gdsdeploy kmod preflight {fleet_path} --profile {trial.profile}"
            yield Reason(f"{stack}{problem}", hint=f"{hint}: {command}")


def _problem(trial: Trial) -> tuple[str, str]:
    """How the sentence about a stack ends, and how the one about the command begins."""
    latest = trial.record
    if latest is None:
        return " was never tried", "Check whether it builds and loads"
    preflight = f": its preflight on {latest.time[:10]}"
    if latest.failed:
        return f"{preflight} failed: {latest.error}", "See"
    if latest.builds is record.Answer.NOT_TRIED:
        modules = first_few(latest.untried_modules, 6)
        return f"{preflight} didn't try every module: {modules}", "Check whether they build and load"
    return f"{preflight} is undecided: {latest.error or 'it is unknown whether every module would load'}", "See"


def silent(fleet: Fleet, fleet_path: Path, names: Sequence[str]) -> dict[str, str]:
    """Host → words, of those hosts of ``names`` that don't answer.  Raises ControllerUnfit."""
    outcomes = ask(fleet, fleet_path, names, _STATUS, Answer.require_document, timeout=KNOCK) if names else ()
    errors = {answer.host: answer.error for answer, _ in outcomes if answer.error is not None}
    for error in errors.values():
        if isinstance(error, ControllerUnfit):
            raise error
    return dict.fromkeys(errors, "it doesn't answer")


def _drained(drains: Drainer, names: Sequence[str], reasons: list[Reason]) -> dict[str, str]:
    """Host → why it's out of work."""
    try:
        states = drains.states(names)
    except DrainFailed as error:
        if not reasons:
            reasons.append(Reason.of(error))
        return {}
    out = {name: (rollout_of(state.reason), state.reason) for name, state in states.items() if state.out}
    return {
        name: f"it was drained by rollout {rollout}" if rollout else ": ".join(filter(None, ("it is drained", reason)))
        for name, (rollout, reason) in out.items()
    }
