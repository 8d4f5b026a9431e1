"""What a rollout would do, before it does anything: every host asked once, waves, expected times, and what forbids it.

Whoever plans gets every reason at once: a rollout that is refused for one host after the other is never begun.
"""

from __future__ import annotations

import fnmatch
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gdsdeploy.converge import plan_fleet as planning
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import Planned, plan_fleet
from gdsdeploy.errors import DrainFailed, FleetInvalid, GdsError, RolloutRefused
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Plan
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import Record
from gdsdeploy.rollout import durations, status, waves, windows
from gdsdeploy.rollout.drain import Drainer, State, drainer, rollout_of
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.waves import Candidate, Layout
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import Answer

#: Seconds for a host that takes no part, and is only counted if it does not answer.
KNOCK = 30.0
_STATUS = ("rollout", "status", "--json")


@dataclass(frozen=True)
class Reason:
    """One reason why a rollout is not begun; ``hosts`` is empty where it is about the fleet."""

    text: str
    hosts: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Tried:
    """What is known of the kernel and driver of one profile."""

    profile: str
    kernel: str
    driver: str
    #: what the preflight found; None: there was none
    record: Record | None
    #: whether hosts of the profile have these very packages already
    same: bool = False

    @property
    def ok(self) -> bool:
        return self.same or (self.record is not None and self.record.ok)


@dataclass(frozen=True)
class Outlook:
    """The plan as a user sees it; ``plan`` is what the journal gets."""

    plan: Plan
    #: what provision would change on each machine that takes part
    hosts: Mapping[str, HostPlan]
    tried: tuple[Tried, ...]
    #: host → why it is out of work already
    down: Mapping[str, str]
    #: seconds that all of it is expected to take
    seconds: float
    #: whether earlier rollouts have shown how long hosts take
    measured: bool
    #: seconds since the epoch at which hosts may be begun; None: in no window
    opens: float | None
    reasons: tuple[Reason, ...] = ()

    @property
    def satisfied(self) -> tuple[str, ...]:
        """Hosts that have the lock already."""
        return tuple(name for name, found in self.hosts.items() if found.satisfied)

    @property
    def pending(self) -> tuple[str, ...]:
        """Hosts that would be changed."""
        return tuple(name for name, found in self.hosts.items() if not found.satisfied)

    def require(self) -> None:
        """Raise RolloutRefused with every reason, unless there is none."""
        if not self.reasons:
            return
        lines = [f"the rollout is not begun, for {len(self.reasons)} reason{'s'[: len(self.reasons) > 1]}:"]
        for reason in self.reasons:
            first, *more = reason.text.splitlines()
            who = f"{', '.join(reason.hosts)}: " if reason.hosts and not first.startswith(reason.hosts[0]) else ""
            lines += [f"  - {who}{first}", *(f"    {line}" for line in more)]
            lines += [f"    {reason.hint}"] if reason.hint else []
        hint = "See to them, or leave hosts out with --exclude or --limit"
        raise RolloutRefused("\n".join(lines), hint=hint)


@dataclass(frozen=True)
class Chosen:
    """Which machines take part."""

    hosts: tuple[str, ...]
    #: machines that build modules for them, and have no work of their own
    builders: tuple[str, ...]
    #: hosts of the fleet that take no part, and why
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [*self.builders, *self.hosts]


