"""Fit a cufile.json to one host: addresses of its RDMA interfaces, pools for its memory and BAR1, and a compat policy.

Pure: facts of a host → values, each with its origin in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdsdeploy.cufile.model import ALLOW_COMPAT, BATCH, BUFFER, CACHE, SLAB_COUNTS, SLAB_SIZES, Release, get, keys
from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.explain import MountPath, description, proof_of, storage_paths
from gdsdeploy.host.facts import HostFacts, Unknown
from gdsdeploy.host.facts.pci import Function, find
from gdsdeploy.host.facts.rdma import Address, RdmaInterface
from gdsdeploy.model.fleet import Profile

ADDRESSES = "properties.rdma_dev_addr_list"
_PINNED = "properties.max_device_pinned_mem_size_kb"
#: One part in this many of a host's memory is for the CPU bounce buffers of one process for each GPU.
_POOL_SHARE = 8
#: One part in this many of a GPU's BAR1 is for the library's own bounce buffers.
_CACHE_SHARE = 4
_VERSIONS = {"ipv4": (4,), "ipv6": (6,), "any": (4, 6)}


@dataclass(frozen=True)
class FitTarget:
    """The host of a fitted file."""

    name: str
    facts: HostFacts
    #: The present file is judged, not replaced: it has no fault if its paths were proven since.
    settled: bool = False


@dataclass(frozen=True)
class Fitted:
    """Values by dotted key, their origins, and notes about the host."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def fit(profile: Profile, host: FitTarget, release: Release) -> Fitted:
    """The values that ``profile.fit`` requires on that host; raises HostUnfit, which names the missing fact."""
    assert profile.fit is not None
    facts = host.facts
    rows = [*_addresses(profile, facts, host.name), *_compat(profile, host)]
    if profile.fit.pools:
        rows += [*_host_pool(profile, facts, release), *_gpu_pool(profile, facts, release)]
    rows = [row for row in rows if row[0] in keys(release)]
    values, sources = {key: value for key, value, _ in rows}, {key: source for key, _, source in rows}
    return Fitted(values, sources, notes=tuple(_notes(profile, host)))


#: (dotted key, value, origin)
_Rows = Iterator[tuple[str, Any, str]]


def _addresses(profile: Profile, facts: HostFacts, host: str) -> _Rows:
    assert profile.fit is not None
    which, versions = profile.fit.addresses, _VERSIONS[profile.fit.family]
    if which == "none":
        return
    if isinstance(facts.network.rdma, Unknown):
        raise HostUnfit(
            f"{host}: its RDMA interfaces are unknown: {facts.network.rdma.reason}",
            hint="Install iproute2 there, or write the addresses into the fleet file (cufile, properties)",
        )
    usable = [
        (interface, addresses)
        for interface in facts.network.rdma
        if interface.active and (addresses := [one for one in interface.addresses if one.version in versions])
    ]
    if not usable:
        states = "; ".join(map(_state, facts.network.rdma)) or "it has no RDMA device"
        raise HostUnfit(
            f"{host}: no RDMA interface is active and has an address ({profile.fit.family}): {states}",
            hint="Configure one on the host, or set fit.addresses of its profile to none",
        )
    chosen = {"all": _all, "rail": _rails, "near": _near}[which](usable, facts)
    names = ", ".join(f"{interface.interface} ({interface.device})" for interface, _ in chosen)
    rule = {"all": "every active RDMA interface", "rail": "one for each network", "near": "the nearest to each GPU"}
    yield ADDRESSES, [addresses[0].address for _, addresses in chosen], f"{rule[which]} of {host}: {names}"


_Usable = Sequence[tuple[RdmaInterface, Sequence[Address]]]


def _all(usable: _Usable, _facts: HostFacts) -> _Usable:
    return usable


def _rails(usable: _Usable, _facts: HostFacts) -> _Usable:
    """Interfaces with a network in common are one rail; the first one serves it."""
    chosen: list[tuple[RdmaInterface, Sequence[Address]]] = []
    served: set[str] = set()
    for interface, addresses in usable:
        networks = {address.network for address in addresses}
        if not networks & served:
            chosen.append((interface, addresses))
        served |= networks
    return chosen


def _near(usable: _Usable, facts: HostFacts) -> _Usable:
    """For each GPU the interfaces with the most shared bridges; if it shares none, those of its NUMA node."""
    if isinstance(facts.pci.functions, Unknown) or isinstance(facts.pci.gpus, Unknown) or not facts.pci.gpus:
        reason = facts.pci.functions.reason if isinstance(facts.pci.functions, Unknown) else "it has no GPU"
        raise HostUnfit(f"{facts.name}: no RDMA interface is near a GPU: {reason}", hint="Set fit.addresses to all")
    functions = {interface.device: find(facts.pci.functions, interface.pci) for interface, _ in usable}
    nearest: set[str] = set()
    for gpu in facts.pci.gpus:
        ranks = {device: _closeness(gpu, function) for device, function in functions.items()}
        best = max(ranks.values())
        nearest |= {device for device, rank in ranks.items() if rank == best}
    return [(interface, addresses) for interface, addresses in usable if interface.device in nearest]


