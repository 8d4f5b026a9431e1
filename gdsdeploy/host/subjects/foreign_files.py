"""What others may have installed of this stack: module files, DKMS trees, programs, libraries, pins, repositories.

:func:`look` also runs before a provision, and costs a walk through one kernel's folder and a few small files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import ElfError, HostError
from ..facts.document import Document, collected, recorded_lines
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, fact, follows, given, known
from ..io import reading
from ..io.mounts import mounts_in
from ..kmod.module import read_once
from ..paths import (
    APT_PARTS,
    APT_PREFERENCES,
    APT_SOURCES,
    CUFILE,
    CUFILE_RECORDS,
    CUFILE_SONAME,
    DKMS,
    DKMS_STACK,
    DNF_CONF,
    DNF_PARTS,
    DRIVER_REPOSITORIES,
    DRIVER_ROOT,
    HOLDS_RECORD,
    INSTALLER_LOG,
    LOADER_UNITS,
    MODULE_LOADER,
    MOUNTINFO,
    PREFERENCE_PARTS,
    RUNFILE_PROGRAM,
    VERSIONLOCKS,
)
from ..rootdir import LoopError, inside, list_folder, read_text
from .loader import SONAMES, known_libraries, listed
from .packages import PackageFacts
from .register import collector
from .types import EvidenceRequest, Recorder

if TYPE_CHECKING:
    from ..kmod.kernel import Kernel

LIBRARIES = (*SONAMES, CUFILE_SONAME)
_RELEASE = re.compile(r"/lib/modules/([^/]+)/")
_MOUNTS_LIMIT = 1024 * 1024
#: Lists of dpkg that are searched first: those of packages that usually own what is looked for.
_LIKELY = re.compile(r"(lib)?(nvidia|cuda|cufile)|linux-modules|gds-|firmware-nvidia")
_DPKG_INFO, _DIVERSIONS = "/var/lib/dpkg/info", "/var/lib/dpkg/diversions"
#: A line that doesn't belong to an address of a repository with the driver isn't kept: it may hold a password.
_STANZA = r"^\s*$|^(?:Types|Enabled|Trusted|X-Repolib-\w+)\s*:|^\s*\[[^\]=\s]*\]\s*$|^\s*enabled\s*="
_SETTINGS = ("exclude", "excludepkgs")


@collector("foreign")
def collect_foreign(recorder: Recorder, request: EvidenceRequest) -> None:
    """Of the locked kernel where there is an expectation, else of the running one."""
    running: str = recorder.document["host"]["uname"]["release"]
    release = request.expectation.kernel_release if request.expectation is not None else running
    kernel = recorder.kernels.get(release)
    look(recorder, release, None if kernel is None else lambda: kernel)


def look(recorder: Recorder, release: str, kernel: Optional[Callable[[], Kernel]] = None) -> None:
    """Record what the recognizers of ``foreign/`` need, but not the list of packages.

    release: of the locked kernel.  kernel: the same, where the caller has walked its folder already.
    """
    recorder.value("modulefiles", release, lambda _place: _module_files(recorder, release, kernel))
    candidates = [
        *(file["place"] for file in _unexplained(recorder, release)),
        *_dkms_trees(recorder),
        *_programs(recorder),
        *_libraries(recorder),
        *_configuration(recorder),
    ]
    _package_manager(recorder)
    recorder.text(MOUNTINFO, limit=_MOUNTS_LIMIT)
    recorder.names(DRIVER_ROOT)
    recorder.text("/proc/modules")
    _owners(recorder, [path for path in dict.fromkeys(candidates) if os.path.lexists(recorder.at(path))])
    _built(recorder, release)


def _real(recorder: Recorder, path: str) -> str:
    """Where the links of ``path`` end, as seen from the root."""
    try:
        return os.path.normpath("/" + os.path.relpath(inside(recorder.root, path), recorder.root))
    except LoopError:
        return path


# Module files


def _module_files(recorder: Recorder, release: str, kernel: Optional[Callable[[], Kernel]]) -> Dict[str, Any]:
    """``{"files": [{file, place, chosen, dkms, own}]}`` of the stack's modules, or ``{"error"}``.

    ``place``: where links end.  ``dkms``: NAME/VERSION that installed it.  ``own``: gdsdeploy received or built it.
    """
    from ..kmod.driver import stack_names
    from ..kmod.kernel import Kernel
    from ..kmod.packaged import FOLDER

    try:
        walked = kernel() if kernel is not None else Kernel(release, recorder.root)
    except HostError as error:
        absent = not recorder.exists("/lib/modules/" + release)
        return {"error": "ENOENT" if absent else error.message}
    files: List[Dict[str, Any]] = []
    for name in stack_names(walked):
        choice = walked.choose(name)
        same = (choice.file, *choice.others) if choice is not None else ()
        for file in same:
            place = _real(recorder, f"/lib/modules/{release}/{file}")
            files.append(
                {
                    "file": file,
                    "place": place,
                    "chosen": choice is not None and file == choice.file,
                    "dkms": _dkms_of(recorder, place, alone=len(same) == 1),
                    # Provision replaces that folder as a whole, whatever is in it.
                    "own": os.path.dirname(file) == FOLDER,
                }
            )
    return {"files": files}


def _dkms_of(recorder: Recorder, place: str, *, alone: bool) -> str:
    """NAME/VERSION of the DKMS package that has installed a module under this file name; empty: none.

    alone: whether the kernel has no other file of this name; of several, only the build's copy is DKMS's.
    """
    from ..kmod.packaged import are_equal

    match = _RELEASE.search(place)
    base = os.path.basename(place).partition(".ko")[0]
    for name in list_folder(recorder.root, DKMS) if match else ():
        for link in list_folder(recorder.root, f"{DKMS}/{name}"):
            if match is None or not link.startswith(f"kernel-{match.group(1)}-"):
                continue
            target = inside(recorder.root, f"{DKMS}/{name}/{link}")
            for entry in list_folder(recorder.root, f"{DKMS}/{name}/{link}/module"):
                is_same = entry.partition(".ko")[0] == base
                if is_same and (alone or are_equal(f"{target}/module/{entry}", recorder.at(place))):
                    # …/NAME/VERSION/RELEASE/ARCH
                    return f"{name}/{target.split('/')[-3]}"
    return ""


def _unexplained(recorder: Recorder, release: str) -> List[Dict[str, Any]]:
    """The files that neither DKMS nor gdsdeploy has put there."""
    files = recorder.document["modulefiles"][release].get("files", ())
    return [file for file in files if not file["dkms"] and not file["own"]]


def _built(recorder: Recorder, release: str) -> None:
    """Mark files without a package that ``kmod build`` made: it writes into a module what it was built from."""
    for file in _unexplained(recorder, release):
        if recorder.document["owners"].get(file["place"]) == "":
            try:
                file["own"] = bool(read_once(recorder.at(file["place"])).provenance)
            except (ElfError, OSError):
                # What it is stays unknown, but nothing explains it.
                continue


# DKMS


def _dkms_trees(recorder: Recorder) -> Iterator[str]:
    """The settings of the stack's DKMS packages; yields where they lie in the sources."""
    for name in filter(DKMS_STACK.match, recorder.names(DKMS)):
        for version in recorder.names(f"{DKMS}/{name}"):
            if version.startswith("kernel-"):
                # Its target is the version that is installed for a kernel.
                recorder.link(f"{DKMS}/{name}/{version}")
                continue
            source = f"{DKMS}/{name}/{version}/source"
            place = _real(recorder, source)
            recorder.document["links"][source] = place
            recorder.text(place + "/dkms.conf")
            yield place + "/dkms.conf"