def choose(fleet: Fleet, fleet_path: Path, limit: str | None, exclude: str | None) -> Chosen:
    """Who takes part: the hosts that ``limit`` selects without those that ``exclude`` does, and builders of their kind.

    Hosts with the label ``rollout.skip`` take no part, so that nothing about them keeps the others back.

    Raises FleetInvalid for a name that no host has, and where nobody is left.
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
    return Chosen(hosts, tuple(name for name, host in fleet.builders.items() if host.profile in profiles), others)


def prepare(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    chosen: Chosen,
    *,
    since: Lock | None = None,
    timeout: float = planning.TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
) -> Outlook:
    """Ask the machines that take part, and plan.  What forbids the rollout is in the outlook's ``reasons``.

    since: the lock that ``--from`` names, which hosts may have.  timeout: seconds for each machine.
    Raises LockStale, FleetInvalid and BuildCacheUnusable where nothing can be planned, JournalUnusable, Interrupted.
    """
    lockfile.require_fresh(fleet, lock, fleet_file=fleet_path)
    settings = fleet.rollout
    drains = drainer(settings.drain, fleet_path.resolve().parent)
    reasons = [*_unfinished(fleet_path), *(Reason(text) for text in drains.check(list(chosen.hosts)))]
    asked = plan_fleet(fleet, lock, fleet_path, chosen.names, timeout=timeout, progress=progress)
    answering = [name for name, found in asked.hosts.items() if isinstance(found, HostPlan)]
    answered = present_states(fleet, fleet_path, answering, timeout=timeout)
    states = {name: found for name, found in answered.items() if isinstance(found, PresentState)}
    plans = {name: found for name, found in asked.hosts.items() if isinstance(found, HostPlan)}
    previous = {name: state.lock for name, state in states.items() if state.lock}
    reasons += _unread(asked, fleet_path)
    reasons += [
        Reason(found.message, (name,), found.hint or "")
        for name, found in answered.items()
        if isinstance(found, GdsError)
    ]
    pending = [name for name, found in plans.items() if not found.satisfied and name in fleet.hosts]
    reasons += _unknown_before(pending, previous, fleet, fleet_path, since)
    tried = tuple(_tried(fleet, lock, fleet_path, pending, previous))
    reasons += _untried(tried, fleet_path)
    down = {**silent(fleet, fleet_path, list(chosen.others)), **_drained(drains, list(fleet.hosts), reasons)}
    made = waves.layout(
        _within(settings, fleet, chosen), [_candidate(fleet, name, plans, states) for name in chosen.names]
    )
    if len(down) >= made.max_unavailable and set(pending) - set(down) - set(made.skipped):
        text = f"{len(down)} of at most {made.max_unavailable} hosts are out of work already: {', '.join(sorted(down))}"
        reasons.append(Reason(text, hint="Bring them back, or raise rollout.max_unavailable in the fleet file"))
    expected, measured = durations.expected(fleet_path, plans)
    plan = _plan(lock, fleet, fleet_path, made, chosen, previous, tuple(down), expected)
    left = status.Status(plan).left() or 0.0
    opens = windows.opens_at(settings, time.time())
    return Outlook(plan, plans, tried, down, left, measured, opens, tuple(reasons))


def _plan(
    lock: Lock,
    fleet: Fleet,
    fleet_path: Path,
    made: Layout,
    chosen: Chosen,
    previous: Mapping[str, str],
    down: tuple[str, ...],
    expected: Mapping[str, float],
) -> Plan:
    return Plan(
        id=f"{time.strftime('%Y%m%dT%H%M', time.gmtime())}-{secrets.token_hex(2)}",
        fleet=str(fleet_path.resolve()),
        lock_digest=lock.digest,
        fleet_digest=releases.digest_of(fleet_path),
        waves=made.waves,
        settings=fleet.rollout.model_dump(mode="json"),
        labels={name: host.labels for name, host in fleet.hosts.items() if host.labels},
        previous=dict(previous),
        down=down,
        skipped={**chosen.others, **made.skipped},
        max_unavailable=made.max_unavailable,
        expected=dict(expected),
    )


def _within(settings: Rollout, fleet: Fleet, chosen: Chosen) -> Rollout:
    """Without the canaries that ``--limit`` and ``--exclude`` leave out; then one host of each kind is one."""
    canary = settings.canary
    hosts = tuple(
        pattern for pattern in canary.hosts
        if fnmatch.filter(chosen.hosts, pattern) or not fnmatch.filter(fleet.hosts, pattern)
    )  # fmt: skip
    having = {name for name, host in fleet.hosts.items() if canary.labels.items() <= host.labels.items()}
    labels = canary.labels if having & set(chosen.hosts) or not having else {}
    if (hosts, labels) == (canary.hosts, canary.labels):
        return settings
    return settings.model_copy(
        update={"canary": canary.model_copy(update={"hosts": hosts, "labels": labels, "per_kind": True})}
    )


@dataclass(frozen=True)
class PresentState:
    """What a host says that it is, beside what its plan needs."""

    #: digest of the lock that it was provisioned with; empty: it never was
    lock: str
    kernel: str
    #: NVIDIA's devices in it, each kind once
    devices: str


def present_states(
    fleet: Fleet, fleet_path: Path, names: Sequence[str], *, timeout: float
) -> dict[str, PresentState | GdsError]:
    """The present state of each of the machines ``names``; one that doesn't answer is left out."""

    def judge(answer: Answer) -> PresentState:
        status = answers.STATUS.read(answer.host, answer.require_document())
        return PresentState(status.lock_digest, status.kernel, status.devices)

    outcomes = ask(fleet, fleet_path, names, [*answers.STATUS.words, "--json"], judge, timeout=timeout)
    return {answer.host: outcome for answer, outcome in outcomes if answer.document is not None}


def _candidate(fleet: Fleet, name: str, plans: Mapping[str, HostPlan], states: Mapping[str, PresentState]) -> Candidate:
    host = fleet.everyone()[name]
    state = states.get(name, PresentState("", "", ""))
    return Candidate(
        name,
        host.labels,
        kind=f"{host.profile} {state.devices} {state.kernel}",
        builder=name in fleet.builders,
        satisfied=name in plans and plans[name].satisfied,
    )


