"""Observations of hosts → a fleet file, as YAML with comments and as plain data.  Pure.

Hosts of one kind share a profile; each line says who had what, and each choice has a comment.  All values and keys are
written by yaml's own emitter.  A comment may have words of hosts: it has no line end, no control character, and a
limit.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.reader import Reader

from gdsdeploy.host.io.wording import first_few, line
from gdsdeploy.model import hostnames
from gdsdeploy.model.profile_parts import DriverName, ModelWords
from gdsdeploy.model.text import AbsolutePath, fits
from gdsdeploy.proposal.observe import (
    Entry,
    Kind,
    Node,
    Observation,
    ObservedRepository,
    Proposal,
    Remark,
    short_model,
)

#: Kernels from Debian's backports, whose suite the presets don't have.
_BACKPORTED = re.compile(r"[+~]bpo")
#: Packages that a comment lists.
_MOST = 4
Of = Callable[[Observation], Any]


def nodes_of(kind: Kind, hosts: Sequence[Observation], repositories: Sequence[str]) -> Iterator[Node]:
    """The lines of a profile, in the order of docs/fleet.md."""
    yield Entry("os", kind.os)
    if kind.arch != "x86_64":
        yield Entry("arch", kind.arch)
    yield Entry("repositories", list(repositories), "whose driver: the first that has one wins")
    yield from _kernel(kind, hosts)
    yield from _driver(kind, hosts)
    yield from _versions(hosts)
    yield from _packages(hosts)
    yield from _devices(kind, hosts)
    yield from _modes(kind, hosts)
    yield from _storage(hosts)
    if any(host.secure_boot for host in hosts):
        words = "unsigned modules don't load: docs/secure-boot.md"
        yield Entry(
            "modules", "auto", f"Secure Boot is on on {_who(hosts, lambda host: host.secure_boot)}: {words}", off=True
        )


def _who(hosts: Sequence[Observation], holds: Of) -> str:
    return hostnames.words(host.name for host in hosts if holds(host))


def _each(hosts: Sequence[Observation], of: Of) -> str:
    """``gpu[1-3]: 580.95.05; gpu4: 580.82.07``: the hosts of each value."""
    names = hostnames.grouped((host.name, str(of(host))) for host in hosts if of(host))
    return "; ".join(f"{hostnames.words(owners)}: {value}" for value, owners in names.items())


def _common(hosts: Sequence[Observation], of: Of) -> Any:
    """What all hosts have; None where they differ, or one doesn't tell."""
    values = [of(host) for host in hosts]
    return values[0] if all(value == values[0] for value in values) else None


def _kernel(kind: Kind, hosts: Sequence[Observation]) -> Iterator[Node]:
    running = _each(hosts, lambda host: host.release)
    if kind.container:
        yield Entry("own_kernel", False, f"containers run the kernel of their machine: {running}")
        return
    if not kind.kernel:
        yield Remark(f"kernel: not known: {running}")
        return
    value = {"flavour": kind.kernel}
    series = {".".join(host.release.split(".")[:2]) for host in hosts}
    if any(_BACKPORTED.search(host.release) for host in hosts):
        running += "; from backports, whose suite the repositories here don't have"
    elif len(series) == 1 and re.fullmatch(r"[0-9]+\.[0-9]+", first := next(iter(series))):
        value = {"version": first, **value}
    yield Entry("kernel", value, running)


def _driver(kind: Kind, hosts: Sequence[Observation]) -> Iterator[Node]:
    if not kind.driver:
        yield Remark(f"driver: none on {hostnames.words(host.name for host in hosts)}: lock takes the newest open one")
        return
    value = {"version": kind.driver, **({"flavour": kind.flavour} if kind.flavour else {})}
    installed = _who(hosts, lambda host: not host.driver_runs)
    remark = f"{_each(hosts, lambda host: host.driver)}; write a whole version to stay at it"
    yield Entry("driver", value, remark + (f"; it doesn't run on {installed}" if installed else ""))
    if foreign := _who(hosts, lambda host: host.driver_packaged is False):
        yield Remark(f"The driver of {foreign} belongs to no package, as after NVIDIA's .run file")


def _versions(hosts: Sequence[Observation]) -> Iterator[Node]:
    parts: dict[str, Of] = {"nvidia_fs": lambda host: host.nvidia_fs, "libcufile": lambda host: host.libcufile}
    for key, of in parts.items():
        if versions := [of(host) for host in hosts if of(host)]:
            yield Entry(key, versions[0], _each(hosts, of), off=True)


