"""Fit a cufile.json to one host: addresses of its RDMA interfaces, pools for its memory and BAR1, and a compat policy.

Pure: what the host is comes as facts.  Every value carries the words that tell where it is from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdsdeploy.cufile.model import Release, get, keys
from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.explain import MountPath, described, proof_of, storage_paths
from gdsdeploy.host.facts import HostFacts, Unknown
from gdsdeploy.host.facts.network import Address, RdmaInterface
from gdsdeploy.host.facts.pci import Function, find
from gdsdeploy.model.fleet import Profile

ADDRESSES = "properties.rdma_dev_addr_list"
ALLOW_COMPAT = "properties.allow_compat_mode"
_POOL_SIZES, _POOL_COUNTS = "properties.posix_pool_slab_size_kb", "properties.posix_pool_slab_count"
_CACHE, _BUFFER = "properties.max_device_cache_size_kb", "properties.per_buffer_cache_size_kb"
_PINNED = "properties.max_device_pinned_mem_size_kb"
#: Of a host's memory, what the CPU bounce buffers of one process for each GPU may take.
_POOL_SHARE = 8
#: Of a GPU's BAR1, what the library's own bounce buffers may take.
_CACHE_SHARE = 4
_VERSIONS = {"ipv4": (4,), "ipv6": (6,), "any": (4, 6)}


@dataclass(frozen=True)
class Host:
    """A host that a file is fitted to."""

    name: str
    facts: HostFacts
    #: The file that is there is being judged, not replaced: that its paths were proven since is no fault of it.
    settled: bool = False


@dataclass(frozen=True)
class Fitted:
    """Values by dotted key, where each is from, and what the user should know about the host."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def fit(profile: Profile, host: Host, release: Release) -> Fitted:
    """What ``profile.fit`` asks for on that host; raises HostUnfit naming the fact that is missing."""
    assert profile.fit is not None
    facts = host.facts
    found = [*_addresses(profile, facts, host.name), *_compat(profile, host)]
    if profile.fit.pools:
        found += [*_host_pool(profile, facts, release), *_gpu_pool(profile, facts, release)]
    known = keys(release)
    found = [(key, value, source) for key, value, source in found if key in known]
    return Fitted(
        values={key: value for key, value, _ in found},
        sources={key: source for key, _, source in found},
        notes=tuple(_notes(profile, host)),
    )


_Found = Iterator[tuple[str, Any, str]]


def _addresses(profile: Profile, facts: HostFacts, host: str) -> _Found:
    assert profile.fit is not None
    which, versions = profile.fit.addresses, _VERSIONS[profile.fit.family]
    if which == "none":
        return
    if isinstance(facts.network.rdma, Unknown):
        raise HostUnfit(
            f"{host}: it is not known which RDMA interfaces it has: {facts.network.rdma.reason}",
            hint="Install iproute2 there, or write the addresses into the fleet file (cufile, properties)",
        )
    usable = [
        (item, [address for address in item.addresses if address.version in versions])
        for item in facts.network.rdma
        if item.active
    ]
    usable = [(item, addresses) for item, addresses in usable if addresses]
    if not usable:
        seen = "; ".join(map(_why_not, facts.network.rdma)) or "it has no RDMA device"
        raise HostUnfit(
            f"{host}: no RDMA interface is active and has an address ({profile.fit.family}): {seen}",
            hint="Configure one on the host, or set fit.addresses of its profile to none",
        )
    chosen = {"all": _all, "rail": _rails, "near": _near}[which](usable, facts)
    words = ", ".join(f"{item.interface} ({item.device})" for item, _ in chosen)
    told = {"all": "every active RDMA interface", "rail": "one for each network", "near": "the nearest to each GPU"}
    yield ADDRESSES, [found[0].address for _, found in chosen], f"{told[which]} of {host}: {words}"


_Usable = Sequence[tuple[RdmaInterface, Sequence[Address]]]


def _all(usable: _Usable, _facts: HostFacts) -> _Usable:
    return usable


def _rails(usable: _Usable, _facts: HostFacts) -> _Usable:
    """Interfaces with a network in common are one rail; the first one serves it."""
    chosen: list[tuple[RdmaInterface, Sequence[Address]]] = []
    served: set[str] = set()
    for item, addresses in usable:
        networks = {address.network for address in addresses}
        if not networks & served:
            chosen.append((item, addresses))
        served |= networks
    return chosen


def _near(usable: _Usable, facts: HostFacts) -> _Usable:
    """For each GPU those with which it shares most bridges; where it shares none with any, those of its NUMA node."""
    if isinstance(facts.pci.functions, Unknown) or isinstance(facts.pci.gpus, Unknown) or not facts.pci.gpus:
        reason = facts.pci.functions.reason if isinstance(facts.pci.functions, Unknown) else "it has no GPU"
        raise HostUnfit(f"{facts.name}: no RDMA interface is near a GPU: {reason}", hint="Set fit.addresses to all")
    functions = {item.device: find(facts.pci.functions, item.pci) for item, _ in usable}
    nearest: set[str] = set()
    for gpu in facts.pci.gpus:
        ranks = {device: _closeness(gpu, function) for device, function in functions.items()}
        best = max(ranks.values())
        nearest |= {device for device, rank in ranks.items() if rank == best}
    return [(item, addresses) for item, addresses in usable if item.device in nearest]