def _unfinished(fleet_path: Path) -> Iterator[Reason]:
    summary = durations.newest(fleet_path)
    if summary is not None and not summary.finished:
        yield Reason(
            f"the rollout {summary.id} is not finished",
            hint=f"Go on: gdsdeploy rollout resume {fleet_path}; or end it: gdsdeploy rollout abort {fleet_path}",
        )


def _unread(asked: Planned, fleet_path: Path) -> Iterator[Reason]:
    """Machines that did not answer, that their profile does not fit, of which not all is known, or without modules."""
    for name, found in asked.hosts.items():
        if isinstance(found, GdsError):
            yield Reason(found.message, (name,), found.hint or "")
        elif found.refusal:
            yield Reason(found.refusal, (name,), "Give it another profile in the fleet file, or lock for what it is")
        elif found.unknown and not found.satisfied:
            more = f" (and {len(found.unknown) - 3} more)" if len(found.unknown) > 3 else ""
            text = f"not everything about it could be read: {'; '.join(found.unknown[:3])}{more}"
            yield Reason(text, (name,), f"gdsdeploy plan {fleet_path} --limit {name} shows all of it")
        elif (supply := asked.supplies.get(name)) is not None and supply.lack:
            hint = "Let its builder take part, or say modules: build for it in the fleet file"
            yield Reason(f"nobody builds its modules: {supply.lack}", (name,), hint)


def _unknown_before(
    pending: Sequence[str], previous: Mapping[str, str], fleet: Fleet, fleet_path: Path, since: Lock | None
) -> Iterator[Reason]:
    """Hosts that could not be taken back."""
    never = tuple(name for name in pending if name not in previous)
    if never:
        yield Reason(
            "never provisioned, so that there is nothing to take it back to",
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
                yield Reason(error.message, (name,), error.hint or "")
            else:
                if release is None:
                    lost.setdefault(digest, []).append(name)
    for digest, names in lost.items():
        yield Reason(
            f"it has the lock {releases.short(digest)}, which is not kept on this machine: it could not be taken back",
            tuple(names),
            f"Give that lock: gdsdeploy rollout start {fleet_path} --from LOCK",
        )


def _tried(
    fleet: Fleet, lock: Lock, fleet_path: Path, pending: Sequence[str], previous: Mapping[str, str]
) -> Iterator[Tried]:
    for profile in sorted({fleet.hosts[name].profile for name in pending}):
        target = lock.targets[profile]
        ingredients = record.ingredients(target)
        digests = {previous.get(name, "") for name in pending if fleet.hosts[name].profile == profile}
        before = [releases.find(fleet_path, digest) if digest else None for digest in digests]
        same = all(
            item is not None and profile in item.lock.targets
            and record.ingredients(item.lock.targets[profile]) == ingredients
            for item in before
        )  # fmt: skip
        yield Tried(profile, target.kernel.release, target.driver.version, record.find(target), same)


def _untried(tried: Sequence[Tried], fleet_path: Path) -> Iterator[Reason]:
    for item in tried:
        if item.ok:
            continue
        what = f"profile {item.profile}: kernel {item.kernel} with driver {item.driver}"
        command = f"gdsdeploy kmod preflight {fleet_path} --profile {item.profile}"
        if item.record is None:
            yield Reason(f"{what} was never tried", hint=f"Find out whether it builds and loads: {command}")
        else:
            failed = item.record.error or "whether it would load could not be told"
            yield Reason(f"{what}: its preflight on {item.record.time[:10]} failed: {failed}", hint=f"See: {command}")


def silent(fleet: Fleet, fleet_path: Path, names: Sequence[str]) -> dict[str, str]:
    """Hosts of ``names`` that do not answer, and that in words."""
    if not names:
        return {}
    outcomes = ask(fleet, fleet_path, names, _STATUS, Answer.require_document, timeout=KNOCK)
    return {answer.host: "it does not answer" for answer, _ in outcomes if answer.error is not None}


def _drained(drains: Drainer, names: Sequence[str], reasons: list[Reason]) -> dict[str, str]:
    """Hosts that are out of work, whoever has taken them out."""
    try:
        found: Mapping[str, State] = drains.states(names)
    except DrainFailed as error:
        if not reasons:
            reasons.append(Reason(error.message, hint=error.hint or ""))
        return {}
    return {name: _why(state) for name, state in found.items() if state.out}


def _why(state: State) -> str:
    if rollout := rollout_of(state.reason):
        return f"it was drained by rollout {rollout}"
    return f"it is drained: {state.reason}" if state.reason else "it is drained"
