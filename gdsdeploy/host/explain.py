"""Why I/O on each mount of a host does not take the direct path, with its kinds of storage and its programs.

As one JSON object, and for a terminal: the verdict of each mount first, then its causes; narrow, without colour.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from .facts import HostFacts, Maybe, Unknown, as_dict, require
from .facts.unknown import if_known, known, or_else
from .io import wording
from .io.mounts import PSEUDO
from .io.wording import joined, line
from .libcufile.counters import route_words
from .paths import FSTAB
from .subjects import filesystem, foreign, gpu, modules
from .subjects.condition import BROKEN, COMPAT, DMABUF, NVIDIA_FS, P2PDMA, PEERMEM, Cause, weigh
from .subjects.filesystem import NATIVE
from .subjects.foreign import ForeignInstall, Locked, findings
from .subjects.path import Kind, Path, kinds, path_of
from .subjects.programs import ExplainedProcess, ExplainedProgram, as_row, configuration, is_listed, programs, versions
from .subjects.storage import Mount

VERSION = 1


class ExplainedMount(NamedTuple):
    """One mount and its path.  ``requested``: the path of the request, if it lies below the mount point."""

    mount: Mount
    path: Path
    requested: str = ""


class Explanation(NamedTuple):
    """``runs`` are (part, version) from the kernel up."""

    host: str
    collected_at: str
    runs: Tuple[Tuple[str, str], ...]
    #: what has to be done before anything about storage matters: there is no GPU, or its driver isn't loaded
    first: Tuple[Cause, ...]
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
    """The requested path doesn't exist, or isn't mounted; the message says what is."""


def explain(facts: HostFacts, runs: Sequence[Tuple[str, str]], path: str = "") -> Explanation:
    """Explain the mount that holds ``path``, else all that may hold data; raises NoSuchMountError."""
    mounts = tuple(_one(facts, path) if path else _all(facts))
    own = [explained.mount for explained in mounts]
    return Explanation(
        host=if_known(lambda: facts.name, "this host"),
        collected_at=facts.collected_at,
        runs=tuple(runs),
        first=weigh([gpu.present(facts), modules.loaded(facts, facts.driver.module)]).causes[:1],
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
    place, is_there = facts.storage.place_of(path)
    whole = place if is_there else path
    unmounted = if_known(lambda: facts.storage.unmounted(whole), None)
    if unmounted or not is_there:
        words = [] if is_there else [f"there is no {path}, and its nearest parent that exists is {place}"]
        words += [f"{FSTAB} has {unmounted!r}, and this isn't mounted"] if unmounted else []
        mounted = ", ".join(explained.mount.mount_point for explained in _all(facts))
        raise NoSuchMountError("; ".join([*words, f"these are mounted: {mounted or 'none that may hold data'}"]))
    mount = known(lambda: facts.storage.mount_of(place))
    if mount is None:
        raise NoSuchMountError(f"nothing is mounted at or above {path}")
    if not isinstance(mount, Unknown):
        deeper = path if place != mount.mount_point else ""
        yield ExplainedMount(mount, path_of(facts, mount, deeper), deeper)


def _all(facts: HostFacts) -> Iterator[ExplainedMount]:
    for _, mount in sorted(if_known(lambda: facts.storage.mounts, {}).items()):
        if mount.filesystem in NATIVE or not PSEUDO.match(mount.filesystem):
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
        "first": as_dict(explanation.first),
        "mounts": [
            {
                "mount": explained.mount.mount_point,
                "asked": explained.requested or explained.mount.mount_point,
                "filesystem": explained.mount.filesystem,
                "source": explained.mount.source,
                "devices": [device.name for device in explained.mount.devices],
                **path_row(explained.path),
            }
            for explained in explanation.mounts
        ],
        "kinds": [
            {"kind": k.label, "here": or_else(k.present, None), "libcufile": k.row, **path_row(k.path)}
            for k in explanation.kinds
        ],
        "processes": if_known(lambda: [as_row(each) for each in require(explanation.programs)], None),
        "foreign": [install.to_json() for install in explanation.foreign],
        "unseen": list(explanation.unseen),
    }


def path_row(path: Path) -> Dict[str, Any]:
    """A path as JSON values."""
    name, reason = ("not proven", path.path.reason) if isinstance(path.path, Unknown) else (path.path, "")
    lists = {name: as_dict(getattr(path, name)) for name in ("causes", "suspects", "notes", "proofs")}
    about = {"path": name, "reason": reason, "gpu": if_known(lambda: path.gpu, None)}
    return {**about, **lists, "surprise": path.surprise, "unseen": list(path.unseen)}


WIDTH = 88
wrapped = partial(wording.wrapped, width=WIDTH)
MEANS = {
    NVIDIA_FS: "straight between disk and GPU, through nvidia-fs",
    P2PDMA: "straight between disk and GPU, through PCI P2PDMA",
    COMPAT: "through CPU memory",
    BROKEN: "cuFile calls fail",
    PEERMEM: "straight between adapter and GPU, through nvidia-peermem",
    DMABUF: "straight between adapter and GPU, through DMA-BUF",
}


def render(explanation: Explanation) -> str:
    """Lines of at most WIDTH characters, except for longer words."""
    runs = ", ".join(f"{part} {version}" for part, version in explanation.runs)
    lines = wrapped("{}: {}".format(explanation.host, runs or "no version is known"), "")
    printed: Set[Tuple[str, str]] = set()
    if explanation.first:
        lines += ["", *_causes(explanation.first, "", printed)]
    for explained in explanation.mounts:
        lines += ["", *_mount(explained, printed)]
    if not explanation.mounts:
        lines += ["", "no mount that may hold data for a GPU is known"]
    if explanation.kinds:
        lines += ["", "Kinds of storage (for a mount that itself has no fault)"]
        lines += [line for kind in explanation.kinds for line in _kind(kind, explanation)]
    if not isinstance(explanation.programs, Unknown) and explanation.programs:
        lines += ["", "Running programs with another configuration of libcufile"]
        lines += [line for explained in explanation.programs for line in _program(explained, printed)]
    if explanation.foreign:
        lines += ["", "Installed by others"]
        for install in explanation.foreign:
            lines += wrapped(foreign.sentence(install), "  - ")
            lines += wrapped(foreign.way_out(install, explanation.release), "    ")
    if explanation.unseen:
        lines += ["", "What could not be seen"]
        lines += [line for reason in explanation.unseen for line in wrapped(reason, "  - ")]
    return joined(lines)


def _mount(explained: ExplainedMount, printed: Set[Tuple[str, str]]) -> List[str]:
    """``printed``: causes that were printed in full; those of this mount are added."""
    path = explained.path
    name = path.path
    verdict = f"NOT PROVEN: {name.reason}" if isinstance(name, Unknown) else f"{name.upper()}: {MEANS[name]}"
    lines = wrapped(f"{explained.mount.mount_point}  {verdict}", "")
    lines += wrapped(filesystem.names(explained.mount), "  ")
    if explained.requested:
        lines += wrapped(f"{explained.requested} lies on this mount", "  ")
    lines += _causes(path.causes, "", printed)
    lines += _causes(path.suspects, "Not proven because of this:", printed)
    lines += _causes(path.notes, "Good to know:", printed)
    return lines + [line for sentence in _proofs(path) for line in wrapped(sentence, "  ")]


def _program(explained: ExplainedProgram, printed: Set[Tuple[str, str]]) -> Iterator[str]:
    program = explained.program
    yield from wrapped(program.label, "  ")
    yield from wrapped("libcufile: " + ", ".join(versions(program)), "    ")
    yield from wrapped("configuration: " + configuration(program), "    ")
    yield from ("  " + row for row in _causes(explained.causes, "", printed))
    for reason in explained.unseen:
        yield from wrapped("not known: " + reason, "    ")


def _proofs(path: Path) -> Iterator[str]:
    """What I/O showed, with each GPU; otherwise that no I/O was tried, where that matters."""
    for proof in path.proofs:
        gpu = f"proven with GPU {proof.gpu or '(none)'}"
        if isinstance(proof.path, Unknown):
            yield f"not {gpu}: {proof.path.reason}"
        else:
            yield f"{gpu}: {proof.path.upper()}: {proof.how}"
    if path.proofs:
        yield path.surprise
    elif path.gpu is not False and path.path not in (COMPAT, BROKEN):
        if isinstance(path.gpu, Unknown):
            yield "(whether this host has a GPU is unknown)"
        elif not isinstance(path.path, Unknown):
            yield "(not proven: no I/O was tried)"


def _causes(causes: Sequence[Cause], heading: str, printed: Set[Tuple[str, str]]) -> Iterator[str]:
    if causes and heading:
        yield "  " + heading
    for number, cause in enumerate(causes, 1):
        key = (cause.id, cause.what)
        yield from wrapped(f"{cause.what} [{cause.id}]" + (", see above" if key in printed else ""), f"{number:>3}. ")
        if key in printed:
            continue
        printed.add(key)
        for label, texts in (("seen", cause.evidence), ("do", (cause.fix,)), ("read", (cause.reference,))):
            for text in texts:
                yield from wrapped(text, f"     {label:<5}")
                label = ""


def _kind(kind: Kind, explanation: Explanation) -> Iterator[str]:
    shown = "not proven" if isinstance(kind.path.path, Unknown) else kind.path.path
    if kind.present is not True:
        shown = "unknown whether this host has any" if isinstance(kind.present, Unknown) else "none here"
    row = f"; libcufile reports: {kind.row}" if kind.row else ""
    yield f"  {kind.label:<22}{line(shown)}{line(row)}"
    if kind.present is True:
        # The causes of the mounts above were printed in full.
        printed = {cause.id for explained in explanation.mounts for cause in explained.path.causes}
        for cause in kind.path.causes:
            rest = " (see above)" if cause.id in printed else f": {cause.fix}"
            yield from wrapped(cause.what + rest, "      - ")


def render_process(explained: ExplainedProcess) -> str:
    """Lines of text."""
    program, way = explained.program, explained.route
    lines = wrapped(f"{program.label}: {route_words(way.path, way.reason, way.operations, way.beside)}", "")
    if way.operations or way.beside:
        about = "" if way.exact else "about "
        since = f"in {way.seconds:.1f} seconds" if way.recent else "since it opened cuFile"
        moved = f"{since}: {way.read} bytes read, {way.written} written"
        lines += wrapped(f"{moved}, {about}{way.bounced} of them through CPU memory", "  ")
    lines += wrapped("libcufile: " + (", ".join(versions(program)) or "not loaded"), "  ")
    if program.libraries:
        lines += wrapped("configuration: " + configuration(program), "  ")
    for path, name in explained.files:
        lines += wrapped(f"file: {path} (its mount allows: {name})", "  ")
    if not explained.causes and way.operations.get(COMPAT):
        lines += wrapped("nothing that was examined explains why it goes through CPU memory", "  ")
    lines += _causes(explained.causes, "", set())
    return joined(lines + [row for reason in explained.unseen for row in wrapped(f"not known: {reason}", "  ")])
