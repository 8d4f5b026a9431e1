"""The path that I/O on a mount takes, or that of a kind of storage or of a running program, and what rules out others.

From all evidence on the host; that isn't proof.  Proof is an I/O that was seen to take the path (host/proof/proof.py);
it needs a GPU.  Of a running process, the counters are all since it opened cuFile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict, require
from ..facts.unknown import any_of, if_known, known, or_else
from ..foreign import ForeignInstall, Locked, findings
from ..gdscheck.reader import SINCE
from ..libcufile.counters import NOT_COUNTED, REASONS, Observed, Route, route
from ..subjects import cufile_json, filesystem, libcufile, mechanisms, nvidia_fs, reference, storage
from ..subjects.condition import (
    BROKEN,
    COMPAT,
    DIRECT,
    DIRECT_PATH,
    NOTES,
    NVIDIA_FS,
    P2PDMA,
    USABLE,
    Cause,
    Condition,
    Verdict,
    distinct,
    needs,
    numbers,
    ranked,
    weigh,
)
from ..subjects.cufile_json import VARIABLE, p2pdma_keys, requests_p2pdma
from ..subjects.environment import Variable
from ..subjects.filesystem import NATIVE, NETWORK
from ..subjects.libcufile import registers_silently
from ..subjects.processes import Program
from ..subjects.proof import Proof
from ..subjects.rdma import CLIENTS
from ..subjects.storage import Mount


@dataclass(frozen=True)
class Path:
    """``path``: one of DIRECT, ``compat`` or ``broken``; unknown where the evidence isn't conclusive."""

    path: Maybe[str]
    #: why there is no direct path, the root cause first
    causes: Tuple[Cause, ...]
    #: whether the host has a GPU; without one nothing can be proven
    gpu: Maybe[bool]
    #: what may prevent the direct path, where ``path`` is unknown because of it
    suspects: Tuple[Cause, ...] = ()
    #: why the unknown facts are unknown
    unseen: Tuple[str, ...] = ()
    #: what slows the direct path down, or excludes some files or GPUs from it
    notes: Tuple[Cause, ...] = ()
    #: what a read through cuFile showed, with each GPU; empty where none was tried
    proofs: Tuple[Proof, ...] = ()

    @property
    def proven(self) -> Optional[Maybe[str]]:
        """The worst path that was proven with any GPU, unknown where one was not proven; None: nothing was tried."""
        shown = [proof.path for proof in self.proofs]
        for path in (BROKEN, COMPAT):
            if path in shown:
                return path
        return next((path for path in shown if isinstance(path, Unknown)), shown[0] if shown else None)

    @property
    def surprise(self) -> str:
        """How the proven path differs from the expected one; empty where they agree or one is unknown."""
        proven = self.proven
        if proven is None or isinstance(proven, Unknown) or isinstance(self.path, Unknown) or proven == self.path:
            return ""
        return f"all other evidence on this host says {self.path}, but I/O shows {proven}"


def path_of(facts: HostFacts, mount: Mount, file: str = "") -> Path:
    """Judge one mount, or ``file`` on it where that isn't the whole mount."""
    proofs = facts.storage.proofs.get(mount.mount_point, ())
    return replace(_expected_path(facts, mount, file), proofs=tuple(_as_configured(facts, proof) for proof in proofs))


def _as_configured(facts: HostFacts, proof: Proof) -> Proof:
    """Programs get what the host's configuration allows, which the second try of a proof may exceed."""
    if proof.path == COMPAT and cufile_json.fallback(facts).holds is False:
        return replace(proof, path=BROKEN, how=proof.how + "; but this host's configuration disallows it")
    return proof


def _expected_path(facts: HostFacts, mount: Mount, file: str) -> Path:
    gpu = _has_gpu(facts)
    usable = weigh(needs(USABLE, facts, mount))
    name, verdict = _direct(facts, mount, file)
    if usable.holds is False:
        # Also show the obstacles to the direct path: the operator can then repair everything at once.
        return Path(BROKEN, distinct((*usable.causes, *verdict.causes)), gpu, verdict.suspects, usable.unseen)
    if name is None:
        path, causes = _or_compat(facts, verdict.causes)
        path = usable.holds if isinstance(usable.holds, Unknown) and path != BROKEN else path
        notes = registers_silently(facts) if path == COMPAT else ()
        return Path(path, causes, gpu, unseen=usable.unseen, notes=notes)
    if isinstance(usable.holds, Unknown):
        name = usable.holds
    unseen = tuple(dict.fromkeys((*usable.unseen, *verdict.unseen)))
    notes = tuple(note for function in ranked(NOTES) for note in function(facts, mount))
    return Path(name, verdict.causes, gpu, verdict.suspects, unseen, notes)


