"""The waves of a rollout, from the fleet file's settings and facts of its hosts.  Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.hostnames import natural
from gdsdeploy.model.rollout import Wave
from gdsdeploy.model.rollout_settings import Batches, Canary, Rollout

BUILDERS, CANARY, CONSOLE = "builders", "canary", "console"


@dataclass(frozen=True)
class Candidate:
    """A host, or a builder, that may take part."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    #: equal for hosts of one kind: e.g. profile, GPU model and running kernel
    kind: str = ""
    #: it builds modules for others, and runs no jobs
    builder: bool = False
    #: it has the new lock already; such a host makes a poor canary
    satisfied: bool = False
    #: a person has to enrol a key at its console
    console: bool = False


@dataclass(frozen=True)
class Layout:
    """Waves in their order, and hosts that are left out, with why."""

    waves: tuple[Wave, ...]
    skipped: Mapping[str, str]
    #: hosts out of work at a time
    max_unavailable: int


def share(value: int | str, of: int) -> int:
    """A number of hosts, or ``N%`` of them, rounded down; never less than one."""
    number = int(Fraction(value.removesuffix("%")) * of / 100) if isinstance(value, str) else value
    return max(1, number)


def layout(settings: Rollout, candidates: Sequence[Candidate]) -> Layout:
    """The waves, the same for the same input; raises FleetInvalid: a canary takes no part.

    Builders go first, and hosts that wait for a person at their console last.  Shares count the hosts that take part;
    hosts that ``order`` doesn't sort keep their order.
    """
    skipped = {host.name: f"it has the label {settings.skip}" for host in candidates if settings.skip in host.labels}
    taking = [host for host in candidates if host.name not in skipped]
    hosts = sorted((host for host in taking if not host.builder), key=lambda host: _order(settings.order, host.labels))
    waves: list[Wave] = []
    if builders := tuple(host.name for host in taking if host.builder):
        waves.append(Wave(BUILDERS, builders, halt_at=1, drain=False))
    waiting = {host.name for host in hosts if host.console}
    alone = [host for host in hosts if not host.console]
    first = tuple(name for name in _canary(settings.canary, hosts, skipped) if name not in waiting)
    if waiting and not first:
        first = tuple(_one_of_each(alone))
    if first:
        waves.append(Wave(CANARY, first, soak=settings.canary.soak, halt_at=settings.failures.canary, canary=True))
    rest = [host.name for host in alone if host.name not in set(first)]
    halt_at = share(settings.failures.later, len(hosts))
    at = 0
    for number, size in enumerate(_sizes(settings.batches, len(hosts)), 2 if first else 1):
        if at >= len(rest):
            break
        waves.append(Wave(f"wave-{number}", tuple(rest[at : at + size]), settings.batches.soak, halt_at))
        at += size
    waves += _consoles(settings, [host.name for host in hosts if host.name in waiting], halt_at, canary=not first)
    return Layout(tuple(waves), skipped, share(settings.max_unavailable, len(hosts)))


def _consoles(settings: Rollout, names: Sequence[str], halt_at: int, *, canary: bool) -> Iterator[Wave]:
    """Waves of as many hosts as have a person at their console at a time; canary: the first one is the canary."""
    size = settings.console.hosts
    for number, at in enumerate(range(0, len(names), size), 1):
        first = canary and number == 1
        limit = settings.failures.canary if first else halt_at
        hosts = tuple(names[at : at + size])
        yield Wave(f"{CONSOLE}-{number}", hosts, halt_at=limit, canary=first, console=True)


def _sizes(batches: Batches, of: int) -> Iterator[int]:
    """Sizes of the waves, without an end."""
    size = first = share(batches.size, of)
    largest = share(batches.largest, of)
    while True:
        yield min(size, largest)
        if batches.strategy == "linear":
            size += first
        elif batches.strategy == "exponential" and size < largest:
            size *= batches.factor


def _canary(canary: Canary, hosts: Sequence[Candidate], skipped: Mapping[str, str]) -> tuple[str, ...]:
    names: set[str] = set()
    for pattern in canary.hosts:
        matches = {host.name for host in hosts if fnmatch.fnmatchcase(host.name, pattern)}
        if not matches:
            raise FleetInvalid(
                f"rollout: canary: hosts: {pattern!r} names no host that takes part{_left_out(pattern, skipped)}",
                hint="Name hosts of the fleet file, or shell patterns of their names",
            )
        names |= matches
    if canary.labels:
        matches = {host.name for host in hosts if canary.labels.items() <= host.labels.items()}
        if not matches:
            labels = ", ".join(f"{name}: {value}" for name, value in sorted(canary.labels.items()))
            raise FleetInvalid(
                f"rollout: canary: labels: no host that takes part has {labels}",
                hint="Give a host these labels in the fleet file; without this key one host of each kind goes first",
            )
        names |= matches
    if not names and canary.per_kind:
        names = set(_one_of_each(hosts))
    return tuple(host.name for host in hosts if host.name in names)


def _left_out(pattern: str, skipped: Mapping[str, str]) -> str:
    names = sorted(name for name in skipped if fnmatch.fnmatchcase(name, pattern))
    return f"; {names[0]} does not because {skipped[names[0]]}" if names else ""


def _one_of_each(hosts: Iterable[Candidate]) -> Iterator[str]:
    """The first host of each kind, preferably one that will change."""
    first: dict[str, Candidate] = {}
    for host in hosts:
        if host.kind not in first or (first[host.kind].satisfied and not host.satisfied):
            first[host.kind] = host
    return (host.name for host in first.values())


def _order(names: Iterable[str], labels: Mapping[str, str]) -> list[tuple[int, tuple[tuple[int, str], ...]]]:
    """By the labels' values, ``rack9`` before ``rack10``; hosts without a label after those that have it."""
    return [(0, natural(labels[name])) if name in labels else (1, ()) for name in names]