def _packages(hosts: Sequence[Observation]) -> Iterator[Node]:
    shared = [name for name in hosts[0].companions if all(name in host.companions for host in hosts)]
    some = {name for host in hosts for name in host.companions} - set(shared)
    if shared:
        yield Entry("companions", shared)
    if some:
        names = _each(hosts, lambda host: ", ".join(name for name in host.companions if name in some))
        yield Remark(f"companions that only some have: {names}")
    parts: dict[str, Of] = {"cuda": lambda host: host.cuda, "doca": lambda host: host.doca}
    for key, of in parts.items():
        if owners := [host for host in hosts if of(host)]:
            packages = list(dict.fromkeys(name for host in owners for name in of(host)))
            words = "left alone unless they are listed here" if key == "cuda" else "needs docs/repositories.md#doca"
            remark = f"{hostnames.words(host.name for host in owners)}: {first_few(packages, _MOST)}; {words}"
            yield Entry(key, [name.split()[0] for name in packages[:_MOST]], remark, off=True)


def _devices(kind: Kind, hosts: Sequence[Observation]) -> Iterator[Node]:
    models = list(dict.fromkeys(model for host in hosts for model in host.models))
    remark = first_few(models, _MOST)
    if kind.gpu:
        yield Entry("gpu", kind.gpu, remark)
    elif any(host.gpus for host in hosts):
        what = f"{remark}: of no class known here" if models else "no driver names their models"
        yield Remark(f"gpu: not known: {what}")
    if gpus := _common(hosts, lambda host: host.gpus):
        model = models[0].removeprefix("NVIDIA ") if len(models) == 1 else ""
        complete = all(len(host.models) == host.gpus for host in hosts)
        yield Entry("gpus", {"count": gpus, "model": model} if complete and fits(ModelWords, model) else gpus)
    nics = _common(hosts, lambda host: (host.nics, host.nic_driver))
    if nics and nics[0] and fits(DriverName, nics[1]):
        yield Entry("nics", {"count": nics[0], "driver": nics[1]}, "those with RDMA")
    if nvme := _common(hosts, lambda host: host.nvme):
        yield Entry("nvme", nvme)
    counts: dict[str, Of] = {"gpus": lambda host: host.gpus, "nvme": lambda host: host.nvme}
    for key, of in counts.items():
        if _common(hosts, of) is None and any(of(host) for host in hosts):
            yield Remark(f"{key}: the hosts differ: {_each(hosts, of)}")


def _modes(kind: Kind, hosts: Sequence[Observation]) -> Iterator[Node]:
    for key, value, reason in (
        ("mode", kind.mode, hosts[0].mode_reason),
        ("rdma", kind.rdma, hosts[0].rdma_reason),
    ):
        if value:
            yield Entry(key, value, reason)
        else:
            yield Remark(f"{key}: not known: {reason}; after provision: gdsdeploy explain")


def _storage(hosts: Sequence[Observation]) -> Iterator[Node]:
    """Mounts that every host of the profile has with a direct path, and the others behind a ``#``."""
    entries: list[Entry] = []
    points = sorted({mount.mount for host in hosts for mount in host.mounts})
    for point in points:
        mounts = {host.name: mount for host in hosts for mount in host.mounts if mount.mount == point}
        kinds = "/".join(dict.fromkeys(mount.filesystem for mount in mounts.values()))
        reasons = list(dict.fromkeys(mount.reason for mount in mounts.values() if not mount.direct))
        if len(mounts) < len(hosts):
            reasons.append(f"only on {hostnames.words(mounts)}")
        if not fits(AbsolutePath, point):
            yield Remark(f"storage: a mount point that no fleet file can name: {point!a:.100}")
            continue
        remark = f"{kinds}: {first_few(reasons, 2, '; ')}" if reasons else kinds
        entries.append(Entry("", {"mount": point, "path": "direct"}, remark, off=bool(reasons)))
    if entries and all(entry.off for entry in entries):
        yield Entry("storage", tuple(replace(entry, off=False) for entry in entries), off=True)
    elif entries:
        yield Entry("storage", tuple(entries))


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
            hostnames.words(profiles[names[kind]]),
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


#: Characters of a name in a fleet file.
_LONGEST_NAME = 63