def _has_gpu(facts: HostFacts) -> Maybe[bool]:
    return known(lambda: bool(facts.pci.gpus))


def _or_compat(facts: HostFacts, causes: Tuple[Cause, ...]) -> Tuple[Maybe[str], Tuple[Cause, ...]]:
    """The path where there is no direct one, with its causes."""
    allowed = cufile_json.fallback(facts)
    if isinstance(allowed.holds, Unknown):
        return allowed.holds, causes
    return (COMPAT, causes) if allowed.holds else (BROKEN, (*causes, allowed.cause) if allowed.cause else causes)


def _direct(facts: HostFacts, mount: Mount, file: str) -> Tuple[Maybe[Optional[str]], Verdict]:
    """The direct path that is taken, None if there is none.  P2PDMA, where configured, comes first."""
    shared = [*needs(DIRECT_PATH, facts, mount)]
    if file and mount.filesystem in filesystem.LOCAL:
        unseen = Unknown(f"the evidence doesn't show the flags of {file}")
        shared += filesystem.flag_conditions(file, facts.storage.inodes.get(file, unseen))
    attempts = [(NVIDIA_FS, list(needs(NVIDIA_FS, facts, mount)))]
    client = CLIENTS.get(mount.filesystem)
    configured = Condition(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)))
    if client is not None:
        attempts = mechanisms.attempts(facts, client, mount)
    elif mount.filesystem == filesystem.PANFS:
        # The rules about DIRECT say what is known: not whether nvidia-fs has a part in it.
        attempts = [(NVIDIA_FS, [])]
    elif configured.holds is not False:
        attempts.insert(0, (P2PDMA, [configured, *needs(P2PDMA, facts, mount)]))
    return _decide(shared, attempts)


def _decide(
    shared: List[Condition], attempts: Sequence[Tuple[str, List[Condition]]]
) -> Tuple[Maybe[Optional[str]], Verdict]:
    """The first of (path, its conditions) that holds, beside those of all; unknown from the first that may."""
    causes: List[Cause] = []
    undecided: Optional[Verdict] = None
    for name, conditions in attempts:
        verdict = weigh([*shared, *conditions])
        if verdict.holds is True:
            if undecided is None:
                return name, verdict
            break
        if isinstance(verdict.holds, Unknown):
            undecided = undecided or verdict
        causes += verdict.causes
    if undecided is not None and isinstance(undecided.holds, Unknown):
        return undecided.holds, replace(undecided, causes=distinct(causes))
    return None, Verdict(False, distinct(causes))


#: Variables that choose no path; VARIABLE's file is compared instead of its name.
NEUTRAL = (VARIABLE, "CUFILE_LOGFILE_PATH", "CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_MAX_SIZE_MB", "CUFILE_STATS_LEVEL")


@dataclass(frozen=True)
class ExplainedProgram:
    """``causes`` keep its I/O off every direct path, or make it fail; ``unseen`` is what couldn't be judged."""

    program: Program
    #: whether its configuration differs from the default one
    differs: Maybe[bool]
    causes: Tuple[Cause, ...]
    unseen: Tuple[str, ...]


def programs(facts: HostFacts, mounts: Sequence[Mount] = ()) -> Tuple[ExplainedProgram, ...]:
    """Every program that has loaded libcufile.  mounts: those for which its denylist is judged.

    Raises UndecidedError where the programs aren't known.
    """
    return tuple(explain_program(facts, mounts, program) for program in facts.processes.programs)


def explain_program(facts: HostFacts, mounts: Sequence[Mount], program: Program) -> ExplainedProgram:
    """One program.  mounts: those for which its denylist is judged."""
    own = _facts_of(facts, program)
    conditions: List[Condition] = [*cufile_json.overlay_usable(own), *cufile_json.direct(own, None)]
    for mount in mounts:
        conditions += cufile_json.direct(own, mount)
        client = CLIENTS.get(mount.filesystem)
        # Where the program has the host's own choice, the mount's path has the cause.
        if client and not client.hooks and _peer_type(own) != _peer_type(facts):
            conditions += mechanisms.memory(own)
    verdict = weigh(conditions)
    differs = known(lambda: _differs(facts, own))
    return ExplainedProgram(program, differs, distinct(verdict.causes), verdict.unseen)


