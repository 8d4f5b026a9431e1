"""What others have installed of this stack: each kind is a row of data/foreign.json and one recognizer.

A recognizer is a pure function from facts to what it found.  What was found is told in words here, too.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import data
from ..facts.unknown import UndecidedError, require
from ..io.wording import first_few, line
from ..model.expectation import Expectation
from .foreign_files import File, ForeignFacts, ModuleFile, Source, is_shipped
from .packages import Package
from .register import Answer, check, failed, not_applicable, passed
from .types import HostFacts

#: Answers: provision refuses the host; it takes over; the lock adopts it; it is only good to know.
REFUSE, TAKE_OVER, ADOPT, NOTE = "refuse", "take-over", "adopt", "note"


class Kind(NamedTuple):
    """A row of the table; its schema describes the fields."""

    id: str
    title: str
    recognized: str
    answer: str
    way_out: str
    source: str
    #: when provision refuses; otherwise what is found is a note
    refused_when: str = ""
    #: why such a note is harmless
    harmless: str = ""
    #: for each piece that was found; ``{name}`` is the piece
    command: str = ""


@dataclass(frozen=True)
class Trace:
    """One piece of evidence: a path, a package or a line, and a remark about it."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class ForeignInstall:
    """What is on a host of one kind.  ``breaks``: a provision would not lead to the locked stack."""

    kind: str
    traces: Tuple[Trace, ...]
    breaks: bool = False

    @property
    def answer(self) -> str:
        """REFUSE, TAKE_OVER, ADOPT or NOTE."""
        answer = kind(self.kind).answer
        return answer if answer != REFUSE or self.breaks else NOTE

    def to_json(self) -> Dict[str, Any]:
        """``{"kind", "answer", "breaks", "traces": [{"name", "detail"}]}``."""
        traces = [asdict(trace) for trace in self.traces]
        return {"kind": self.kind, "answer": self.answer, "breaks": self.breaks, "traces": traces}


@dataclass(frozen=True)
class Locked:
    """What the lock has for the host: the kernel's release, package → version, the addresses of its repositories.

    No address: they aren't known.
    """

    kernel_release: str
    packages: Mapping[str, str] = field(default_factory=dict)
    repositories: Tuple[str, ...] = ()


@lru_cache(maxsize=1)
def kinds() -> Mapping[str, Kind]:
    """Id → kind, in the order of the table."""
    return {row.id: row for row in data.rows("foreign", Kind)}


def kind(ident: str) -> Kind:
    """The kind with this id; raises KeyError."""
    return kinds()[ident]


#: Pieces that a sentence names; the rest is counted.
NAMED = 3
#: Answer → what provision does.
ANSWER_WORDS = {
    REFUSE: "provision refuses this",
    TAKE_OVER: "provision takes this over",
    ADOPT: "the lock can adopt this",
    NOTE: "good to know",
}


def sentence(install: ForeignInstall) -> str:
    """What it is, and the first pieces of evidence."""
    return f"{kind(install.kind).title}: {first_few(evidence(install), NAMED, '; ')}"


def evidence(install: ForeignInstall) -> List[str]:
    """A line for each piece."""
    return [line(f"{trace.name} ({trace.detail})" if trace.detail else trace.name) for trace in install.traces]


def way_out(install: ForeignInstall, release: str) -> str:
    """What to do about it, with the names of this host quoted for a shell.

    release: of the locked kernel; empty: a word stands for it.
    """
    row = kind(install.kind)
    names = [shlex.quote(line(trace.name)) for trace in install.traces]
    values: Dict[str, str] = {
        "release": release or "RELEASE",
        "names": first_few(list(dict.fromkeys(names)), 2 * NAMED),
        "commands": "; ".join(row.command.replace("{name}", name) for name in names[: 2 * NAMED]),
    }

    # In one pass: a name may have braces.
    text = re.sub(r"\{(release|names|commands)\}", lambda match: values[match.group(1)], row.way_out)
    return f"{row.harmless}. {text}" if install.answer == NOTE and row.harmless else text


#: One piece, and whether a provision would not lead to the locked stack because of it.
Piece = Tuple[Trace, bool]
#: Gives every piece of the kind that the host has; raises UndecidedError where that isn't known.
Recognizer = Callable[[ForeignFacts, Locked], Iterable[Piece]]

RECOGNIZERS: Dict[str, Recognizer] = {}


def recognizer(ident: str) -> Callable[[Recognizer], Recognizer]:
    """Register a function for the kind ``ident``."""
    return lambda function: RECOGNIZERS.setdefault(ident, function)