# Programs and libraries


def _programs(recorder: Recorder) -> Iterator[str]:
    folder, pattern = RUNFILE_PROGRAM
    yield from recorder.paths(folder, pattern=pattern)
    recorder.excerpt(INSTALLER_LOG, r"^(?:installer version|creation time): ")
    programs = (f"{toolkit}/bin" for toolkit in recorder.paths("/usr/local", pattern="cuda-*"))
    yield from recorder.paths(*programs, pattern="cuda-uninstaller")
    yield from recorder.paths(*LOADER_UNITS, pattern=MODULE_LOADER)


def _libraries(recorder: Recorder) -> Iterator[str]:
    """Every file that the loader has for the stack's libraries; programs get the first one of each."""
    if "ldconfig" not in recorder.document["commands"]:
        known_libraries(recorder)
    shown = recorder.document["commands"]["ldconfig"]["stdout"]
    for name in LIBRARIES:
        for path in listed(shown, name):
            place = _real(recorder, path)
            recorder.document["links"][path] = place
            yield place


# Configuration


def _configuration(recorder: Recorder) -> Iterator[str]:
    """cufile.json, where it lies, and what the package manager knows about its content."""
    place = _real(recorder, CUFILE)
    recorder.document["links"][CUFILE] = place
    if recorder.text(place) is None:
        return
    if reading.package_manager(recorder.root) == reading.DPKG:
        recorder.excerpt("/var/lib/dpkg/status", r"^ /\S*cufile\.json [0-9a-f]{32}")
        recorder.excerpts(recorder.paths(_DPKG_INFO, pattern="libcufile*.md5sums"), r"cufile\.json$")
    elif reading.package_manager(recorder.root) == reading.RPM:
        argv = ["rpm", "-qf", "--qf", "[%{FILENAMES}\\t%{FILEDIGESTS}\\n]", place]
        recorder.command(CUFILE_RECORDS, argv, pattern=r"cufile\.json\t")
    yield place