def _peer_type(facts: HostFacts) -> Maybe[str]:
    return known(lambda: mechanisms.peer_type(facts))


def _facts_of(facts: HostFacts, program: Program) -> HostFacts:
    """The host's facts with the configuration and the variables of the program."""
    base, over, named = known(lambda: program.base), known(lambda: program.overlay), known(lambda: program.variables)
    place = f"the environment of process {program.pid}"
    variables = {name: Variable(name, value, place, f"{name}={value}") for name, value in or_else(named, {}).items()}
    complete = named if isinstance(named, Unknown) else True
    return facts.but(
        cufile=facts.cufile.but(config=base, overlay=over, path=program.base_path),
        environment=facts.environment.but(variables=variables, complete=complete),
    )


def _differs(facts: HostFacts, own: HostFacts) -> bool:
    default, mine = facts.cufile.merged, own.cufile.merged
    # Both are true, or raise.
    is_whole = own.environment.complete and facts.environment.complete
    return is_whole and (default != mine or _counting(own) != _counting(facts))


def _counting(facts: HostFacts) -> Dict[str, str]:
    return {name: variable.value for name, variable in facts.environment.variables.items() if _counts(name)}


def _counts(name: str) -> bool:
    return name.startswith("CUFILE_") and name not in NEUTRAL


def is_listed(explained: ExplainedProgram) -> bool:
    """Whether an explanation shows it: it differs, or that is unknown."""
    return bool(explained.causes) or explained.differs is not False


def configuration(program: Program) -> str:
    """The files of its configuration and the variables over them, in words."""
    over = known(lambda: program.overlay)
    more = [f"({over.reason})"] if isinstance(over, Unknown) else [over.path] if over else []
    variables = if_known(lambda: program.variables, {})
    more += [f"{name}={value}" for name, value in variables.items() if _counts(name)]
    return program.base_path + (" with " + ", ".join(more) if more else "")


def versions(program: Program) -> List[str]:
    """Each libcufile that it has loaded: its file, and its version where that is known."""
    shown = {path: or_else(version, "") for path, version in program.libraries.items()}
    return [f"{path} ({version})" if version else path for path, version in shown.items()]


