"""The path that I/O on a mount, or on a kind of storage, takes, and what rules out others.

From all evidence on the host; that isn't proof.  Proof is an I/O that was seen to take the path (proof.py); it needs a
GPU.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..facts.unknown import Maybe, Unknown, any_of, if_known, known
from ..io.mounts import Mounts
from ..libcufile.counters import NOT_COUNTED, route_words
from ..model.expectation import Expectation
from . import cufile_json, filesystem, libcufile, mechanisms, nvidia_fs, storage
from .condition import (
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
from .proof import Proof
from .rdma import CLIENTS
from .register import UNKNOWN_HINT, Answer, capitalized, check, failed, passed, unknown
from .storage import Mount
from .types import HostFacts


class Path(NamedTuple):
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
    return _expected_path(facts, mount, file)._replace(proofs=tuple(_as_configured(facts, proof) for proof in proofs))


def _as_configured(facts: HostFacts, proof: Proof) -> Proof:
    """Programs get what the host's configuration allows, which the second try of a proof may exceed."""
    if proof.path == COMPAT and cufile_json.fallback(facts).holds is False:
        return proof._replace(path=BROKEN, how=proof.how + "; but this host's configuration disallows it")
    return proof


def _expected_path(facts: HostFacts, mount: Mount, file: str) -> Path:
    usable = weigh(needs(USABLE, facts, mount))
    name, verdict = _direct(facts, mount, file)
    path = _judged(facts, usable, name, verdict)
    if verdict.holds is False:
        notes = (*libcufile.registers_silently(facts), *nvidia_fs.closes_stdin(facts))
        return path._replace(notes=notes) if path.path == COMPAT else path
    if path.path == BROKEN:
        return path
    return path._replace(notes=tuple(note for function in ranked(NOTES) for note in function(facts, mount)))


def _judged(facts: HostFacts, usable: Verdict, name: str, verdict: Verdict) -> Path:
    """usable: whether cuFile works at all.  verdict: whether the direct path ``name`` is taken."""
    gpu = known(lambda: bool(facts.pci.gpus))
    if usable.holds is False:
        # Also show the obstacles to the direct path: the operator can then repair everything at once.
        return Path(BROKEN, distinct((*usable.causes, *verdict.causes)), gpu, verdict.suspects, usable.unseen)
    if verdict.holds is False:
        allowed = cufile_json.fallback(facts)
        if allowed.holds is False:
            return Path(BROKEN, distinct((*verdict.causes, allowed.cause)), gpu, unseen=usable.unseen)
        unknown = next((each for each in (usable.holds, allowed.holds) if isinstance(each, Unknown)), None)
        return Path(COMPAT if unknown is None else unknown, verdict.causes, gpu, unseen=usable.unseen)
    unknown = next((each for each in (usable.holds, verdict.holds) if isinstance(each, Unknown)), None)
    path = name if unknown is None else unknown
    return Path(path, verdict.causes, gpu, verdict.suspects, tuple(dict.fromkeys((*usable.unseen, *verdict.unseen))))


def _direct(facts: HostFacts, mount: Mount, file: str) -> Tuple[str, Verdict]:
    """A direct path, and whether it is taken.  P2PDMA, where configured, comes first."""
    shared = [*needs(DIRECT_PATH, facts, mount)]
    if file and mount.filesystem in filesystem.LOCAL:
        unseen = Unknown(f"the evidence doesn't show the flags of {file}")
        shared += filesystem.flag_conditions(file, facts.storage.inodes.get(file, unseen))
    attempts = [(NVIDIA_FS, list(needs(NVIDIA_FS, facts, mount)))]
    client = CLIENTS.get(mount.filesystem)
    configured = Condition(lambda: cufile_json.requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)))
    if client is not None:
        attempts = mechanisms.attempts(facts, client, mount)
    elif mount.filesystem == filesystem.PANFS:
        # The rules about DIRECT say what is known: not whether nvidia-fs has a part in it.
        attempts = [(NVIDIA_FS, [])]
    elif configured.holds is not False:
        attempts.insert(0, (P2PDMA, [configured, *needs(P2PDMA, facts, mount)]))
    return _decide(shared, attempts)