def _names(kinds: Mapping[Kind, Sequence[Observation]]) -> dict[Kind, str]:
    """``ubuntu-24.04-h100``; with what differs where two kinds had the same name."""
    names = {kind: _base(kind, hosts) for kind, hosts in kinds.items()}
    for difference in _DIFFERENCES:
        same = {name: [kind for kind in names if names[kind] == name] for name in names.values()}
        for name, several in same.items():
            if len({difference(kind) for kind in several}) > 1:
                names |= {kind: "-".join(filter(None, (name, difference(kind)))) for kind in several}
    taken: dict[str, Kind] = {}
    for kind, name in names.items():
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("._-")
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        shortened = (plain[: _LONGEST_NAME - len(end)].rstrip("._-") + end for end in ends)
        taken[next(short for short in shortened if short not in taken)] = kind
    return {kind: name for name, kind in taken.items()}


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
            same = entries.get(each.name, each)
            if (same.entry, same.key) != (each.entry, each.key):
                name = _with_system(each.name, kind.os)
                own = ObservedRepository(name, each.whole, each.whole, each.key, each.remark)
            entries.setdefault(own.name, own)
            chosen[kind].append(own)
    return chosen


def _with_system(name: str, os: str) -> str:
    """``debian-13-security`` for debian-security, ``nvidia-debian-13`` for nvidia."""
    system = os.partition("-")[0]
    return name.replace(system, os, 1) if name.startswith(system) else f"{name}-{os}"


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
        if unasked := hostnames.words(sorted(covered & left_out.keys())):
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
        return hostnames.words(each.name for each in hosts if holds(each))

    rows = (
        (who(lambda each: not each.driver), "no driver: lock takes the newest that the repositories have"),
        (who(lambda each: bool(each.driver) and not each.driver_runs), "a driver is installed and doesn't run"),
        (who(lambda each: each.driver_packaged is False), "the driver belongs to no package, as after a .run file"),
        (who(lambda each: each.secure_boot is True), "Secure Boot: see docs/secure-boot.md before provision"),
        (who(lambda each: each.kind.container), "a container: it doesn't choose its kernel (own_kernel: false)"),
    )
    boots = hostnames.grouped((each.name, each.boot) for each in hosts if each.boot)
    twins = [names for names in boots.values() if len(names) > 1]
    notes = hostnames.grouped((each.name, note) for each in hosts for note in each.notes)
    return [
        *(f"{names}: {words}" for names, words in rows if names),
        *(f"{hostnames.words(names)}: the same boot of a kernel: list one name of each machine" for names in twins),
        *(f"{hostnames.words(names)}: {note}" for note, names in notes.items()),
    ]


#: Characters of a comment, and of a line with one at its end.
_LONGEST, _WIDTH = 400, 110
_PLAIN = re.compile(r"[ -~]*")


class _Dumper(yaml.SafeDumper):
    """Writes each text in one line, whatever is in it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        """The same value twice is written twice."""
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """In double quotes, with escapes, where it has more than printable ASCII."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(nodes: Sequence[Node]) -> str:
    """The YAML document."""
    return "\n".join(_lines(nodes, "")) + "\n"


def yaml_comment(words: str) -> str:
    """``words`` as a comment may have them: one line, printable, not too long."""
    clean = Reader.NON_PRINTABLE.sub("?", line(words)).strip()
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"


def _lines(nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Remark):
            yield from _remark(node.text, indent)
            continue
        block = isinstance(node.value, tuple) and isinstance(next(iter(node.value), None), Entry | Remark)
        begin = f"{_flow(node.key)}:" if node.key else "-"
        words = begin if block else f"{begin} {_flow(node.value)}"
        mark = "# " if node.off else ""
        yield from _with_comment(f"{indent}{mark}{words}", node.comment, indent)
        if block:
            below = list(_lines(node.value, indent + "  "))
            yield from (f"{indent}# {each[len(indent) :]}" for each in below) if node.off else below


def _with_comment(words: str, remark: str, indent: str) -> Iterator[str]:
    """Behind the words where there is room, else above them."""
    clean = yaml_comment(remark)
    if clean and len(words) + len(clean) + 4 > _WIDTH:
        yield from _remark(clean, indent)
        clean = ""
    yield f"{words}  # {clean}" if clean else words


def _remark(words: str, indent: str) -> Iterator[str]:
    for part in textwrap.wrap(yaml_comment(words), _WIDTH - len(indent), break_on_hyphens=False) or [""]:
        yield f"{indent}# {part}".rstrip()


def _flow(value: Any) -> str:
    """A value in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    dumped = yaml.dump(plain, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=1 << 30)
    return str(dumped).removesuffix("\n").removesuffix("\n...").strip()