def as_row(explained: ExplainedProgram) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program = explained.program
    return {
        **_about(program),
        "container": if_known(lambda: program.container, None),
        "differs": or_else(explained.differs, None),
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


def _about(program: Program) -> Dict[str, Any]:
    return {
        "pid": program.pid,
        "program": program.name,
        "unit": program.unit,
        "libcufile": {path: or_else(version, None) for path, version in program.libraries.items()},
        "configuration": configuration(program),
    }


class NoSuchProcessError(Exception):
    """No process of that id has libcufile loaded, as far as the evidence shows."""


@dataclass(frozen=True)
class ExplainedProcess:
    """``causes`` keep its I/O off a direct path, or may; the first ones are of the process itself."""

    program: Program
    route: Route
    causes: Tuple[Cause, ...]
    #: path of each of its files on a mount of this host, as the host allows it
    files: Tuple[Tuple[str, str], ...]
    unseen: Tuple[str, ...]


def explain_process(facts: HostFacts, pid: int) -> ExplainedProcess:
    """Explain the process; raises NoSuchProcessError."""
    running = known(lambda: facts.processes.programs)
    if isinstance(running, Unknown):
        raise NoSuchProcessError(f"running programs are not known: {running.reason}")
    for program in running:
        if program.pid == pid:
            return _explain(facts, program)
    pids = ", ".join(str(program.pid) for program in running) or "none"
    raise NoSuchProcessError(f"process {pid} has no libcufile loaded (processes that have: {pids})")


def mounts_at(facts: HostFacts, paths: Iterable[str]) -> List[Mount]:
    """The mounts that the paths lie on, where that is known."""
    mounts = [if_known(partial(facts.storage.mount_of, path), None) for path in paths]
    return [mount for mount in mounts if mount is not None]


def _explain(facts: HostFacts, program: Program) -> ExplainedProcess:
    # In a container, the same mount point is another mount.
    is_own = if_known(lambda: program.container, True) is False
    mounts = mounts_at(facts, dict.fromkeys(file.mount for file in program.files)) if is_own else []
    own = explain_program(facts, mounts, program)
    paths = {mount.mount_point: path_of(facts, mount) for mount in mounts}
    of_mounts = [cause for path in paths.values() for cause in (*path.causes, *path.suspects)]
    way = route(Observed(program.counters))
    causes = [*_own(facts, program, way), *own.causes, *of_mounts]
    files = []
    for file in program.files:
        path = paths.get(file.mount)
        files.append((file.path, "not judged" if path is None else or_else(path.path, "not proven")))
    return ExplainedProcess(program, way, distinct(causes), tuple(files), own.unseen)


def _own(facts: HostFacts, program: Program, way: Route) -> Iterator[Cause]:
    label = f"/proc/{program.pid}"
    if not if_known(lambda: program.nvidia_fs, True):
        what = "the process has no /dev/nvidia-fs* open, so its I/O can't take nvidia-fs"
        fix = "load nvidia-fs, give a container its devices (docs/containers.md), and start it again"
        yield Cause("process.no-nvidia-fs", what, fix, (f"{label}/fd: no /dev/nvidia-fs*",), reference.COMPATIBILITY)
    yield from _libraries(facts, program)
    if way.unaligned:
        what = f"{way.unaligned} of its operations had an offset, a size or memory that wasn't aligned to 4 KiB"
        fix = "align them to 4 KiB in the program; see also properties.allow_compat_mode"
        yield Cause("process.unaligned", what, fix, (f"{label}: statistics of libcufile",), reference.COMPATIBILITY)
    if way.path == NOT_COUNTED:
        why, fix = REASONS[way.reason]
        evidence = (f"{label}: {way.reason}",)
        yield Cause("process.not-counted", f"which path it takes isn't counted: {why}", fix, evidence)


def _libraries(facts: HostFacts, program: Program) -> Iterator[Cause]:
    """A copy of its own; the release that a host was validated with says nothing about it."""
    of_host = if_known(lambda: facts.cufile.library, None)
    for path, version in program.libraries.items():
        if of_host is not None and not isinstance(version, Unknown) and not (version + ".").startswith(of_host + "."):
            what = f"it runs a libcufile of its own: {version}, and the host's is {of_host}"
            fix = "install the host's release in that environment or image, or remove the copy there"
            yield Cause("process.own-libcufile", what, fix, (f"/proc/{program.pid}/maps: {path}",))


def process_document(explained: ExplainedProcess) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program, way = explained.program, explained.route
    return {
        "version": 1,
        **_about(program),
        "path": way.path,
        "reason": way.reason,
        "operations": dict(way.operations),
        "read_bytes": way.read,
        "written_bytes": way.written,
        "bounced_bytes": way.bounced,
        "files": [{"path": path, "mount_path": name} for path, name in explained.files],
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


#: What a fleet requires → the paths that satisfy it.
SATISFIES = {
    "direct": DIRECT,
    "nvidia-fs": ("nvidia-fs",),
    "p2pdma": ("p2pdma",),
    "compat": (COMPAT, *DIRECT),
}
#: ``path_name`` where nothing is mounted.
NONE = "none"


@dataclass(frozen=True)
class MountPath:
    """One mount of a fleet, as a host has it.

    ``path_name`` is the proven path, else the expected one, ``none`` where nothing is mounted, unknown where the
    evidence isn't conclusive.  ``satisfies`` is also unknown for a direct path that is expected and was not proven.
    """

    mount: str
    #: what the fleet requires, a key of SATISFIES
    requirement: str
    path_name: Maybe[str]
    #: whether a read through cuFile showed ``path_name``
    proven: bool
    satisfies: Maybe[bool]
    #: both are None where nothing is mounted, or where that is unknown
    mounted: Optional[Mount] = None
    path: Optional[Path] = None


def storage_paths(facts: HostFacts, requirements: Iterable[Tuple[str, str]]) -> Tuple[MountPath, ...]:
    """Judge mounts, in their order.  requirements: (mount point, what the fleet requires)."""
    return tuple(_judge(facts, mount, path) for mount, path in requirements)


def description(mount_path: MountPath) -> str:
    """The path and what rules out a better one, without how that was proven."""
    path_name, path = mount_path.path_name, mount_path.path
    if isinstance(path_name, Unknown):
        return path_name.reason
    if path is None:
        return "nothing is mounted there"
    if isinstance(mount_path.satisfies, Unknown):
        return f"{path_name} is expected, and not proven: {mount_path.satisfies.reason}"
    if path_name not in (COMPAT, BROKEN) or not path.causes:
        return path_name
    others = f" (and {len(path.causes) - 1} more, see the evidence)" if path.causes[1:] else ""
    return f"{path_name}: {path.causes[0].what}{others}"


def proof_of(mount_path: MountPath) -> str:
    """How ``path_name`` was proven or why it was not, in parentheses; empty where the path is unknown."""
    path = mount_path.path
    if path is None:
        return ""
    if mount_path.proven:
        tried = dict.fromkeys(f"a {name}" for proof in path.proofs for name in proof.operations)
        surprise = f"; {path.surprise}" if path.surprise else ""
        return "(proven by {} through cuFile{})".format(" and ".join(tried), surprise)
    for unknown in (path.proven, path.gpu):
        if isinstance(unknown, Unknown):
            return f"(not proven: {unknown.reason})"
    return "(not proven: no I/O was tried)" if path.gpu is True else "(not proven: this host has no GPU)"


def _judge(facts: HostFacts, mount: str, requirement: str) -> MountPath:
    mounts = known(lambda: facts.storage.mounts)
    if isinstance(mounts, Unknown):
        return MountPath(mount, requirement, mounts, proven=False, satisfies=mounts)
    mounted = mounts.get(mount)
    if mounted is None:
        return MountPath(mount, requirement, NONE, proven=False, satisfies=False)
    path = path_of(facts, mounted)
    proven = isinstance(path.proven, str)
    path_name = path.proven if isinstance(path.proven, str) else path.path
    return MountPath(mount, requirement, path_name, proven, _satisfies(path, path_name, requirement), mounted, path)


def _satisfies(path: Path, path_name: Maybe[str], requirement: str) -> Maybe[bool]:
    if isinstance(path_name, Unknown):
        return path_name
    if isinstance(path.proven, Unknown) and path_name in DIRECT and requirement != COMPAT:
        return path.proven
    return path_name in SATISFIES.get(requirement, ())


RDMA = "Userspace RDMA"
#: Label → the storage driver that must have hooks for nvidia-fs.
STACKS = {
    "NVMe": "nvme",
    "NVMeOF": "nvme_rdma",
    "SCSI": "scsi_mod",
    "ScaleFlux CSD": "sfxvdriver",
    "NVMesh": "nvmeib_common",
    "DDN EXAScaler": "lnet",
    "FSx Lustre": "lnet",
    "NFS": "rpcrdma",
    "BeeGFS": "beegfs",
    "ScaTeFS": "scatefs",
}
#: Storage driver → the name in cufile.json of storage that P2PDMA serves.
P2PDMA_STORAGE = {"nvme": "nvme", "nvme_rdma": "nvmeof"}
#: Label → the filesystem whose mount is judged as a whole.
FILESYSTEMS = {"IBM Spectrum Scale": "gpfs", "VIRTIOFS": "virtiofs", "PanFS": "panfs", "WekaFS": "wekafs"}
#: Storage driver → the transports of its NVMe controllers.
TRANSPORTS = {"nvme": ("pcie",), "nvme_rdma": ("rdma", "tcp", "fc", "loop")}
#: Drivers whose storage a host has where they are loaded.
LOADED = ("sfxvdriver", "nvmeib_common")
#: Filesystem of FSx for Lustre, whose row libcufile prints in place of the other one's.
FSX = "fuse.fsx_lustre"


@dataclass(frozen=True)
class Kind:
    """``label`` as libcufile and gdscheck write it; ``present``: whether this host has storage of this kind."""

    label: str
    present: Maybe[bool]
    path: Path
    #: libcufile's own row about it, empty where there is none
    row: str


def kinds(facts: HostFacts) -> Tuple[Kind, ...]:
    """Every kind that this host's libcufile prints; those that depend on the release where it isn't known, too."""
    storage_kinds = tuple(
        Kind(label, known(partial(_has, facts, label)), _kind_path(facts, label), _row(facts, label))
        for label in _labels(facts)
    )
    adapters = known(lambda: bool(facts.peermem.rdma_devices))
    attempts = [(mechanisms.path_name(facts), list(mechanisms.needed(facts)))]
    path = _best(facts, libcufile.usable(facts), attempts)
    return (*storage_kinds, Kind(RDMA, adapters, path, _row(facts, RDMA)))


def _labels(facts: HostFacts) -> Iterator[str]:
    release = if_known(lambda: libcufile.release(facts), None)
    for label in (*STACKS, *FILESYSTEMS):
        first, last = SINCE.get(label, ((0, 0), (99, 99)))
        if release is not None and not first <= numbers(release) <= last:
            continue
        if label == "FSx Lustre" and not if_known(partial(_has, facts, label), False) and not _row(facts, label):
            continue
        yield label


def _row(facts: HostFacts, label: str) -> str:
    row = facts.gdscheck.row(label)
    return row.value if row is not None else ""


def _has(facts: HostFacts, label: str) -> bool:
    driver = STACKS.get(label, "")
    if driver in LOADED:
        return driver in facts.kernel.modules
    if label == "SCSI":
        devices = [device for mount in facts.storage.mounts.values() for device in mount.devices]
        return any(device.kind == storage.SCSI for device in devices)
    if driver in TRANSPORTS:
        transports = facts.storage.controllers.values()
        return any_of(name if isinstance(name, Unknown) else name in TRANSPORTS[driver] for name in transports)
    types = {name for name, module in NETWORK.items() if module == driver and (name == FSX) == (label == "FSx Lustre")}
    types |= {name for name, client in CLIENTS.items() if client.row == label} | {FILESYSTEMS.get(label, "")}
    return any(mount.filesystem in types for mount in facts.storage.mounts.values())


def _storage_path(facts: HostFacts, driver: str) -> Path:
    """The path of a mount that is itself without fault."""
    attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, driver)])]
    served = P2PDMA_STORAGE.get(driver, "")
    if if_known(lambda: requests_p2pdma(facts, lambda: served), False):
        attempts.insert(0, (P2PDMA, [*needs(P2PDMA, facts), *p2pdma_keys(facts, served)]))
    return _best(facts, needs(USABLE, facts), attempts)