def _package_manager(recorder: Recorder) -> None:
    """Pins, locks, excludes, gdsdeploy's own holds, and repositories that are known to have the driver."""
    pattern = f"{DRIVER_REPOSITORIES}|{_STANZA}"
    kind = reading.package_manager(recorder.root)
    if kind == reading.DPKG:
        parts = [path for path in recorder.paths(PREFERENCE_PARTS) if os.path.splitext(path)[1] in ("", ".pref")]
        recorder.texts((HOLDS_RECORD, APT_PREFERENCES, *parts))
        lists = [path for path in recorder.paths(APT_PARTS) if path.endswith((".list", ".sources"))]
        recorder.excerpts((APT_SOURCES, *lists), pattern)
    elif kind == reading.RPM:
        recorder.texts(VERSIONLOCKS)
        paths = recorder.paths(DNF_PARTS, pattern="*.repo")
        recorder.excerpts(paths, pattern)
        for path in (DNF_CONF, *paths):
            recorder.value("excludes", path, _kept_out)


def _kept_out(place: str) -> List[str]:
    """``SECTION: words`` of each setting that keeps packages out; lines that begin with a space continue one."""
    text = reading.beginning(place, 256 * 1024).decode("utf-8", "replace")
    section, settings = "", []
    for line in re.sub(r"\n[ \t]+(?=[^\s#])", " ", text).splitlines():
        head = re.match(r"\s*\[(.+)\]\s*$", line)
        section = head.group(1) if head else section
        key, _, value = line.partition("=")
        if key.strip() in _SETTINGS and value.strip():
            settings.append(f"{section}: {value.strip()}")
    return settings


# Who owns what


def _owners(recorder: Recorder, paths: Sequence[str]) -> None:
    """Path → the package that has the file, empty where none has; or why that isn't known."""
    owners = recorder.document["owners"]
    kind = reading.package_manager(recorder.root)
    if not paths:
        return
    if kind == reading.DPKG:
        owners.update(_dpkg_owners(recorder, paths))
    elif kind == reading.RPM:
        owners.update(_rpm_owners(recorder, paths))
    else:
        owners.update({path: {"error": "there is no database of packages"} for path in paths})


def _rpm_owners(recorder: Recorder, paths: Sequence[str]) -> Dict[str, Any]:
    """One line a path, which is a sentence where no package has the file; a shared file has several lines."""
    argv = ["rpm", "-qf", "--qf", "%{NAME}\\n", "--"]
    output = recorder.command("rpm-owners", [*argv, *paths], timeout=30)
    lines = output.stdout.splitlines()
    if len(paths) == 1 and not lines:
        return {paths[0]: {"error": output.failure()}}
    if len(paths) == 1 or len(lines) == len(paths):
        return {path: "" if " " in line else line for path, line in zip(paths, lines)}
    return {key: owner for path in paths for key, owner in _rpm_owners(recorder, [path]).items()}


def _dpkg_owners(recorder: Recorder, paths: Sequence[str]) -> Dict[str, Any]:
    """By dpkg's lists of files; those of likely packages first, all others only for what is left."""
    folder = inside(recorder.root, _DPKG_INFO)
    lists = [name for name in list_folder(recorder.root, _DPKG_INFO) if name.endswith(".list")]
    if not lists:
        return {path: {"error": f"there are no lists of files in {_DPKG_INFO}"} for path in paths}
    names = {path: _spellings(recorder, path) for path in paths}
    owners: Dict[str, Any] = {}
    for name in sorted(lists, key=lambda name: (not _LIKELY.match(name), name)):
        if len(owners) == len(names):
            break
        try:
            with open(f"{folder}/{name}", "rb") as file:
                content = b"\n" + file.read()
        except OSError:
            continue
        for path, spellings in names.items():
            if path not in owners and any(spelling in content for spelling in spellings):
                owners[path] = name[: -len(".list")].partition(":")[0]
    return {**dict.fromkeys(names, ""), **owners}