def findings(facts: ForeignFacts, locked: Locked) -> Tuple[Tuple[ForeignInstall, ...], Tuple[str, ...]]:
    """What is on the host, in the order of the table; and why some kinds are unknown, each reason once."""
    installs: List[ForeignInstall] = []
    reasons: Dict[str, None] = {}
    for ident in kinds():
        try:
            pieces = tuple(RECOGNIZERS[ident](facts, locked))
        except UndecidedError as undecided:
            reasons[str(undecided)] = None
            continue
        if pieces:
            traces, breaks = zip(*pieces)
            installs.append(ForeignInstall(ident, traces, any(breaks)))
    return tuple(installs), tuple(reasons)


#: The mark of gdsdeploy's own cufile.json, in its first lines.
OWN_CUFILE = "Rendered by gdsdeploy"


@recognizer("runfile-driver")
def runfile_driver(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    """Its program for the removal; its log alone stays behind after that."""
    log = "; ".join(" ".join(line.split()) for line in facts.installer_log[:2])
    for at, path in enumerate(_without_package(facts.driver_programs)):
        yield Trace(path, log if not at else ""), True


@recognizer("runfile-cuda")
def runfile_cuda(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    return ((Trace(path), False) for path in _without_package(facts.cuda_programs))


@recognizer("module-without-record")
def module_without_record(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Files that neither a package nor DKMS nor gdsdeploy has put into the locked kernel's folder."""
    files = _modules(facts, locked) or ()
    alone = [file for file in files if not file.dkms and not file.own and require(file.owner) == ""]
    for file in sorted(alone, key=lambda file: not file.chosen):
        path = f"/lib/modules/{locked.kernel_release}/{file.file}"
        yield Trace(path, "depmod prefers it" if file.chosen else ""), file.chosen


@recognizer("module-loader")
def module_loader(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    return ((Trace(path), False) for path in _without_package(facts.module_loaders))


@recognizer("dkms-by-hand")
def dkms_by_hand(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Packages of DKMS whose sources no package has.

    One that is installed for the locked kernel writes the same files as the lock's.  One that installs itself does so
    when the locked kernel comes, if that isn't there yet.
    """
    trees = [tree for tree in facts.dkms if require(tree.owner) == ""]
    coming = bool(trees) and _modules(facts, locked) is None
    breaks = [tree for tree in trees if locked.kernel_release in tree.releases or (coming and tree.autoinstall)]
    for tree in sorted(trees, key=lambda tree: tree not in breaks):
        installed = ", ".join(tree.releases) or "installed for no kernel"
        yield Trace(f"{tree.name}/{tree.version}", f"{tree.source}; {installed}"), tree in breaks


@recognizer("library-without-package")
def library_without_package(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    """Only the first file of each name counts: programs get that one."""
    sonames: Set[str] = set()
    for library in facts.libraries:
        is_first = library.soname not in sonames
        if require(library.owner) == "":
            yield Trace(library.path, f"programs get it as {library.soname}" if is_first else ""), is_first
        sonames.add(library.soname)


@recognizer("cufile-json")
def cufile_json(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    """Neither gdsdeploy's nor as its package ships it."""
    place, _, text = facts.cufile or ("", "", OWN_CUFILE)
    if OWN_CUFILE not in text and not is_shipped(text, facts.cufile_digests):
        yield Trace(place), False


@recognizer("driver-container")
def driver_container(facts: ForeignFacts, _locked: Locked) -> Iterator[Piece]:
    """Its root folder is mounted where the operator's other containers look for the driver."""
    if facts.driver_root:
        loaded = facts.nvidia_loaded
        yield Trace("/run/nvidia/driver", "a mount point; nvidia is loaded" if loaded else "a mount point"), loaded


def _without_package(files: Iterable[File]) -> List[str]:
    return [file.path for file in files if require(file.owner) == ""]


def _modules(facts: ForeignFacts, locked: Locked) -> Optional[Sequence[ModuleFile]]:
    """Those of the locked kernel; None where the host doesn't have it yet."""
    if locked.kernel_release not in facts.modules:
        raise UndecidedError(f"the modules of kernel {locked.kernel_release} were not looked at")
    return require(facts.modules[locked.kernel_release])


#: Packages of modules that were built elsewhere for one kernel: Canonical's, and precompiled ones of rpm systems.
_PREBUILT = re.compile(
    r"linux-modules-nvidia-\S*\d\S*"
    r"|kmod-(?:64k-)?nvidia-(?:open-|latest-)?\d\S*|kmod-nvidia-(?!\S*dkms)\S+|nvidia-open-kmod|cuda-open(?:-hwe)?"
)
#: Pieces of the driver by name, and the version that tells the driver from what else has such a name.
_DRIVER = re.compile(r"(?:lib)?nvidia-(?!driver-pinning)|cuda-drivers|xserver-xorg-video-nvidia|kmod-nvidia")
_DRIVER_VERSION = re.compile(r"(?:\d+:)?[3-9]\d\d\.\d+")
#: gdsdeploy's part of dnf's list of locks, and its file of preferences.
_OWN_LOCKS = re.compile(r"^# BEGIN gdsdeploy$.*?^# END gdsdeploy$", re.MULTILINE | re.DOTALL)
_OWN_PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"
_FIELD = r"(?mi)^(Package|Pin|Pin-Priority):[ \t]*(.*)$"
#: What gdsdeploy's pins have; a pin that is read before them and has more wins.
_PRIORITY = 1001


@recognizer("prebuilt-modules")
def prebuilt_modules(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    return _packages(facts, lambda name, _: name not in locked.packages and bool(_PREBUILT.fullmatch(name)))


@recognizer("driver-packages")
def driver_packages(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Pieces of a driver that the lock doesn't have: provision leaves them in their version, or has to remove them."""

    def is_strange(name: str, packages: Sequence[Package]) -> bool:
        is_drivers = _DRIVER.match(name) and not _PREBUILT.fullmatch(name) and name not in locked.packages
        return bool(is_drivers) and any(_DRIVER_VERSION.match(package.version) for package in packages)

    return _packages(facts, is_strange) if locked.packages else iter(())


@recognizer("hold")
def hold(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Holds on the lock's packages that aren't gdsdeploy's."""
    theirs = locked.packages.keys() - set(facts.own_holds)

    def keeps_out(name: str, packages: Sequence[Package]) -> bool:
        held = name in theirs and any(package.status.startswith("h") for package in packages)
        return held and all(package.version != locked.packages[name] for package in packages)

    return _packages(facts, keeps_out)


class _Pin(NamedTuple):
    path: str
    names: Tuple[str, ...]
    pin: str
    priority: int


@recognizer("pin")
def pin(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Records for the lock's packages; of two records for a version, apt takes the one that it reads first."""
    for path, text in facts.preferences:
        # gdsdeploy's file sorts before all names that don't begin with a lower character.
        is_first = path == "/etc/apt/preferences" or path < _OWN_PREFERENCES
        for record in _pins(path, text) if path != _OWN_PREFERENCES else ():
            names = [name for name in locked.packages if any(_matches(word, name) for word in record.names)]
            wins = is_first and any(_wins(record, locked.packages[name]) for name in names)
            detail = f"{' '.join(record.names)}; {record.pin}; priority {record.priority}"
            if names:
                yield Trace(path, detail + ("; read before gdsdeploy's" if wins else "")), wins


def _pins(path: str, text: str) -> Iterator[_Pin]:
    """Records that name packages; those for ``*`` give way to gdsdeploy's, which name them."""
    for block in re.split(r"\n[ \t]*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        fields = {name.lower(): value.strip() for name, value in re.findall(_FIELD, block)}
        names = tuple(word for word in fields.get("package", "").split() if word != "*")
        priority = fields.get("pin-priority", "")
        if names and re.fullmatch(r"-?\d{1,6}", priority):
            yield _Pin(path, names, fields.get("pin", ""), int(priority))


def _matches(word: str, name: str) -> bool:
    """As apt: a name, a shell pattern, or a regular expression between slashes."""
    if len(word) > 2 and word[0] == word[-1] == "/":
        try:
            return re.search(word[1:-1], name) is not None
        except re.error:
            return False
    return fnmatch.fnmatchcase(name, word.partition(":")[0])


def _wins(record: _Pin, version: str) -> bool:
    """Whether apt would not take ``version``: it is forbidden, or another one has a higher priority."""
    kind, _, value = record.pin.partition(" ")
    if kind == "version":
        is_locked = fnmatch.fnmatchcase(version, value.strip())
        return record.priority < 0 if is_locked else record.priority >= _PRIORITY
    # What a release or an address has isn't known here, but ``*`` is everything.
    return record.priority < 0 and value.strip() == "*"


@recognizer("versionlock")
def versionlock(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Lines of dnf's locks that keep the locked version of a package out, or name another one."""
    for path, text in facts.locks:
        for row in map(str.strip, _OWN_LOCKS.sub("", text).splitlines()):
            pattern = row.lstrip("!")
            if not pattern or pattern.startswith("#"):
                continue
            names = [name for name, version in locked.packages.items() if _locks(pattern, name, version)]
            others = [name for name in locked.packages if name not in names and _names(pattern, name)]
            if names if row.startswith("!") else others:
                yield Trace(path, row), row.startswith("!") and bool(_missing(facts, locked, names))


@recognizer("exclude")
def exclude(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Settings of dnf that keep packages of the lock out; those that are installed stay as they are."""
    for path, row in facts.excludes:
        words = list(filter(None, re.split(r"[,\s]+", row.partition(": ")[2])))
        names = [
            name for name, version in locked.packages.items() if any(_locks(word, name, version) for word in words)
        ]
        if names:
            breaks = row.startswith("main: ") and bool(_missing(facts, locked, names))
            yield Trace(path, f"{row}: {', '.join(names)}"), breaks


def _locks(pattern: str, name: str, version: str) -> bool:
    """Whether a pattern of dnf, with any of its parts, is about this version of a package."""
    plain = version.partition(":")[2] if ":" in version else version
    epoch = version.partition(":")[0] if ":" in version else "0"
    spellings = (name, f"{name}-{plain}", f"{name}-{epoch}:{plain}", f"{epoch}:{name}-{plain}")
    return any(
        fnmatch.fnmatchcase(spelling + suffix, pattern)
        for spelling in spellings
        for suffix in ("", ".x86_64", ".noarch", ".aarch64")
    )


def _names(pattern: str, name: str) -> bool:
    """Whether the name in NAME-EPOCH:VERSION-RELEASE matches."""
    head = re.match(r"(?:\d+:)?(.+?)-(?:\d+:)?\d[^-]*(?:-[^-]*)?$", pattern)
    return fnmatch.fnmatchcase(name, head.group(1) if head else pattern)


@recognizer("repository")
def repository(facts: ForeignFacts, locked: Locked) -> Iterator[Piece]:
    """Repositories with a driver that the lock doesn't use; nothing of one that isn't verified can be trusted."""
    for one in facts.sources if locked.repositories else ():
        # Without the scheme, a password and the last slash.
        bare = (re.sub(r"^[a-z+]+://(?:[^/@]*@)?", "", each).rstrip("/") for each in locked.repositories)
        if one.trusted or not any(each and each in one.line for each in bare):
            yield Trace(one.path, _shown(one)), False


def _shown(source: Source) -> str:
    """Its line without a password."""
    row = re.sub(r"://[^/@\s]*@", "://", source.line)
    return row + ("; its packages are not verified" if source.trusted else "")


# Installed packages


def _present(facts: ForeignFacts) -> Mapping[str, Tuple[Package, ...]]:
    """Name → packages that are unpacked."""
    unpacked = {
        name: tuple(package for package in packages if package.status[1:2] not in ("n", "c", ""))
        for name, packages in sorted(facts.installed.items())
    }
    return {name: packages for name, packages in unpacked.items() if packages}


def _packages(facts: ForeignFacts, fits: Callable[[str, Sequence[Package]], bool]) -> Iterator[Piece]:
    """Those of the packages that fit, with their versions."""
    for name, packages in _present(facts).items():
        if fits(name, packages):
            yield Trace(name, ", ".join(package.version for package in packages)), False


def _missing(facts: ForeignFacts, locked: Locked, names: Sequence[str]) -> List[str]:
    """Those that aren't installed in the locked version, so that provision has to install them."""
    present = _present(facts)
    return [
        name
        for name in names
        if _plain(locked.packages[name]) not in [_plain(package.version) for package in present.get(name, ())]
    ]


def _plain(version: str) -> str:
    return version[2:] if version.startswith("0:") else version


#: Findings named in one answer; the evidence has all.
TRACES_NAMED = 2


@check(
    "host.foreign",
    "nothing that others installed takes the place of the locked stack",
    expects="no driver of a run file or of a container; no module, DKMS package or library that nothing explains and"
    " that wins; no pin, lock or exclude that keeps the locked versions out",
    prevents="a driver that no package manager knows: modules and libraries of another version win after the next boot",
)
def foreign(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = facts.environment.container
    if manager is not None:
        return not_applicable(f"{manager}: the packages of its host are not visible")
    if not facts.foreign.modules:
        raise facts.document.not_collected("what others have installed was", "foreign")
    locked = Locked(expectation.kernel_release, expectation.packages, tuple(expectation.repositories))
    installs, unknown = findings(facts.foreign, locked)
    breaking = [one for one in installs if one.breaks]
    lines = [
        f"{one.kind}: {line}"
        for one in (*breaking, *(one for one in installs if not one.breaks))
        for line in evidence(one)
    ]
    if breaking:
        hints = [way_out(one, expectation.kernel_release) for one in breaking]
        sentences = [sentence(one) for one in breaking]
        return failed(first_few(sentences, TRACES_NAMED, "; "), ". ".join(hints[:TRACES_NAMED]), lines)
    if unknown:
        raise UndecidedError("; ".join(unknown[:TRACES_NAMED]))
    if not installs:
        return passed("nothing was found")
    return passed("; ".join(f"{kind(one.kind).title} ({len(one.traces)})" for one in installs), lines)