def _kind_path(facts: HostFacts, label: str) -> Path:
    """The path of storage of this kind that is itself without fault."""
    if label in STACKS:
        return _storage_path(facts, STACKS[label])
    name = FILESYSTEMS[label]
    if name in CLIENTS:
        return _best(facts, needs(USABLE, facts), mechanisms.attempts(facts, CLIENTS[name], None))
    line = f"0 0 0:0 / / ro - {name} {name}"
    mount = Mount(facts.document, line).but(mount_point="a mount", line=f"any mount of {name}", options=())
    return path_of(facts, mount)


def _best(facts: HostFacts, usable: Iterator[Condition], attempts: Sequence[Tuple[str, List[Condition]]]) -> Path:
    gpu = _has_gpu(facts)
    basis = weigh(usable)
    if basis.holds is False:
        return Path(BROKEN, basis.causes, gpu)
    name, verdict = _decide(list(needs(DIRECT_PATH, facts)), attempts)
    if name is not None:
        return Path(name, (), gpu, verdict.suspects, verdict.unseen)
    fallback, causes = _or_compat(facts, verdict.causes)
    return Path(fallback, causes, gpu)


VERSION = 1
#: Filesystems of the kernel and of container runtimes, which hold no data for a GPU.
UNINTERESTING = re.compile(
    r"(proc|sysfs|devtmpfs|devpts|tmpfs|ramfs|cgroup2?|securityfs|debugfs|tracefs|configfs|pstore|efivarfs|bpf|mqueue"
    r"|hugetlbfs|autofs|binfmt_misc|fusectl|rpc_pipefs|nsfs|selinuxfs|rootfs|squashfs|erofs|iso9660|vfat|fuse\.(lxcfs|gvfsd-fuse|portal|snapfuse))$"
)