def _spellings(recorder: Recorder, path: str) -> List[bytes]:
    """Lines that a list may have for a file: with /usr or without, and where it was before dpkg diverted it."""
    diversions = _diversions(recorder)
    every = [path, *([diversions[path]] if path in diversions else [])]
    every += [one[len("/usr") :] if one.startswith("/usr/") else "/usr" + one for one in every]
    return [f"\n{one}\n".encode("utf-8", "surrogateescape") for one in every]


def _diversions(recorder: Recorder) -> Dict[str, str]:
    """Where a diverted file is → the name that its package has for it: three lines each, with the package."""
    lines = read_text(recorder.root, _DIVERSIONS).splitlines()
    return {lines[at + 1]: lines[at] for at in range(0, len(lines) - 2, 3)}


#: The line of ldconfig for a library of 64 bits.
_LIBRARY = r"^\s*{}\s+\((?:libc6,)?(?:x86-64|AArch64)[^)]*\) => (/\S+)$"
_AUTOINSTALL = re.compile(r"""^[ \t]*AUTOINSTALL=["']?[yY]""", re.MULTILINE)
#: Lines of repositories that aren't an address: see _STANZA.
_SECTION = re.compile(r"\s*\[([^\]=\s]*)\]\s*$")


class ModuleFile(NamedTuple):
    """A file below /lib/modules/RELEASE.  ``owner``: its package; empty: none.  ``chosen``: depmod takes it.

    ``place``: where its links end.  ``dkms``: NAME/VERSION that installed it.  ``own``: gdsdeploy did.
    """

    file: str
    place: str
    chosen: bool
    dkms: str
    own: bool
    owner: Maybe[str]


class DkmsTree(NamedTuple):
    """A package of DKMS.  ``source``: its folder.  ``owner``: package of that.  ``releases``: where it's installed."""

    name: str
    version: str
    source: str
    owner: Maybe[str]
    autoinstall: bool
    releases: Tuple[str, ...]


class File(NamedTuple):
    """A file and the package that has it; empty: none."""

    path: str
    owner: Maybe[str]


class Library(NamedTuple):
    """A file that the loader has for ``soname``, in its order."""

    soname: str
    path: str
    place: str
    owner: Maybe[str]


class Source(NamedTuple):
    """An enabled entry of a repository that is known to have a driver; ``trusted``: nothing of it is verified."""

    path: str
    line: str
    trusted: bool