def _decide(shared: List[Condition], attempts: Sequence[Tuple[str, List[Condition]]]) -> Tuple[str, Verdict]:
    """The first of (path, its conditions) that holds or may, beside the conditions of all."""
    verdicts = [(name, weigh([*shared, *conditions])) for name, conditions in attempts]
    name, verdict = next((each for each in verdicts if each[1].holds is not False), ("", Verdict(False)))
    if verdict.holds is True:
        return name, verdict
    # What stands in the way of the paths that come before one that would be taken.
    tried = itertools.takewhile(lambda each: each[1].holds is not True, verdicts)
    return name, verdict._replace(causes=distinct(cause for _, each in tried for cause in each.causes))


#: What a fleet requires → the paths that satisfy it.
SATISFIES = {
    "direct": DIRECT,
    "nvidia-fs": ("nvidia-fs",),
    "p2pdma": ("p2pdma",),
    "compat": (COMPAT, *DIRECT),
}
#: ``path_name`` where nothing is mounted.
NONE = "none"


class MountPath(NamedTuple):
    """One mount of a fleet, as a host has it."""

    mount: str
    #: what the fleet requires, a key of SATISFIES
    requirement: str
    #: None: nothing is mounted there
    mounted: Maybe[Optional[Mount]]
    #: of what is mounted
    path: Optional[Path] = None
    #: what covers a mount there, so that no program reaches it
    cover: Optional[Mount] = None

    @property
    def proven(self) -> bool:
        """Whether a read through cuFile showed ``path_name``."""
        return self.path is not None and isinstance(self.path.proven, str)

    @property
    def path_name(self) -> Maybe[str]:
        """The proven path, else the expected one, ``none`` where nothing is mounted."""
        if self.path is None:
            return self.mounted if isinstance(self.mounted, Unknown) else NONE
        return self.path.proven if isinstance(self.path.proven, str) else self.path.path

    @property
    def satisfies(self) -> Maybe[bool]:
        """Also unknown for a direct path that is expected and was not proven."""
        name, shown = self.path_name, self.path.proven if self.path is not None else None
        if isinstance(name, Unknown):
            return name
        if isinstance(shown, Unknown) and name in DIRECT and self.requirement != COMPAT:
            return shown
        return name in SATISFIES.get(self.requirement, ())

    @property
    def description(self) -> str:
        """The path and what rules out a better one, without how that was proven."""
        name, causes = self.path_name, self.path.causes if self.path is not None else ()
        if isinstance(name, Unknown):
            return name.reason
        if self.path is None:
            return f"it is covered: {self.cover.words}" if self.cover else "nothing is mounted there"
        if isinstance(self.satisfies, Unknown):
            return f"{name} is expected, and not proven: {self.satisfies.reason}"
        if name not in (COMPAT, BROKEN) or not causes:
            return name
        others = f" (and {len(causes) - 1} more, see the evidence)" if causes[1:] else ""
        return f"{name}: {causes[0].what}{others}"

    @property
    def how(self) -> str:
        """How ``path_name`` was proven or why it was not, in parentheses; empty where nothing is mounted."""
        path = self.path
        if path is None:
            return ""
        if self.proven:
            tried = dict.fromkeys(f"a {name}" for proof in path.proofs for name in proof.operations)
            surprise = f"; {path.surprise}" if path.surprise else ""
            return "(proven by {} through cuFile{})".format(" and ".join(tried), surprise)
        for fact in (path.proven, path.gpu):
            if isinstance(fact, Unknown):
                return f"(not proven: {fact.reason})"
        return "(not proven: no I/O was tried)" if path.gpu is True else "(not proven: this host has no GPU)"