@dataclass(frozen=True)
class ExplainedMount:
    """One mount and its path.  ``requested``: the path of the request, if it lies below the mount point."""

    mount: Mount
    path: Path
    requested: str = ""


@dataclass(frozen=True)
class Explanation:
    """``runs`` are (part, version) from the kernel up."""

    host: str
    collected_at: str
    runs: Tuple[Tuple[str, str], ...]
    mounts: Tuple[ExplainedMount, ...]
    kinds: Tuple[Kind, ...]
    #: why some facts are unknown
    unseen: Tuple[str, ...]
    #: running programs with another configuration than the default one, by which the mounts are judged
    programs: Maybe[Tuple[ExplainedProgram, ...]] = ()
    #: what others have installed of the stack; nothing in a container, which doesn't show its host's packages
    foreign: Tuple[ForeignInstall, ...] = ()
    #: of the kernel that it was judged for
    release: str = ""


class NoSuchMountError(Exception):
    """Nothing is mounted at or above the requested path, as far as the evidence shows."""


def explain(facts: HostFacts, runs: Sequence[Tuple[str, str]], path: str = "") -> Explanation:
    """Explain the mount that holds ``path``, else all that may hold data; raises NoSuchMountError."""
    mounts = tuple(_one(facts, path) if path else _all(facts))
    own = [explained.mount for explained in mounts]
    return Explanation(
        host=if_known(lambda: facts.name, "this host"),
        collected_at=facts.collected_at,
        runs=tuple(runs),
        mounts=mounts,
        kinds=() if path else kinds(facts),
        unseen=tuple(dict.fromkeys(_unseen(facts, mounts))),
        foreign=_foreign(facts),
        release=_release(facts),
        programs=known(lambda: tuple(filter(is_listed, programs(facts, own)))),
    )