def _closeness(gpu: Function, function: Function | None) -> tuple[int, bool]:
    if function is None:
        return 0, False
    shared = 0
    for ours, theirs in zip(gpu.bridges, function.bridges, strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared, gpu.numa_node == function.numa_node


def _state(rdma: RdmaInterface) -> str:
    return f"{rdma.interface} ({rdma.device}) is {'active' if rdma.active else 'down'}, {len(rdma.addresses)} addresses"


def _compat(profile: Profile, host: FitTarget) -> _Rows:
    """If a fleet requires direct paths only, compat mode is disallowed once they are proven.

    A path that breaks later then causes an error, not a slow success.
    """
    if profile.mode == "compat" or not profile.storage or any(mount.path == "compat" for mount in profile.storage):
        return
    # Once compat mode is disallowed it stays so: to allow it again would hide a path that broke.
    now = host.facts.cufile.setting("properties", "allow_compat_mode", None)
    forbid = now is False or all(path.satisfies is True for path in _paths(profile, host.facts))
    if forbid and not (host.settled and now is True):
        yield ALLOW_COMPAT, False, "each mount was seen to take its path; from then on a broken one is an error"
    else:
        yield ALLOW_COMPAT, True, "not every mount was seen to take its path yet"


def _paths(profile: Profile, facts: HostFacts) -> tuple[MountPath, ...]:
    return storage_paths(facts, [(mount.mount, mount.path) for mount in profile.storage])


def _host_pool(profile: Profile, facts: HostFacts, release: Release) -> _Rows:
    """Halve the counts of the largest slabs until the pools of one process for each GPU fit into memory."""
    if isinstance(facts.memory, Unknown) or get(profile.cufile, SLAB_SIZES) or get(profile.cufile, SLAB_COUNTS):
        return
    release_keys = keys(release)
    sizes, counts = (list(release_keys[name].default_for(release)) for name in (SLAB_SIZES, SLAB_COUNTS))
    gpus = facts.pci.gpus if isinstance(facts.pci.gpus, tuple) else ()
    room = facts.memory // 1024 // _POOL_SHARE // max(1, len(gpus))
    before = list(counts)
    while _pool_size(sizes, counts) > room and max(counts) > 1:
        largest = max((i for i, count in enumerate(counts) if count > 1), key=lambda i: sizes[i] * counts[i])
        counts[largest] //= 2
    if counts != before:
        each = _pool_size(sizes, counts) >> 10
        why = f"{facts.memory >> 30} GiB of memory for {max(1, len(gpus))} processes: {each} MiB each"
        yield SLAB_SIZES, sizes, why
        yield SLAB_COUNTS, counts, why


def _pool_size(sizes: Sequence[int], counts: Sequence[int]) -> int:
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def _gpu_pool(profile: Profile, facts: HostFacts, release: Release) -> _Rows:
    """Limit pinned memory to the smallest BAR1, through which other devices reach a GPU's memory."""
    if profile.mode == "compat" or not isinstance(facts.pci.gpus, tuple):
        return
    windows = [sorted(gpu.bars.items())[1][1] >> 10 for gpu in facts.pci.gpus if len(gpu.bars) > 1]
    if not windows:
        return
    smallest = min(windows)
    source = f"BAR1 of {smallest >> 10} MiB"
    release_keys = keys(release)
    if get(profile.cufile, _PINNED) is None:
        yield _PINNED, smallest, source
    cache, buffer, batch = (
        get(profile.cufile, name) or release_keys[name].default_for(release) for name in (CACHE, BUFFER, BATCH)
    )
    share = smallest // _CACHE_SHARE // 64 * 64
    if isinstance(cache, int) and cache > share >= 64 and get(profile.cufile, CACHE) is None:
        yield CACHE, share, f"a quarter of the {source}"
        # 64 KiB is the smallest size, so a very small window holds fewer buffers than a batch has requests.
        each = max(share // batch // 64 * 64, 64) if isinstance(batch, int) else share
        if isinstance(buffer, int) and buffer > each and get(profile.cufile, BUFFER) is None:
            yield BUFFER, each, f"max_device_cache_size_kb for {batch} requests of a batch, for the {source}"


def _notes(profile: Profile, host: FitTarget) -> Iterator[str]:
    """Why compat mode stays allowed, and what the library would refuse on this host."""
    for key, allowed, _ in _compat(profile, host):
        paths = [path for path in _paths(profile, host.facts) if path.satisfies is not True]
        lacking = [f"{p.mount} takes {description(p)}" + (f" {proof_of(p)}" if p.proven else "") for p in paths]
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
