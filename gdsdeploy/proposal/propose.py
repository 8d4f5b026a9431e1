"""Observations of hosts → a fleet file: hosts of one kind share a profile, and each line says who had what.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdsdeploy.proposal.model import Entry, Kind, Node, Observation, ObservedRepository, Proposal, Remark
from gdsdeploy.proposal.profile import nodes_of
from gdsdeploy.proposal.words import ranges, short_model

#: What else tells two kinds with the same system and GPUs apart, as a part of their names.
_DIFFERENCES: tuple[Callable[[Kind], str], ...] = (
    lambda kind: kind.arch,
    lambda kind: kind.kernel,
    lambda kind: kind.driver or "no-driver",
    lambda kind: kind.flavour,
    lambda kind: kind.mode,
    lambda kind: kind.rdma,
    lambda kind: "container" if kind.container else "",
)


@dataclass(frozen=True)
class Source:
    """Where the hosts come from.  ``settings``: host → how it is reached, as the fleet file has it."""

    settings: Mapping[str, Mapping[str, Any]]
    #: ssh_config for all hosts, as the fleet file names it; empty: the user's own
    ssh_config: str = ""
    #: an inventory that stays the source of hosts, as the fleet file names it, and its groups; empty: none
    inventory: str = ""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def propose(
    observations: Sequence[Observation], left_out: Mapping[str, str], source: Source, *, keys: str, day: str
) -> Proposal:
    """The fleet file for these hosts.

    left_out: host → why it isn't among them.  keys: folder where the keys of repositories will be, an absolute path;
    empty: they can't be written.  day: when the hosts were asked.
    """
    kinds: dict[Kind, list[Observation]] = {}
    for each in observations:
        kinds.setdefault(each.kind, []).append(each)
    names = _names(kinds)
    profiles = {names[kind]: tuple(each.name for each in hosts) for kind, hosts in kinds.items()}
    chosen = _repositories(kinds)
    files, repositories, key_checks = _entries(chosen, keys)
    blocks = [
        Entry(
            names[kind],
            tuple(nodes_of(kind, hosts, [each.name for each in chosen[kind]])),
            ranges(profiles[names[kind]]),
        )
        for kind, hosts in kinds.items()
    ]
    nodes: list[Node] = [
        Remark(f"Written by `gdsdeploy init` on {day} from what the hosts ran; docs/fleet.md describes every key."),
        *(Remark(f"Left out: {name}: {reason}") for name, reason in left_out.items()),
        Entry("version", 1),
        *([Entry("repositories", tuple(repositories))] if repositories else []),
        *([Entry("ssh", {"config": source.ssh_config})] if source.ssh_config else []),
        Entry("profiles", tuple(blocks)),
        *_hosts(profiles, left_out, source),
    ]
    return Proposal(tuple(nodes), profiles, files, tuple(dict.fromkeys([*key_checks, *_checks(observations)])))


def _names(kinds: Mapping[Kind, Sequence[Observation]]) -> dict[Kind, str]:
    """``ubuntu-24.04-h100``; with what differs where two kinds had the same name."""
    names = {kind: _base(kind, hosts) for kind, hosts in kinds.items()}
    for difference in _DIFFERENCES:
        same = {name: [kind for kind in names if names[kind] == name] for name in names.values()}
        for name, several in same.items():
            if len({difference(kind) for kind in several}) > 1:
                names |= {kind: "-".join(filter(None, (name, difference(kind)))) for kind in several}
    counts: dict[str, int] = {}
    for kind, name in names.items():
        counts[name] = counts.get(name, 0) + 1
        number = f"-{counts[name]}" if counts[name] > 1 else ""
        names[kind] = re.sub(r"[^A-Za-z0-9._-]", "-", f"{name}{number}")[:63].strip("._-")
    return names


def _base(kind: Kind, hosts: Sequence[Observation]) -> str:
    models = [model for host in hosts for model in host.models]
    none = "no-gpu" if all(host.gpus == 0 for host in hosts) else "gpu"
    return f"{kind.os}-{(short_model(models) or kind.gpu or 'gpu') if models else none}"


def _repositories(kinds: Mapping[Kind, Sequence[Observation]]) -> dict[Kind, list[ObservedRepository]]:
    """The repositories of each profile, as its first host has them; one name means one entry in the whole file."""
    entries: dict[str, ObservedRepository] = {}
    chosen: dict[Kind, list[ObservedRepository]] = {}
    for kind, hosts in kinds.items():
        chosen[kind] = []
        for each in hosts[0].repositories:
            own = each
            if each.name in entries and not _is_same(entries[each.name], each):
                name = _with_system(each.name, kind.os)
                own = ObservedRepository(name, each.whole, each.whole, each.key, each.remark)
            entries.setdefault(own.name, own)
            chosen[kind].append(own)
    return chosen


def _with_system(name: str, os: str) -> str:
    """``debian-13-security`` for debian-security, ``nvidia-debian-13`` for nvidia."""
    system = os.partition("-")[0]
    return name.replace(system, os, 1) if name.startswith(system) else f"{name}-{os}"


def _is_same(one: ObservedRepository, other: ObservedRepository) -> bool:
    return (one.entry, one.key) == (other.entry, other.key)


def _entries(
    chosen: Mapping[Kind, Sequence[ObservedRepository]], folder: str
) -> tuple[dict[str, bytes], list[Entry], list[str]]:
    """(files of keys, nodes of ``repositories``, what to check)."""
    files: dict[str, bytes] = {}
    nodes: dict[str, Entry] = {}
    checks: list[str] = []
    for each in (repository for several in chosen.values() for repository in several):
        entry, remark = dict(each.entry), each.remark
        if each.key and folder:
            own = f"{each.name}.{'asc' if each.key.startswith(b'-----BEGIN') else 'gpg'}"
            name = next((name for name, content in files.items() if content == each.key), own)
            files[name] = each.key
            entry["keyring"] = f"{folder}/{name}"
            if "uri" in entry and {"fingerprints", "package_keys"} & entry.keys():
                # With all three, an entry is a repository of its own, and its address the exact one.
                entry = {**entry, "uri": each.whole["uri"]}
        elif each.key:
            remark = "; ".join(filter(None, (remark, "this machine lacks the keys, which the hosts have: add keyring")))
        if remark:
            checks.append(f"repositories.{each.name}: {remark}")
        if entry:
            nodes[each.name] = Entry(each.name, tuple(Entry(key, value) for key, value in entry.items()), remark)
    return files, list(nodes.values()), checks


def _hosts(profiles: Mapping[str, tuple[str, ...]], left_out: Mapping[str, str], source: Source) -> list[Node]:
    """The key ``hosts``, and ``inventory`` with those of its groups whose hosts have one profile."""
    of = {name: profile for profile, names in profiles.items() for name in names}
    groups = _groups(of, left_out, source)
    covered = {name for group in groups for name in source.groups[group]}
    entries = [
        Entry(name, {"profile": profile, **source.settings[name]} if source.settings.get(name) else profile)
        for name, profile in of.items()
        if name not in covered
    ]
    nodes: list[Node] = []
    if groups:
        mapping = {"file": source.inventory, "groups": groups}
        nodes.append(Entry("inventory", mapping, "read at every run; a host's own entry under hosts counts before it"))
        unasked = ranges(sorted(covered & left_out.keys()))
        if unasked:
            nodes.append(Remark(f"Left out, but in these groups, and so in the fleet: {unasked}"))
    return [*nodes, *([Entry("hosts", tuple(entries))] if entries else [])]


def _groups(of: Mapping[str, str], left_out: Mapping[str, str], source: Source) -> dict[str, str]:
    """Group → profile: few groups that together have as many hosts as possible, none of two profiles."""
    groups: dict[str, str] = {}
    covered: set[str] = set()
    order = sorted(source.groups, key=lambda name: (name in ("all", "ungrouped"), -len(source.groups[name]), name))
    for group in order if source.inventory else ():
        hosts = set(source.groups[group])
        profiles = {of.get(name, "") for name in hosts - left_out.keys()}
        if len(profiles) == 1 and "" not in profiles and hosts - covered - left_out.keys() and not hosts & covered:
            groups[group] = profiles.pop()
            covered |= hosts
    return groups


def _checks(observations: Iterable[Observation]) -> list[str]:
    """What an operator has to look at before the first lock."""
    hosts = list(observations)

    def who(holds: Callable[[Observation], bool]) -> str:
        return ranges(each.name for each in hosts if holds(each))

    rows = (
        (who(lambda each: not each.driver), "no driver: lock takes the newest that the repositories have"),
        (who(lambda each: bool(each.driver) and not each.driver_runs), "a driver is installed and doesn't run"),
        (who(lambda each: each.driver_packaged is False), "the driver belongs to no package, as after a .run file"),
        (who(lambda each: each.secure_boot is True), "Secure Boot: see docs/secure-boot.md before provision"),
        (who(lambda each: each.kind.container), "a container: it doesn't choose its kernel (own_kernel: false)"),
    )
    boots: dict[str, list[str]] = {}
    for each in hosts:
        boots.setdefault(each.boot, []).append(each.name)
    twins = [names for boot, names in boots.items() if boot and len(names) > 1]
    notes: dict[str, list[str]] = {}
    for each in hosts:
        for note in each.notes:
            notes.setdefault(note, []).append(each.name)
    checks = [f"{names}: {words}" for names, words in rows if names]
    checks += [f"{ranges(names)}: the same boot of a kernel: list one name of each machine" for names in twins]
    return [*checks, *(f"{ranges(names)}: {note}" for note, names in notes.items())]