def _release(facts: HostFacts) -> str:
    """Of the locked kernel where the evidence was collected for a lock, else of the running one."""
    return next(iter(facts.foreign.modules), "")


def _foreign(facts: HostFacts) -> Tuple[ForeignInstall, ...]:
    if if_known(lambda: facts.environment.container, "perhaps one") is not None:
        return ()
    return findings(facts.foreign, Locked(_release(facts)))[0]


def _one(facts: HostFacts, path: str) -> Iterator[ExplainedMount]:
    mount = known(lambda: facts.storage.mount_of(path))
    if mount is None:
        raise NoSuchMountError(f"nothing is mounted at or above {path}")
    if not isinstance(mount, Unknown):
        deeper = path if path != mount.mount_point else ""
        yield ExplainedMount(mount, path_of(facts, mount, deeper), deeper)


def _all(facts: HostFacts) -> Iterator[ExplainedMount]:
    for _, mount in sorted(if_known(lambda: facts.storage.mounts, {}).items()):
        if mount.filesystem in NATIVE or not UNINTERESTING.match(mount.filesystem):
            yield ExplainedMount(mount, path_of(facts, mount))


def _unseen(facts: HostFacts, explained: Sequence[ExplainedMount]) -> Iterator[str]:
    if not if_known(lambda: facts.environment.root, True):
        yield "the evidence was collected without root; only root can read kernel symbols, messages and modules"
    for unread in (known(lambda: facts.storage.mounts), known(lambda: facts.processes.complete)):
        if isinstance(unread, Unknown):
            yield unread.reason
    yield from facts.gaps
    for entry in explained:
        yield from entry.path.unseen


def as_document(explanation: Explanation) -> Dict[str, Any]:
    """The explanation as JSON values; see docs/explain.md."""
    return {
        "version": VERSION,
        "host": explanation.host,
        "collected_at": explanation.collected_at,
        "stack": [list(run) for run in explanation.runs],
        "mounts": [_mount(explained) for explained in explanation.mounts],
        "kinds": [
            {"kind": k.label, "here": or_else(k.present, None), "libcufile": k.row, **_path_row(k.path)}
            for k in explanation.kinds
        ],
        "processes": if_known(lambda: [as_row(each) for each in require(explanation.programs)], None),
        "foreign": [install.to_json() for install in explanation.foreign],
        "unseen": list(explanation.unseen),
    }


def _mount(explained: ExplainedMount) -> Dict[str, Any]:
    mount = explained.mount
    return {
        "mount": mount.mount_point,
        "asked": explained.requested or mount.mount_point,
        "filesystem": mount.filesystem,
        "source": mount.source,
        "devices": [device.name for device in mount.devices],
        **_path_row(explained.path),
    }


def _path_row(path: Path) -> Dict[str, Any]:
    name, reason = ("not proven", path.path.reason) if isinstance(path.path, Unknown) else (path.path, "")
    lists = {name: as_dict(getattr(path, name)) for name in ("causes", "suspects", "notes", "proofs")}
    about = {"path": name, "reason": reason, "gpu": if_known(lambda: path.gpu, None)}
    return {**about, **lists, "surprise": path.surprise, "unseen": list(path.unseen)}