class ForeignFacts(Facts):
    """Everything is as the evidence has it, and the recognizers judge.  Evidence of an older release has none of it."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._has_apt = document.has("commands") and _was_read(document, APT_PREFERENCES)

    installed = given(lambda document: PackageFacts(document).installed)

    #: packages that gdsdeploy holds; empty where it holds none
    own_holds: Tuple[str, ...] = follows(
        lambda self: tuple((self.document.text(HOLDS_RECORD) or "").split()) if self._has_apt else ()
    )

    @fact
    def modules(self) -> Mapping[str, Maybe[Optional[Tuple[ModuleFile, ...]]]]:
        """Release → the files of the stack's modules, the chosen one of each name first; None: no such kernel."""
        releases = self.document.paths("modulefiles")
        return {release: known(partial(_modules, self.document, release)) for release in releases}

    @fact
    def dkms(self) -> Tuple[DkmsTree, ...]:
        names = self.document.names(DKMS) or ()
        return tuple(tree for name in filter(DKMS_STACK.match, names) for tree in _trees(self.document, name))

    #: what the driver's run file left for its removal
    driver_programs = given(lambda document: _files(document, RUNFILE_PROGRAM))

    @fact
    def cuda_programs(self) -> Tuple[File, ...]:
        """Likewise CUDA's run files."""
        folders = self.document.names("/usr/local/cuda-*") or ()
        return _files(self.document, *((f"/usr/local/{folder}/bin", "cuda-uninstaller") for folder in folders))

    #: lines of the log of the driver's run file
    installer_log = given(lambda document: recorded_lines(document, INSTALLER_LOG))
    module_loaders = given(lambda document: _files(document, *((folder, MODULE_LOADER) for folder in LOADER_UNITS)))

    @fact
    def libraries(self) -> Tuple[Library, ...]:
        run = self.document.ran("ldconfig")
        entries: List[Library] = []
        for soname in LIBRARIES:
            for path in re.findall(_LIBRARY.format(re.escape(soname)), run.stdout, re.MULTILINE):
                place = self.document.link(path)
                if place is not None:
                    entries.append(Library(soname, path, place, owner(self.document, place)))
        return tuple(entries)

    @fact
    def preferences(self) -> Tuple[Tuple[str, str], ...]:
        """(path, text) of apt's preferences in the order in which apt reads them; empty without apt."""
        if not self._has_apt:
            if not _was_read(self.document, VERSIONLOCKS[0]):
                raise UndecidedError(f"{APT_PREFERENCES} was not looked at")
            return ()
        names = self.document.names(PREFERENCE_PARTS) or ()
        # As apt: other endings, and names that begin with a point, are left out.
        read = [name for name in sorted(names) if os.path.splitext(name)[1] in ("", ".pref") and name[:1] != "."]
        return _texts(self.document, (APT_PREFERENCES, *(f"{PREFERENCE_PARTS}/{name}" for name in read)))

    #: (path, text) of dnf's lists of locks; empty without dnf
    locks: Tuple[Tuple[str, str], ...] = follows(
        lambda self: () if self._has_apt else _texts(self.document, VERSIONLOCKS)
    )
    #: (path, ``SECTION: words``) of dnf's settings that keep packages out
    excludes: Tuple[Tuple[str, str], ...] = follows(
        lambda self: () if self._has_apt else tuple(_excludes(self.document))
    )
    sources: Tuple[Source, ...] = follows(lambda self: tuple(_sources(self.document, self._has_apt)))

    @fact
    def cufile(self) -> Optional[Tuple[str, Maybe[str], str]]:
        """cufile.json: where it lies, its package, its text; None: there is none."""
        place = self.document.link(CUFILE)
        text = None if place is None else self.document.text(place)
        return None if place is None or text is None else (place, owner(self.document, place), text)

    @fact
    def cufile_digests(self) -> Tuple[str, ...]:
        """Digests, MD5 or SHA-256, that packages have for it."""
        lines = [*recorded_lines(self.document, "/var/lib/dpkg/status")]
        for name in self.document.existing("/var/lib/dpkg/info/libcufile*.md5sums"):
            lines += recorded_lines(self.document, f"/var/lib/dpkg/info/{name}")
        lines += self.document.printed(CUFILE_RECORDS).splitlines()
        return tuple(word for line in lines for word in re.findall(r"\b(?:[0-9a-f]{64}|[0-9a-f]{32})\b", line))

    @fact
    def driver_root(self) -> bool:
        """Whether a container shows its root folder as the driver's."""
        text = collected(self.document.text(MOUNTINFO), f"{MOUNTINFO} is missing")
        return DRIVER_ROOT in mounts_in(text).visible

    #: a module nvidia is loaded
    nvidia_loaded = given(
        lambda document: re.search(r"^nvidia ", document.text("/proc/modules") or "", re.MULTILINE) is not None
    )


def _was_read(document: Document, path: str) -> bool:
    return not isinstance(known(lambda: document.text(path)), Unknown)


def owner(document: Document, path: str) -> Maybe[str]:
    """The package that has a file; empty: none has it."""
    value = document.value.get("owners")
    record = value.get(path) if isinstance(value, dict) else None
    if isinstance(record, str):
        return record
    reason = record.get("error") if isinstance(record, dict) else None
    return Unknown(f"which package has {path} is not known: {reason or 'it was not looked for'}")


def _modules(document: Document, release: str) -> Optional[Tuple[ModuleFile, ...]]:
    record = document.record("modulefiles", release, "'s modules could not be listed")
    if record is None:
        return None
    files = [_module(document, entry) for entry in _list(record.get("files"))]
    return tuple(collected(file, f"the record of the modules of {release} is malformed") for file in files)


def _list(entries: Any) -> List[Any]:
    return entries if isinstance(entries, list) else [None]


def _module(document: Document, entry: Any) -> Optional[ModuleFile]:
    """None for a malformed record."""
    file, place, dkms = (entry.get(key) if isinstance(entry, dict) else None for key in ("file", "place", "dkms"))
    if not (isinstance(file, str) and isinstance(place, str) and isinstance(dkms, str)):
        return None
    is_chosen, is_own = entry.get("chosen") is True, entry.get("own") is True
    return ModuleFile(file, place, is_chosen, dkms, is_own, owner(document, place))