def storage_paths(facts: HostFacts, requirements: Iterable[Tuple[str, str]]) -> Iterator[MountPath]:
    """Judge mounts, in their order.  requirements: (mount point, what the fleet requires)."""
    for mount, requirement in requirements:
        mounted = known(partial(facts.storage.exactly, mount))
        path = path_of(facts, mounted) if isinstance(mounted, Mount) else None
        cover = if_known(partial(facts.storage.cover, mount), None) if path is None else None
        yield MountPath(mount, requirement, mounted, path, cover)


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


class Kind(NamedTuple):
    """``label`` as libcufile and gdscheck write it; ``present``: whether this host has storage of this kind."""

    label: str
    present: Maybe[bool]
    path: Path
    #: libcufile's own row about it, empty where there is none
    row: str


def kinds(facts: HostFacts) -> Tuple[Kind, ...]:
    """Every kind that this host's libcufile prints; those that depend on the release where it isn't known, too."""

    def kind(label: str, present: Callable[[], bool], path: Path) -> Kind:
        row = facts.gdscheck.row(label)
        return Kind(label, known(present), path, row.value if row is not None else "")

    rdma = [(mechanisms.path_name(facts), list(mechanisms.needed(facts)))]
    return (
        *(kind(label, partial(_has, facts, label), _kind_path(facts, label)) for label in _labels(facts)),
        kind(RDMA, lambda: bool(facts.peermem.rdma_devices), _best(facts, libcufile.usable(facts), rdma)),
    )


def _labels(facts: HostFacts) -> Iterator[str]:
    from ..gdscheck.reader import SINCE

    release = if_known(lambda: libcufile.release(facts), None)
    for label in (*STACKS, *FILESYSTEMS):
        first, last = SINCE.get(label, ((0, 0), (99, 99)))
        is_here = if_known(partial(_has, facts, label), False) or facts.gdscheck.row(label) is not None
        if (release is None or first <= numbers(release) <= last) and (is_here or label != "FSx Lustre"):
            yield label


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
    types = {
        name
        for name, module in filesystem.NETWORK.items()
        if module == driver and (name == FSX) == (label == "FSx Lustre")
    }
    types |= {name for name, client in CLIENTS.items() if client.row == label} | {FILESYSTEMS.get(label, "")}
    return any(mount.filesystem in types for mount in facts.storage.mounts.values())


def _kind_path(facts: HostFacts, label: str) -> Path:
    """The path of storage of this kind that is itself without fault."""
    usable = needs(USABLE, facts)
    if label in STACKS:
        attempts = [(NVIDIA_FS, [*needs(NVIDIA_FS, facts), *nvidia_fs.hooks(facts, STACKS[label])])]
        served = P2PDMA_STORAGE.get(STACKS[label], "")
        if if_known(lambda: cufile_json.requests_p2pdma(facts, lambda: served), False):
            attempts.insert(0, (P2PDMA, [*needs(P2PDMA, facts), *cufile_json.p2pdma_keys(facts, served)]))
        return _best(facts, usable, attempts)
    name = FILESYSTEMS[label]
    if name in CLIENTS:
        return _best(facts, usable, mechanisms.attempts(facts, CLIENTS[name], None))
    (row,) = Mounts(f"0 0 0:0 / / ro - {name} {name}").by_id.values()
    mount = Mount(facts.document, row)
    return path_of(facts, mount.but(mount_point="a mount", line=f"any mount of {name}", options=()))


def _best(facts: HostFacts, usable: Iterator[Condition], attempts: Sequence[Tuple[str, List[Condition]]]) -> Path:
    basis = weigh(usable)
    name, verdict = ("", Verdict(False)) if basis.holds is False else _decide([*needs(DIRECT_PATH, facts)], attempts)
    # A kind shows the obstacles to its own path alone.
    return _judged(facts, basis if basis.holds is False else Verdict(True), name, verdict)


