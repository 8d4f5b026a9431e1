"""A profile's cufile.json: the mode's switches, a compat policy, consistent sizes, values for one host, and over them
all the keys of the fleet file.

Pure: the same profile, library version and facts give the same text.  The values for one host are the addresses of its
RDMA interfaces, pools for its memory and BAR1, and a compat policy, each with its origin in words.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from gdsdeploy import resources
from gdsdeploy.cufile import model
from gdsdeploy.cufile.model import (
    ALLOW_COMPAT,
    BATCH,
    BUFFER,
    CACHE,
    GPU_COUNTS,
    GPU_SIZES,
    SLAB_COUNTS,
    SLAB_SIZES,
    Key,
    KeyPath,
    Release,
    check,
    get,
    keys,
    release_of,
)
from gdsdeploy.errors import FleetInvalid, HostUnfit
from gdsdeploy.host.facts import HostFacts, UndecidedError, Unknown
from gdsdeploy.host.facts.unknown import if_known, known
from gdsdeploy.host.libcufile import p2pdma
from gdsdeploy.host.subjects.cufile_json import given_keys, key_name
from gdsdeploy.host.subjects.path import MountPath, storage_paths
from gdsdeploy.host.subjects.pci import Function
from gdsdeploy.host.subjects.rdma import Address, RdmaInterface, devices, ports, refusal
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


#: dotted key → (value, its origin in words)
_Values = dict[str, tuple[Any, str]]


def fit(profile: Profile, host: FitTarget, release: Release) -> _Values:
    """The values that ``profile.fit`` requires on that host; raises HostUnfit, which names the missing fact."""
    assert profile.fit is not None
    facts = host.facts
    rows = [*_addresses(profile, facts, host.name, release), *_fit_compat(profile, host)]
    if profile.fit.pools:
        rows += [*_host_pool(profile, facts, release), *_gpu_pool(profile, facts, release)]
    return {key: (value, source) for key, value, source in rows if key in keys(release)}


#: (dotted key, value, origin)
_Rows = Iterator[tuple[str, Any, str]]


def _addresses(profile: Profile, facts: HostFacts, host: str, release: Release) -> _Rows:
    assert profile.fit is not None
    which, versions = profile.fit.addresses, _VERSIONS[profile.fit.family]
    if which == "none":
        return
    try:
        interfaces = facts.network.rdma
    except UndecidedError as error:
        raise HostUnfit(
            f"{host}: its RDMA interfaces are unknown: {error}",
            hint="Install iproute2 there, or write the addresses into the fleet file (cufile, properties)",
        ) from None
    taken = {
        interface: [
            one for one in interface.addresses if one.parsed.version in versions and not refusal(one.address, release)
        ]
        for interface in interfaces
        if interface.active
    }
    usable = [(interface, addresses) for interface, addresses in taken.items() if addresses]
    if not usable and profile.fit.family == "any":
        # InfiniBand needs no network interface, and newer libraries find an adapter by its name.
        alone = devices(port for port in ports(facts) if port.layer == "InfiniBand" and not port.interfaces)
        usable = [(each, []) for each in alone if each.active and not refusal(each.device, release)]
    if not usable:
        without = [f"{each.device} has no network interface" for each in devices(ports(facts))]
        states = "; ".join([*map(_state, interfaces)] or without) or "it has no RDMA device"
        raise HostUnfit(
            f"{host}: no RDMA interface is active and has an address ({profile.fit.family}): {states}",
            hint="Configure one on the host, or set fit.addresses of its profile to none",
        )
    chosen = usable if which == "all" else {"rail": _rails, "near": _near}[which](usable, facts)
    names = ", ".join(f"{each.interface} ({each.device})" if each.interface else each.device for each, _ in chosen)
    rule = {"all": "every active RDMA interface", "rail": "one for each network", "near": "the nearest to each GPU"}
    # Each once: the members of a bond have its address.
    values = list(dict.fromkeys(addresses[0].address if addresses else each.device for each, addresses in chosen))
    yield ADDRESSES, values, f"{rule[which]} of {host}: {names}"


_Usable = Sequence[tuple[RdmaInterface, Sequence[Address]]]


def _rails(usable: _Usable, _facts: HostFacts) -> _Usable:
    """Interfaces with a network in common are one rail; the first one serves it."""
    chosen: list[tuple[RdmaInterface, Sequence[Address]]] = []
    served: set[str] = set()
    for interface, addresses in usable:
        networks = {str(address.parsed.network) for address in addresses}
        if not networks & served:
            chosen.append((interface, addresses))
        served |= networks
    return chosen


def _near(usable: _Usable, facts: HostFacts) -> _Usable:
    """For each GPU the interfaces with the most shared bridges; if it shares none, those of its NUMA node."""
    gpus = known(lambda: facts.pci.gpus)
    if isinstance(gpus, Unknown) or not gpus:
        reason = gpus.reason if isinstance(gpus, Unknown) else "it has no GPU"
        raise HostUnfit(f"{facts.name}: no RDMA interface is near a GPU: {reason}", hint="Set fit.addresses to all")
    functions = {interface.device: facts.pci.find(interface.pci) for interface, _ in usable}
    nearest: set[str] = set()
    for gpu in gpus:
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


def _fit_compat(profile: Profile, host: FitTarget) -> _Rows:
    """If a fleet requires direct paths only, compat mode is disallowed once they are proven.

    A path that breaks later then causes an error, not a slow success.
    """
    if profile.mode == "compat" or not profile.storage or any(mount.path == "compat" for mount in profile.storage):
        return
    # Once compat mode is disallowed it stays so: to allow it again would hide a path that broke.
    now = if_known(lambda: host.facts.cufile.setting("properties", "allow_compat_mode", None), None)
    forbid = now is False or all(path.satisfies is True for path in _paths(profile, host.facts))
    if forbid and not (host.settled and now is True):
        yield ALLOW_COMPAT, False, "each mount was seen to take its path; from then on a broken one is an error"
    else:
        yield ALLOW_COMPAT, True, "not every mount was seen to take its path yet"


def _paths(profile: Profile, facts: HostFacts) -> tuple[MountPath, ...]:
    return tuple(storage_paths(facts, [(mount.mount, mount.path) for mount in profile.storage]))


def _host_pool(profile: Profile, facts: HostFacts, release: Release) -> _Rows:
    """Halve the counts of the largest slabs until the pools of one process for each GPU fit into memory."""
    memory = if_known(lambda: facts.memory, None)
    if memory is None or get(profile.cufile, SLAB_SIZES) or get(profile.cufile, SLAB_COUNTS):
        return
    release_keys = keys(release)
    sizes, counts = (list(release_keys[name].default_for(release)) for name in (SLAB_SIZES, SLAB_COUNTS))
    gpus = if_known(lambda: facts.pci.gpus, ())
    room = memory // 1024 // _POOL_SHARE // max(1, len(gpus))
    before = list(counts)
    while _pool_size(sizes, counts) > room and max(counts) > 1:
        largest = max((i for i, count in enumerate(counts) if count > 1), key=lambda i: sizes[i] * counts[i])
        counts[largest] //= 2
    if counts != before:
        each = _pool_size(sizes, counts) >> 10
        why = f"{memory >> 30} GiB of memory for {max(1, len(gpus))} processes: {each} MiB each"
        yield SLAB_SIZES, sizes, why
        yield SLAB_COUNTS, counts, why


def _pool_size(sizes: Sequence[int], counts: Sequence[int]) -> int:
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def _gpu_pool(profile: Profile, facts: HostFacts, release: Release) -> _Rows:
    """Limit pinned memory to the smallest BAR1, through which other devices reach a GPU's memory."""
    smallest = _smallest_bar1(facts)
    if profile.mode == "compat" or smallest is None:
        return
    source = f"BAR1 of {smallest >> 10} MiB"
    release_keys = keys(release)
    if get(profile.cufile, _PINNED) is None:
        yield _PINNED, smallest, source
    if _slabs(profile, release):
        return
    cache, batch = (get(profile.cufile, name) or release_keys[name].default_for(release) for name in (CACHE, BATCH))
    buffer = get(profile.cufile, BUFFER) or _request_and_buffer(profile, release)[1]
    share = smallest // _CACHE_SHARE // 64 * 64
    if isinstance(cache, int) and cache > share >= 64 and get(profile.cufile, CACHE) is None:
        yield CACHE, share, f"a quarter of the {source}"
        # 64 KiB is the smallest size, so a very small window holds fewer buffers than a batch has requests.
        each = max(share // batch // 64 * 64, 64) if isinstance(batch, int) else share
        if isinstance(buffer, int) and buffer > each and get(profile.cufile, BUFFER) is None:
            yield BUFFER, each, f"max_device_cache_size_kb for {batch} requests of a batch, for the {source}"


def _smallest_bar1(facts: HostFacts) -> int | None:
    """In KiB; None: no GPU shows one."""
    gpus = if_known(lambda: facts.pci.gpus, ())
    return min((sorted(gpu.bars.items())[1][1] >> 10 for gpu in gpus if len(gpu.bars) > 1), default=None)


def _slabs(profile: Profile, release: Release) -> int:
    """KiB of each GPU for the profile's slabs of bounce buffers, which replace the cache and its one size; 0: none."""
    sizes, counts = (get(profile.cufile, name) for name in (GPU_SIZES, GPU_COUNTS))
    whole = GPU_SIZES in keys(release) and all(
        isinstance(one, list) and all(isinstance(number, int) for number in one) for one in (sizes, counts)
    )
    return _pool_size(sizes, counts) if whole and len(sizes) == len(counts) else 0


def _notes(profile: Profile, host: FitTarget, release: Release) -> Iterator[str]:
    """Why compat mode stays allowed, what doesn't fit a GPU, and what the library would refuse on this host."""
    slabs, bar1 = _slabs(profile, release), _smallest_bar1(host.facts)
    if bar1 is not None and slabs > bar1 // _CACHE_SHARE and profile.mode != "compat":
        much = f"takes {slabs >> 10} MiB of each GPU, and a quarter of the BAR1 of {host.name} is"
        yield f"{GPU_SIZES.rpartition('.')[0]} {much} {bar1 // _CACHE_SHARE >> 10} MiB"
    for key, allowed, _ in _fit_compat(profile, host):
        paths = [path for path in _paths(profile, host.facts) if path.satisfies is not True]
        lacking = [f"{p.mount} takes {p.description}" + (f" {p.how}" if p.proven else "") for p in paths]
        if allowed:
            yield f"{key} stays true on {host.name} until its paths are proven: {'; '.join(lacking)}"
        elif lacking:
            yield f"{key} is false on {host.name}, and not every path works: {'; '.join(lacking)}"
    mounts = if_known(lambda: host.facts.storage.mounts, None)
    if mounts is None:
        return
    for key in ["denylist.mounts", *(f"fs.{name}.mount_table" for name in profile.cufile.get("fs", {}))]:
        for mount in get(profile.cufile, key) or ():
            if mount not in mounts:
                yield f"{key}: {mount} is not mounted on {host.name}; libcufile refuses a file if a folder is missing"


#: Where the library looks first.
PATH = "/etc/cufile.json"
#: Every process writes a separate file there, so the folder has to be writable like /tmp (mode 1777).
LOG_DIR = "/var/log/cufile"

#: Different files that are kept: a fleet has one for each profile, and one for each host where it's fitted.
KINDS = 1024

Variant = Literal["host", "container", "user"]

_PEER_TYPE = {"peermem": "nvidia_peermem", "dmabuf": "dmabuf"}


@dataclass(frozen=True)
class Rendered:
    """A configuration: its text, its values, and notes about the host."""

    text: str
    document: Mapping[str, Any]
    #: dotted key → the origin of its value
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def render(name: str, profile: Profile, libcufile: str, host: FitTarget | None = None) -> str:
    """The text of /etc/cufile.json for the profile ``name`` under that version of libcufile; see ``rendered``."""
    return render_profile(name, profile, libcufile, host).text


def render_profile(
    name: str, profile: Profile, libcufile: str, host: FitTarget | None = None, *, variant: Variant = "host"
) -> Rendered:
    """The file of the profile ``name`` under that version of libcufile.

    host: needed if ``profile.fit`` is set, and ignored otherwise.
    variant: ``container`` and ``user`` are for CUFILE_ENV_PATH_JSON, which overlays /etc/cufile.json with a file.
    Raises FleetInvalid with every problem, each with the profile and the key, and HostUnfit if a necessary fact about
    the host is unknown.
    """
    release = release_of(libcufile)
    if release < model.OLDEST:
        oldest = model.release_text(model.OLDEST)
        raise FleetInvalid(
            f"profiles.{name}.libcufile: {libcufile} is older than {oldest}, the oldest release whose keys are known",
            hint="Pin a newer libcufile and run `gdsdeploy lock`",
        )
    values = _defaults(profile, libcufile, release)
    if profile.fit is not None:
        if host is None:
            raise FleetInvalid(f"profiles.{name}.fit: this file differs between hosts, and no host is named")
        values |= fit(profile, host, release)
    result = _overlay(_nest({key: value for key, (value, _) in values.items()}), profile.cufile)
    sources = {key: source for key, (_, source) in values.items()}
    sources |= {key: f"the fleet file, profile {name}" for key, _ in given_keys(profile.cufile)}
    if variant == "container" and get(profile.cufile, "logging.dir") is None:
        result["logging"]["dir"], sources["logging.dir"] = "/tmp", "a folder that every image has"  # noqa: S108 # nosec B108
    text, problems = _file(json.dumps(result), json.dumps(sources), tuple(usage(profile, variant)), release)
    _refuse(name, profile, libcufile, release, problems)
    notes = _notes(profile, host, release) if profile.fit is not None and host is not None else ()
    return Rendered(text, result, sources, tuple(notes))


@functools.lru_cache(maxsize=KINDS)
def _file(
    values: str, sources: str, head: tuple[str, ...], release: Release
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The file with these values, which hosts of a kind share; or (key of the profile, message) of each problem.

    values, sources: as JSON, in their order.
    """
    document = json.loads(values)
    problems = tuple((f"cufile.{problem.key}".rstrip("."), problem.message) for problem in check(document, release))
    if problems:
        return "", problems
    entries = _entries(document, (), keys(release), json.loads(sources))
    return _template().render(entries=entries, usage=head), ()


def usage(profile: Profile, variant: Variant) -> list[str]:
    """The comment at the head of the file: how a program gets it."""
    if variant == "host":
        return []
    lines = ["libcufile reads /etc/cufile.json first, and lays the file of this variable over it, key by key:"]
    if variant == "user":
        return [*lines, "    export CUFILE_ENV_PATH_JSON=$HOME/.config/cufile.json"]
    place = "/etc/gdsdeploy/cufile.json"
    options = [f"--volume ./cufile.json:{place}:ro", f"--env CUFILE_ENV_PATH_JSON={place}", "--gpus all"]
    if profile.mode == "nvidia-fs":
        # The module and its devices are the host's; a container sees /proc/driver/nvidia-fs by itself.
        options += [f"--device /dev/nvidia-fs{number}" for number in range(16)]
    if profile.rdma != "none":
        options += ["--device /dev/infiniband", "--ulimit memlock=-1"]
    # Without udev's database cuFileHandleRegister fails with 5027.
    options.append("--volume /run/udev:/run/udev:ro")
    options += [f"--volume {mount.mount}:{mount.mount}" for mount in profile.storage]
    return [*lines, *(f"    {option}" for option in options)]


def _refuse(name: str, profile: Profile, libcufile: str, release: Release, refused: Sequence[tuple[str, str]]) -> None:
    """Raise FleetInvalid with what contradicts the mode, and with what the library would refuse beside it."""
    problems = _against_mode(profile, libcufile, release)
    contradictory = {key for key, _ in problems}
    problems += [(key, message) for key, message in refused if key not in contradictory]
    if problems:
        lines = [f"profiles.{name}.{key}: {message}" for key, message in problems]
        hint = f"The keys and limits are those of libcufile {libcufile}, which the lock has for this profile"
        raise FleetInvalid("\n".join(lines), hint=hint)


def log_dir(profile: Profile) -> str:
    """The profile's folder of log files; if it's missing, every release refuses to work at all."""
    return str(get(profile.cufile, "logging.dir") or LOG_DIR)


def _defaults(profile: Profile, libcufile: str, release: Release) -> _Values:
    """The values for keys that the fleet file doesn't set, and their origins."""
    release_keys = keys(release)
    largest, buffer = _request_and_buffer(profile, release)
    own, mode = f"the default of libcufile {libcufile}", f"the mode {profile.mode}"
    values: _Values = {
        "logging.dir": (log_dir(profile), "gdsdeploy's own folder"),
        "logging.level": ("ERROR", own),
        model.ALLOW_COMPAT: _compat(profile),
        model.FORCE_COMPAT: (profile.mode == "compat", mode),
        model.LARGEST: (largest, own),
        model.BUFFER: (buffer, own),
    }
    if model.P2PDMA in release_keys:
        values[model.P2PDMA] = (profile.mode == "p2pdma", mode)
    if model.NVME_P2PDMA in release_keys and profile.mode == "p2pdma":
        # A profile says nothing about other kinds of storage; the fleet file adds their keys.
        values[model.NVME_P2PDMA] = (True, mode)
    if profile.cufile_stats:
        values[model.STATISTICS] = (profile.cufile_stats, f"cufile_stats: {profile.cufile_stats}")
    if profile.rdma != "none":
        values["properties.rdma_peer_type"] = (_PEER_TYPE[profile.rdma], f"rdma: {profile.rdma}")
    return values


def _request_and_buffer(profile: Profile, release: Release) -> tuple[Any, int]:
    """max_direct_io_size_kb, and the buffer for it where the profile sets none."""
    release_keys = keys(release)
    largest = get(profile.cufile, model.LARGEST) or release_keys[model.LARGEST].default_for(release)
    buffer: int = release_keys[model.BUFFER].default_for(release)
    # From 1.13 on a buffer larger than a request is fatal, and the library's own default may be larger.
    return largest, min(buffer, largest) if isinstance(largest, int) and largest >= 64 else buffer


def _compat(profile: Profile) -> tuple[bool, str]:
    """Compat mode is disallowed only if every mount requires a direct path."""
    if profile.mode == "compat":
        return True, "the mode compat"
    compat = [mount.mount for mount in profile.storage if mount.path == "compat"]
    if compat or not profile.storage:
        return True, f"compat is good enough for {', '.join(compat)}" if compat else "the fleet file lists no mount"
    return False, "every mount of the fleet file asks for a direct path"


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        section_values = result
        for section in sections:
            section_values = section_values.setdefault(section, {})
        section_values[last] = value
    return result


def _against_mode(profile: Profile, libcufile: str, release: Release) -> list[tuple[str, str]]:
    """Contradictions in the profile: (key of the profile, message)."""
    problems: list[tuple[str, str]] = []
    if profile.mode == "p2pdma" and model.P2PDMA not in keys(release):
        since = model.known_keys()[model.P2PDMA].since
        problems.append(("mode", f"p2pdma needs libcufile {since} or newer; the lock has {libcufile}"))
    value = get(profile.cufile, model.P2PDMA)
    if isinstance(value, bool) and model.P2PDMA in keys(release) and value != (profile.mode == "p2pdma"):
        message = f"contradicts mode: {profile.mode}, which sets this key; change the mode instead"
        problems.append((f"cufile.{model.P2PDMA}", message))
    level = get(profile.cufile, model.STATISTICS)
    if level not in (None, 3, profile.cufile_stats):
        # Other processes can read paths at level 3 only, and from 1.16 on nothing at 1 and 2.
        message = "must be 0 or 3, and as cufile_stats of the profile, which sets this key; remove it here"
        problems.append((f"cufile.{model.STATISTICS}", message))
    if profile.mode != "p2pdma":
        own = (row.name for row in p2pdma.keys_for(min(release, model.NEWEST)))
        message = f"contradicts mode: {profile.mode}, which rules this path out; change the mode instead"
        problems += [(f"cufile.{key}", message) for key in own if get(profile.cufile, key) is True]
    if profile.mode == "compat":
        problems += [
            ("storage", f"{mount.mount}: mode: compat has no {mount.path} path; write path: compat or change the mode")
            for mount in profile.storage
            if mount.path != "compat"
        ]
    return problems


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` merged into ``below`` key by key, as the library merges a second file into the first."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = _overlay(inner, value) if both and inner is not None else value
    return result


def _entries(
    content: Mapping[str, Any], path: KeyPath, release_keys: Mapping[str, Key], sources: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One object for the template, in the order of keys.yml: values as JSON, sections as entries."""

    def place(name: str) -> int:
        places = (at for at, key in enumerate(release_keys) if f"{key}.".startswith(key_name((*path, name)) + "."))
        return next(places, len(release_keys))

    result: list[dict[str, Any]] = []
    for name in sorted(content, key=place):
        value, full_name = content[name], key_name((*path, name))
        key = release_keys.get(full_name)
        section = key is None and isinstance(value, Mapping)
        inner = _entries(value, (*path, name), release_keys, sources) if section else None
        if inner == []:
            continue
        unit = f"[{key.unit}] " if key and key.unit else ""
        result.append(
            {
                "key": json.dumps(name),
                "value": json.dumps(value),
                "entries": inner,
                "meaning": unit + key.meaning if key else None,
                # A host's facts may contain line ends, after which the rest would not be a comment.
                "source": " ".join(sources.get(full_name, "").split()),
            }
        )
    return result


@functools.cache
def _template() -> Template:
    # JSON is not HTML: each value is encoded by json.dumps before it gets here.
    loader = FileSystemLoader(resources.templates())
    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 # nosec B701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("cufile.json.j2")