def _trees(document: Document, name: str) -> Iterator[DkmsTree]:
    """Every version of a package; one whose source is gone can't be built."""
    entries = document.names(f"{DKMS}/{name}") or ()
    links = [document.link(f"{DKMS}/{name}/{entry}") for entry in entries if entry.startswith("kernel-")]
    # …/NAME/VERSION/RELEASE/ARCH
    installed = [link.split("/")[-3:-1] for link in links if link is not None]
    for version in (entry for entry in entries if not entry.startswith("kernel-")):
        source = document.link(f"{DKMS}/{name}/{version}/source")
        recipe = None if source is None else document.text(source + "/dkms.conf")
        if source is not None and recipe is not None:
            releases = tuple(words[1] for words in installed if words[0] == version)
            package, is_automatic = owner(document, source + "/dkms.conf"), _AUTOINSTALL.search(recipe) is not None
            yield DkmsTree(name, version, source, package, is_automatic, releases)


def _files(document: Document, *patterns: Tuple[str, str]) -> Tuple[File, ...]:
    """The files that match (folder, pattern)."""
    paths = [f"{folder}/{name}" for folder, pattern in patterns for name in document.names(f"{folder}/{pattern}") or ()]
    return tuple(File(path, owner(document, path)) for path in paths)


# The package manager


def _texts(document: Document, paths: Tuple[str, ...]) -> Tuple[Tuple[str, str], ...]:
    """(path, text) of those that exist."""
    texts = [(path, document.text(path) or "") for path in paths]
    return tuple((path, text) for path, text in texts if text)


def _excludes(document: Document) -> Iterator[Tuple[str, str]]:
    names = document.names(DNF_PARTS + "/*.repo") or ()
    for path in (DNF_CONF, *(f"{DNF_PARTS}/{name}" for name in names)):
        try:
            lines = document.names(path, "excludes") or ()
        except UndecidedError:
            raise UndecidedError(f"what {path} keeps out is not known") from None
        yield from ((path, line) for line in lines)


def _sources(document: Document, has_apt: bool) -> Iterator[Source]:
    """Enabled entries of repositories that are known to have a driver."""
    folder, listed = (APT_PARTS, APT_PARTS) if has_apt else (DNF_PARTS, DNF_PARTS + "/*.repo")
    names = document.names(listed) or ()
    endings = (".list", ".sources") if has_apt else (".repo",)
    paths = [APT_SOURCES] if has_apt else []
    for path in (*paths, *(f"{folder}/{name}" for name in names if name.endswith(endings))):
        lines = document.lines(path) or ()
        if "gdsdeploy" not in os.path.basename(path):
            yield from _of_lists(path, lines) if path.endswith(".list") else _of_stanzas(path, lines)


def _of_lists(path: str, lines: Tuple[str, ...]) -> Iterator[Source]:
    entries = [line.strip() for line in lines if re.match(r"\s*deb\s", line)]
    return (Source(path, line, re.search(r"\[[^\]]*trusted=yes", line) is not None) for line in entries)


def _of_stanzas(path: str, lines: Tuple[str, ...]) -> Iterator[Source]:
    """Entries of deb822 files, between empty lines, and sections of dnf's; one that is switched off is no entry."""
    blocks: List[List[str]] = [[]]
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            blocks.append([])
        blocks[-1].append(line)
    for block in blocks:
        text = "\n".join(block)
        addresses = [
            line.strip() for line in block if re.match(r"(?i)\s*(uris\s*:|baseurl|mirrorlist|metalink)|\s+\S", line)
        ]
        heads = [line.strip() for line in block if _SECTION.match(line)]
        is_off = re.search(r"(?im)^\s*enabled\s*[:=]\s*(?:no|0|false)\b", text) is not None
        pattern = [line for line in [*addresses, *heads] if "://" in line or "amazonlinux-nvidia" in line]
        if pattern and not is_off:
            yield Source(path, pattern[0], re.search(r"(?im)^trusted\s*:\s*yes", text) is not None)


# Configuration and containers


def is_shipped(text: str, digests: Tuple[str, ...]) -> bool:
    """Whether a package has a file of this content, by its digests."""
    data = text.encode("utf-8")
    own = {hashlib.sha256(data).hexdigest()}
    # FIPS mode has no MD5: then the file counts as edited, and is kept.
    with contextlib.suppress(ValueError):
        own.add(hashlib.md5(data).hexdigest())  # noqa: S324  # nosec B324 # dpkg's own, compared and never trusted
    return bool(own & set(digests))