UNPROVEN_HINT = "Validate again while no other program reads or writes; docs/proof.md lists what a proof needs"
MOUNT_HINT = "Mount it, and have it mounted at boot (/etc/fstab); then validate again"
COVERED_HINT = "Mount it after what covers it: systemd does where both are in /etc/fstab; then validate again"
#: Lines of evidence of one proof.
PROOF_LINES = 2
#: Steps named in one hint; the evidence has them all.
FIXES_NAMED = 4
WORDS = {
    "direct": "a direct path (nvidia-fs or p2pdma)",
    "nvidia-fs": "the path through nvidia-fs",
    "p2pdma": "the path through PCI P2PDMA",
    "compat": "any path, through CPU memory too",
}


@check(
    "storage.path",
    "I/O on this mount takes the path that the fleet asks for",
    expects="the path of the fleet file",
    prevents="I/O through CPU memory on a host where every other check passes",
    unknown_hint="The reason above names what could not be read; run it as root",
)
def path(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    requests = [(mount.get("mount", ""), mount.get("path", "direct")) for mount in expectation.storage]
    for result in storage_paths(facts, requests):
        answer = _answer(result)
        name = result.path_name if isinstance(result.path_name, str) else ""
        evidence = [*answer.evidence, *_at_work(facts, result.mount)]
        expected = WORDS.get(result.requirement, result.requirement)
        yield answer._replace(path=name, evidence=evidence, subject=result.mount, expected=expected)


def _at_work(facts: HostFacts, mount: str) -> Iterator[str]:
    """What running programs with files on the mount have done since they opened cuFile, wherever their files are."""
    for program in if_known(lambda: facts.processes.programs, ()):
        mounts = [if_known(partial(program.mount_of, file, facts.storage), None) for file in program.files]
        if any(each.mount_point == mount for each in mounts if each is not None):
            way = program.way()
            if way.path != NOT_COUNTED:
                words = route_words(way.path, "", way.operations, way.beside)
                yield f"{program.label} has files here, and its I/O took: {words}"


def _answer(result: MountPath) -> Answer:
    found, mounted = result.description, result.mounted
    if isinstance(mounted, Unknown):
        return unknown(found, UNKNOWN_HINT)
    if result.path is None or mounted is None:
        return failed(found, COVERED_HINT if result.cover else MOUNT_HINT)
    if isinstance(result.path_name, Unknown):
        fixes = "; ".join(dict.fromkeys(cause.fix for cause in result.path.suspects)) or UNKNOWN_HINT
        return unknown(found, f"{capitalized(fixes)}; or see all of it: gdsdeploy explain")
    if isinstance(result.satisfies, Unknown):
        return unknown(found, UNPROVEN_HINT)
    causes = result.path.causes
    evidence = [
        mounted.words,
        *(line for proof in result.path.proofs for line in _proof_lines(proof)),
        *(f"{cause.what}: {cause.fix}" for cause in causes),
        *(line for cause in causes[:1] for line in cause.evidence),
    ]
    if result.satisfies:
        return passed(f"{found} {result.how}", evidence)
    fixes = "; ".join(list(dict.fromkeys(cause.fix for cause in causes if cause.fix))[:FIXES_NAMED])
    hint = fixes or "ask for another path in the fleet file"
    if result.path_name == COMPAT and result.requirement != COMPAT:
        hint += "; or, if CPU memory is good enough for this mount, set its path to compat in the fleet file"
    return failed(f"{found} {result.how}" if result.path.proofs else found, capitalized(hint), evidence)


def _proof_lines(proof: Proof) -> List[str]:
    result = proof.path.reason if isinstance(proof.path, Unknown) else f"{proof.path}: {proof.how}"
    return ["GPU {}: {}".format(proof.gpu or "(none)", result), *proof.evidence[:PROOF_LINES]]