def _closeness(gpu: Function, function: Function | None) -> tuple[int, bool]:
    if function is None:
        return 0, False
    shared = 0
    for ours, theirs in zip(gpu.bridges, function.bridges, strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared, gpu.numa_node == function.numa_node


def _why_not(item: RdmaInterface) -> str:
    return f"{item.interface} ({item.device}) is {'active' if item.active else 'down'}, {len(item.addresses)} addresses"


def _compat(profile: Profile, host: Host) -> _Found:
    """A fleet that asks for direct paths alone forbids the bounce buffer where they are proven.

    A path that breaks later is then an error, and not a slow success.
    """
    wanted = [mount for mount in profile.storage if mount.path != "compat"]
    if profile.mode == "compat" or not wanted or len(wanted) < len(profile.storage):
        return
    # Once the bounce buffer is forbidden it stays so: to allow it over a path that broke would hide what broke.
    now = host.facts.cufile.setting("properties", "allow_compat_mode", None)
    forbid = now is False or all(item.satisfies is True for item in _paths(profile, host.facts))
    if forbid and not (host.settled and now is True):
        yield ALLOW_COMPAT, False, "each mount was seen to take its path; from then on a broken one is an error"
    else:
        yield ALLOW_COMPAT, True, "not every mount was seen to take its path yet"


def _paths(profile: Profile, facts: HostFacts) -> tuple[MountPath, ...]:
    return storage_paths(facts, [(mount.mount, mount.path) for mount in profile.storage])


def _lacking(item: MountPath) -> str:
    """What a mount takes that was not seen to take what is asked for."""
    proof = f" {proof_of(item)}" if item.proven else ""
    return f"{item.mount} takes {described(item)}{proof}"


def _host_pool(profile: Profile, facts: HostFacts, release: Release) -> _Found:
    """Halve the counts of the largest slabs until the pools of one process for each GPU fit."""
    if isinstance(facts.memory, Unknown) or get(profile.cufile, _POOL_SIZES) or get(profile.cufile, _POOL_COUNTS):
        return
    known = keys(release)
    sizes, counts = (list(known[name].default_for(release)) for name in (_POOL_SIZES, _POOL_COUNTS))
    gpus = facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ()
    room = facts.memory // 1024 // _POOL_SHARE // max(1, len(gpus))
    before = list(counts)
    while _taken(sizes, counts) > room and max(counts) > 1:
        largest = max((i for i, count in enumerate(counts) if count > 1), key=lambda i: sizes[i] * counts[i])
        counts[largest] //= 2
    if counts != before:
        each = _taken(sizes, counts) >> 10
        why = f"{facts.memory >> 30} GiB of memory for {max(1, len(gpus))} processes: {each} MiB each"
        yield _POOL_SIZES, sizes, why
        yield _POOL_COUNTS, counts, why


def _taken(sizes: Sequence[int], counts: Sequence[int]) -> int:
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def _gpu_pool(profile: Profile, facts: HostFacts, release: Release) -> _Found:
    """Keep what is pinned within the smallest BAR1, through which others reach a GPU's memory."""
    if profile.mode == "compat" or not isinstance(facts.pci.gpus, tuple):
        return
    windows = [sorted(gpu.bars.items())[1][1] >> 10 for gpu in facts.pci.gpus if len(gpu.bars) > 1]
    if not windows:
        return
    smallest = min(windows)
    source = f"BAR1 of {smallest >> 10} MiB"
    known = keys(release)
    if get(profile.cufile, _PINNED) is None:
        yield _PINNED, smallest, source
    cache, buffer = (get(profile.cufile, name) or known[name].default_for(release) for name in (_CACHE, _BUFFER))
    share = smallest // _CACHE_SHARE // 64 * 64
    if isinstance(cache, int) and cache > share >= 64 and get(profile.cufile, _CACHE) is None:
        yield _CACHE, share, f"a quarter of the {source}"
        if isinstance(buffer, int) and buffer > share and get(profile.cufile, _BUFFER) is None:
            yield _BUFFER, share, f"all of max_device_cache_size_kb, for the {source}"


def _notes(profile: Profile, host: Host) -> Iterator[str]:
    """Why compat mode stays allowed; and what the library would refuse, and only this host can tell."""
    for key, allowed, _ in _compat(profile, host):
        lacking = [_lacking(item) for item in _paths(profile, host.facts) if item.satisfies is not True]
        if allowed:
            yield f"{key} stays true on {host.name} until its paths are proven: {'; '.join(lacking)}"
        elif lacking:
            yield f"{key} is false on {host.name}, and not every path works: {'; '.join(lacking)}"
    mounts = host.facts.storage.mounts
    if isinstance(mounts, Unknown):
        return
    for key in ["denylist.mounts", *(f"fs.{name}.mount_table" for name in profile.cufile.get("fs", {}))]:
        for mount in get(profile.cufile, key) or ():
            if mount not in mounts:
                yield f"{key}: {mount} is not mounted on {host.name}; libcufile refuses a file if a folder is missing"
