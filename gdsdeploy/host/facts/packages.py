"""Installed packages, as the package manager reports them: its choices and locks, and the changes in its logs.

And what the recognizers of foreign.py look at: module files, DKMS trees, libraries, pins, repositories.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..paths import (
    APT_PARTS,
    APT_PREFERENCES,
    APT_SOURCES,
    CUFILE,
    CUFILE_RECORDS,
    CUFILE_SONAME,
    DKMS,
    DKMS_FRAGMENTS,
    DKMS_RECIPES,
    DKMS_SETTINGS,
    DKMS_STACK,
    DNF_CONF,
    DNF_PARTS,
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
from .document import ABSENT, Document, Ran, collected, once_for_alike, recorded_lines
from .unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known, known, require

#: No kernel's release is empty: gdsdeploy writes it where the modules are received.
_IDLE = re.compile(r"""^BUILD_EXCLUSIVE_KERNEL=["']\^\$["']""", re.MULTILINE)
_SIGNS = re.compile(r"""^[ \t]*(?:export[ \t]+)?try_sign_modules=["']?([A-Za-z_]+)""", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """``status`` in dpkg's letters; ``ii`` is wanted and completely installed."""

    version: str
    architecture: str
    status: str


class PackageFacts(Facts):
    """What the package manager and DKMS have."""

    @fact
    def installed(self) -> Mapping[str, Tuple[Package, ...]]:
        """Packages of interest only, each once per architecture."""
        dpkg = known(lambda: self.document.ran("dpkg-query"))
        rpm = if_known(lambda: self.document.ran("rpm"), None) if isinstance(dpkg, Unknown) else None
        return _installed(rpm or require(dpkg))

    @fact
    def dkms(self) -> Tuple[str, ...]:
        """Lines of ``dkms status``."""
        if self.document.has("dkms"):
            return self.document.dkms()
        # Older evidence has what the program said.
        run = self.document.ran("dkms")
        if run.status != 0:
            raise UndecidedError("dkms status: " + (run.stderr.strip() or f"exit status {run.status}"))
        return tuple(run.stdout.splitlines())

    @fact
    def dkms_signs(self) -> str:
        """DKMS's ``try_sign_modules``: ``true``, ``false``, or its default ``not_in_chroot``."""
        names = self.document.names(DKMS_FRAGMENTS + "/*.conf")
        # The last assignment counts: DKMS sources its settings, then the fragments by name.
        value = "not_in_chroot"
        for path in (DKMS_SETTINGS, *(f"{DKMS_FRAGMENTS}/{name}" for name in sorted(names or ()))):
            value = [value, *_SIGNS.findall(self.document.text(path) or "")][-1]
        return value

    @fact
    def dkms_idle(self) -> Tuple[str, ...]:
        """Modules that DKMS builds for no kernel, by their names there."""
        names = self.document.names(DKMS_RECIPES)
        return tuple(sorted(name[: -len(".conf")] for name in names or () if _IDLE.search(self._recipe(name))))

    def _recipe(self, name: str) -> str:
        folder = DKMS_RECIPES.rpartition("/")[0]
        return if_known(lambda: self.document.text(f"{folder}/{name}"), None) or ""


def _installed(run: Ran) -> Mapping[str, Tuple[Package, ...]]:
    if run.status != 0:
        raise UndecidedError("the package manager says: " + (run.stderr.strip() or f"exit status {run.status}"))
    installed: Dict[str, Tuple[Package, ...]] = {}
    for words in (line.split("\t") for line in run.stdout.splitlines()):
        if len(words) == 4:
            name, version, architecture, status = words
            installed[name] = (*installed.get(name, ()), Package(version, architecture, status.strip()))
    return installed


LOGS = ("/var/log/dpkg.log", "/var/log/dnf.rpm.log")
_DNF_LINE = re.compile(r"(\S+) \S+ (Installed|Upgrade|Downgrade|Erase|Removed): (.+?)-((?:\d+:)?[^-]+-[^-]+)\.[^.]+$")


class Choice(NamedTuple):
    """apt's policy for one package.  Versions are empty where there is none; ``source`` is the candidate's."""

    installed: str
    candidate: str
    source: str


class Move(NamedTuple):
    """One change of one package.  ``at`` is the host's local time; ``command`` is empty where no log has it."""

    at: str
    package: str
    action: str
    before: str
    after: str
    command: str
    user: str


class DriftFacts(Facts):
    """What keeps packages at their versions, and what has moved them."""

    @fact
    def choices(self) -> Mapping[str, Choice]:
        """Apt's."""
        return _choices(self.document.ran("apt-policy").stdout)

    @fact
    def locked(self) -> Tuple[str, ...]:
        """Names that dnf may not change."""
        texts = [known(partial(self.document.text, path)) for path in VERSIONLOCKS]
        if all(isinstance(text, Unknown) for text in texts):
            raise UndecidedError("the locks of dnf were not looked at")
        # NAME-EPOCH:VERSION-RELEASE.ARCH, with the epoch before the name in older lists
        pattern = re.compile(r"^(?:\d+:)?([A-Za-z0-9][\w.+-]*?)-(?:\d+:)?\d[^-\s]*-[^-\s]+$", re.MULTILINE)
        return tuple(sorted({name for text in texts if isinstance(text, str) for name in pattern.findall(text)}))

    @fact
    def moves(self) -> Tuple[Move, ...]:
        """The oldest first."""
        if not any(path.startswith(LOGS) for path in self.document.paths("excerpts")):
            raise UndecidedError("no log of the package manager was looked at")
        return tuple(sorted([*_dpkg(self.document), *_dnf(self.document)]))


@once_for_alike
def _choices(text: str) -> Mapping[str, Choice]:
    """``apt-cache policy``: a block a package, its versions with the sources that offer them."""
    choices: Dict[str, Choice] = {}
    for block in re.split(r"\n(?=\S)", text):
        head = re.match(r"(\S+?)(?::[a-z0-9]+)?:\n\s+Installed: (\S+)\n\s+Candidate: (\S+)", block)
        if head is None:
            continue
        installed, candidate = ("" if version == "(none)" else version for version in head.groups()[1:])
        choices[head.group(1)] = Choice(installed, candidate, _source(block, candidate))
    return choices


def _source(block: str, version: str) -> str:
    """The first repository that offers a version, from the table where each version is followed by its sources."""
    if not version:
        return ""
    rows = re.search(rf"^ (?:\*\*\*|   ) {re.escape(version)} .*\n((?:\s{{6,}}.*\n?)*)", block, re.MULTILINE)
    sources = [line.split(None, 1) for line in (rows.group(1) if rows else "").splitlines()]
    return next((words[1] for words in sources if len(words) > 1 and "/var/lib/dpkg/" not in words[1]), "")


def _logs(document: Document, begin: str) -> Iterator[str]:
    for path in document.paths("excerpts"):
        yield from recorded_lines(document, path) if path.startswith(begin) else ()


def _dpkg(document: Document) -> List[Move]:
    runs = _apt_runs(document)
    moves = []
    for line in _logs(document, "/var/log/dpkg.log"):
        words = line.split()
        if len(words) != 6 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        at, name = " ".join(words[:2]), words[3].partition(":")[0]
        before, after = ("" if version == "<none>" else version for version in words[4:])
        command, user = next(((run[2], run[3]) for run in runs if run[0] <= at <= run[1]), ("", ""))
        moves.append(Move(at, name, words[2], before, after, command, user))
    return moves


def _apt_runs(document: Document) -> List[Tuple[str, str, str, str]]:
    """(begin, end, command line, user) of each run in apt's history; 9999 is the end of an unfinished run."""
    runs: List[Dict[str, str]] = []
    for line in _logs(document, "/var/log/apt/history.log"):
        key, _, value = line.partition(": ")
        runs += [{"End-Date": "9999"}] if key == "Start-Date" else []
        if runs:
            runs[-1][key] = " ".join(value.split())
    keys = ("Start-Date", "End-Date", "Commandline", "Requested-By")
    rows = ((run.get(key, "") for key in keys) for run in runs)
    # Rotated files come after the current one, so the blocks are put in their order first.
    return sorted(((begin, end, command, user) for begin, end, command, user in rows), reverse=True)


def _dnf(document: Document) -> List[Move]:
    """dnf4 logs ``Upgrade: new`` and ``Upgraded: old``; the command that began before stands in another log."""
    commands = []
    for line in _logs(document, "/var/log/dnf.log"):
        stamp, _, command = line.partition(" Command: ")
        commands.append((_stamp(stamp), command.strip()))
    moves = []
    for line in _logs(document, "/var/log/dnf.rpm.log"):
        match = _DNF_LINE.match(line)
        if match is None:
            continue
        at, action, name, version = _stamp(match.group(1)), match.group(2).lower(), match.group(3), match.group(4)
        is_removal = action in ("erase", "removed")
        command = next((words for moment, words in sorted(commands, reverse=True) if moment <= at), "")
        moves.append(Move(at, name, action, version if is_removal else "", "" if is_removal else version, command, ""))
    return moves


def _stamp(text: str) -> str:
    """``2026-11-21T03:00:00+0000 …`` as the other logs write it."""
    return text.split()[0][:19].replace("T", " ") if text.split() else ""


LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", CUFILE_SONAME)
#: The line of ldconfig for a library of 64 bits.
_LIBRARY = r"^\s*{}\s+\((?:libc6,)?(?:x86-64|AArch64)[^)]*\) => (/\S+)$"
_AUTOINSTALL = re.compile(r"""^[ \t]*AUTOINSTALL=["']?[yY]""", re.MULTILINE)
#: Lines of repositories that aren't an address: see evidence/packages.py.
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

    @fact
    def own_holds(self) -> Tuple[str, ...]:
        """Packages that gdsdeploy holds; empty where it holds none."""
        return tuple((self.document.text(HOLDS_RECORD) or "").split()) if self._has_apt else ()

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

    @fact
    def locks(self) -> Tuple[Tuple[str, str], ...]:
        """(path, text) of dnf's lists of locks; empty without dnf."""
        return () if self._has_apt else _texts(self.document, VERSIONLOCKS)

    @fact
    def excludes(self) -> Tuple[Tuple[str, str], ...]:
        """(path, ``SECTION: words``) of dnf's settings that keep packages out."""
        return () if self._has_apt else _excludes(self.document)

    @fact
    def sources(self) -> Tuple[Source, ...]:
        return _sources(self.document, self._has_apt)

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
        return any(line.split()[4:5] == [DRIVER_ROOT] for line in text.splitlines())

    @fact
    def nvidia_loaded(self) -> bool:
        """Whether a module nvidia is loaded."""
        return re.search(r"^nvidia ", self.document.text("/proc/modules") or "", re.MULTILINE) is not None


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


def _excludes(document: Document) -> Tuple[Tuple[str, str], ...]:
    names = document.names(DNF_PARTS + "/*.repo") or ()
    section = document.value.get("excludes")
    records = section if isinstance(section, dict) else {}
    entries: List[Tuple[str, str]] = []
    for path in (DNF_CONF, *(f"{DNF_PARTS}/{name}" for name in names)):
        lines = records.get(path)
        if isinstance(lines, dict) and lines.get("error") in ABSENT:
            continue
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise UndecidedError(f"what {path} keeps out is not known")
        entries += [(path, line) for line in lines]
    return tuple(entries)


def _sources(document: Document, has_apt: bool) -> Tuple[Source, ...]:
    """Enabled entries of repositories that are known to have a driver."""
    folder, listed = (APT_PARTS, APT_PARTS) if has_apt else (DNF_PARTS, DNF_PARTS + "/*.repo")
    names = document.names(listed) or ()
    endings = (".list", ".sources") if has_apt else (".repo",)
    paths = [APT_SOURCES] if has_apt else []
    entries: List[Source] = []
    for path in (*paths, *(f"{folder}/{name}" for name in names if name.endswith(endings))):
        lines = document.lines(path) or ()
        if "gdsdeploy" not in os.path.basename(path):
            entries += _of_lists(path, lines) if path.endswith(".list") else _of_stanzas(path, lines)
    return tuple(entries)


def _of_lists(path: str, lines: Tuple[str, ...]) -> List[Source]:
    entries = [line.strip() for line in lines if re.match(r"\s*deb\s", line)]
    return [Source(path, line, re.search(r"\[[^\]]*trusted=yes", line) is not None) for line in entries]


def _of_stanzas(path: str, lines: Tuple[str, ...]) -> List[Source]:
    """Entries of deb822 files, between empty lines, and sections of dnf's; one that is switched off is no entry."""
    blocks: List[List[str]] = [[]]
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            blocks.append([])
        blocks[-1].append(line)
    entries: List[Source] = []
    for block in blocks:
        text = "\n".join(block)
        addresses = [
            line.strip() for line in block if re.match(r"(?i)\s*(uris\s*:|baseurl|mirrorlist|metalink)|\s+\S", line)
        ]
        heads = [line.strip() for line in block if _SECTION.match(line)]
        is_off = re.search(r"(?im)^\s*enabled\s*[:=]\s*(?:no|0|false)\b", text) is not None
        pattern = [line for line in [*addresses, *heads] if "://" in line or "amazonlinux-nvidia" in line]
        if pattern and not is_off:
            entries.append(Source(path, pattern[0], re.search(r"(?im)^trusted\s*:\s*yes", text) is not None))
    return entries


# Configuration and containers


def is_shipped(text: str, digests: Tuple[str, ...]) -> bool:
    """Whether a package has a file of this content, by its digests."""
    data = text.encode("utf-8")
    own = {hashlib.sha256(data).hexdigest()}
    # FIPS mode has no MD5: then the file counts as edited, and is kept.
    with contextlib.suppress(ValueError):
        own.add(hashlib.md5(data).hexdigest())  # noqa: S324  # nosec B324 # dpkg's own, compared and never trusted
    return bool(own & set(digests))
