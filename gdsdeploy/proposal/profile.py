"""One profile of the proposal: its keys with a comment for each choice.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gdsdeploy.host.io.wording import first_few
from gdsdeploy.model.hardware import DriverName, ModelWords
from gdsdeploy.model.text import AbsolutePath
from gdsdeploy.proposal.model import Entry, Kind, Node, Observation, Remark
from gdsdeploy.proposal.words import ranges

#: Kernels from Debian's backports, whose suite the presets don't have.
_BACKPORTED = re.compile(r"[+~]bpo")
_MODEL: TypeAdapter[str] = TypeAdapter(ModelWords)
_DRIVER: TypeAdapter[str] = TypeAdapter(DriverName)
_PATH: TypeAdapter[str] = TypeAdapter(AbsolutePath)
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
    return ranges(host.name for host in hosts if holds(host))


def _each(hosts: Sequence[Observation], of: Of) -> str:
    """``gpu[1-3]: 580.95.05; gpu4: 580.82.07``: the hosts of each value."""
    names: dict[str, list[str]] = {}
    for host in hosts:
        if of(host):
            names.setdefault(str(of(host)), []).append(host.name)
    return "; ".join(f"{ranges(owners)}: {value}" for value, owners in names.items())


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
        yield Remark(f"driver: none on {ranges(host.name for host in hosts)}: lock takes the newest open one")
        return
    value = {"version": kind.driver, **({"flavour": kind.flavour} if kind.flavour else {})}
    installed = _who(hosts, lambda host: not host.driver_runs)
    remark = f"{_each(hosts, lambda host: host.driver)}; write a whole version to stay at it"
    yield Entry("driver", value, remark + (f"; it doesn't run on {installed}" if installed else ""))
    foreign = _who(hosts, lambda host: host.driver_packaged is False)
    if foreign:
        yield Remark(f"The driver of {foreign} belongs to no package, as after NVIDIA's .run file")


def _versions(hosts: Sequence[Observation]) -> Iterator[Node]:
    parts: dict[str, Of] = {"nvidia_fs": lambda host: host.nvidia_fs, "libcufile": lambda host: host.libcufile}
    for key, of in parts.items():
        versions = [of(host) for host in hosts if of(host)]
        if versions:
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
        owners = [host for host in hosts if of(host)]
        if owners:
            packages = list(dict.fromkeys(name for host in owners for name in of(host)))
            words = "left alone unless they are listed here" if key == "cuda" else "needs docs/repositories.md#doca"
            remark = f"{ranges(host.name for host in owners)}: {first_few(packages, _MOST)}; {words}"
            yield Entry(key, [name.split()[0] for name in packages[:_MOST]], remark, off=True)


def _devices(kind: Kind, hosts: Sequence[Observation]) -> Iterator[Node]:
    models = list(dict.fromkeys(model for host in hosts for model in host.models))
    remark = first_few(models, _MOST)
    if kind.gpu:
        yield Entry("gpu", kind.gpu, remark)
    elif any(host.gpus for host in hosts):
        what = f"{remark}: of no class known here" if models else "no driver names their models"
        yield Remark(f"gpu: not known: {what}")
    gpus = _common(hosts, lambda host: host.gpus)
    if gpus:
        model = models[0].removeprefix("NVIDIA ") if len(models) == 1 else ""
        complete = all(len(host.models) == host.gpus for host in hosts)
        yield Entry("gpus", {"count": gpus, "model": model} if complete and _fits(_MODEL, model) else gpus)
    nics = _common(hosts, lambda host: (host.nics, host.nic_driver))
    if nics and nics[0] and _fits(_DRIVER, nics[1]):
        yield Entry("nics", {"count": nics[0], "driver": nics[1]}, "those with RDMA")
    nvme = _common(hosts, lambda host: host.nvme)
    if nvme:
        yield Entry("nvme", nvme)
    counts: dict[str, Of] = {"gpus": lambda host: host.gpus, "nvme": lambda host: host.nvme}
    for key, of in counts.items():
        if _common(hosts, of) is None and any(of(host) for host in hosts):
            yield Remark(f"{key}: the hosts differ: {_each(hosts, of)}")


def _fits(kind: TypeAdapter[str], text: str) -> bool:
    try:
        kind.validate_python(text)
    except ValidationError:
        return False
    return bool(text)


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
            reasons.append(f"only on {ranges(mounts)}")
        if not _fits(_PATH, point):
            yield Remark(f"storage: a mount point that no fleet file can name: {point!a:.100}")
            continue
        remark = f"{kinds}: {first_few(reasons, 2, '; ')}" if reasons else kinds
        entries.append(Entry("", {"mount": point, "path": "direct"}, remark, off=bool(reasons)))
    if entries and all(entry.off for entry in entries):
        yield Entry("storage", tuple(replace(entry, off=False) for entry in entries), off=True)
    elif entries:
        yield Entry("storage", tuple(entries))
