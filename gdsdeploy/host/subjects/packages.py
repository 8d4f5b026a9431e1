"""Installed packages, DKMS, the package manager's choices, locks and logs.

The choices and locks could move the stack; the logs tell what did.  Repositories are collected, with the keys that they
name, only for a first fleet file.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import process
from ..facts.document import Document, Ran, once_for_alike, recorded_lines, there
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, fact, if_known, known, require
from ..io import cache, reading
from ..io.wording import first_few
from ..model.expectation import Expectation
from ..model.system import major_version
from ..paths import (
    APT_PARTS,
    APT_SOURCES,
    DKMS,
    DKMS_FRAGMENTS,
    DKMS_RECIPES,
    DKMS_SETTINGS,
    DNF_PARTS,
    DNF_VARIABLES,
    VERSIONLOCKS,
)
from .register import Answer, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Recorder

#: Beginnings of package names that belong to this stack, in Debian's and NVIDIA's repositories.
NAMES = (
    r"(nvidia|libnvidia|xserver-xorg-video-nvidia|firmware-nvidia|kmod-nvidia|libcu(?:file|da|inj|blas|fft)|cuda|gds-|linux-image|linux-headers"
    r"|linux-modules|kernel-|dkms|doca|mlnx|mft|ofed|libibverbs|rdma-core|ibverbs|systemd$|udev|initramfs|grub|kmod$)"
)
DPKG_FORMAT = "${Package}\\t${Version}\\t${Architecture}\\t${db:Status-Abbrev}\\n"
#: For dpkg.
ENVIRONMENT: Dict[str, str] = {}
RPM_FORMAT = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\t%{ARCH}\\tii\\n"


@collector("packages")
def collect_packages(recorder: Recorder, request: EvidenceRequest) -> None:
    exact = "|".join(re.escape(name) for name in request.packages)
    pattern = "^(?:{}{})".format(NAMES, rf"|(?:{exact})\t" if exact else "")
    if reading.package_manager(recorder.root) == reading.DPKG:
        argv = ["dpkg-query", "-W", "-f", DPKG_FORMAT]
        inputs = dpkg_inputs(recorder)
        recorder.command("dpkg-query", argv, timeout=30, env=ENVIRONMENT, pattern=pattern, inputs=inputs)
    elif reading.package_manager(recorder.root) == reading.RPM:
        recorder.command("rpm", ["rpm", "-qa", "--qf", RPM_FORMAT], timeout=30, pattern=pattern)
    if recorder.exists(DKMS):
        from ..kmod.packaged import dkms_status

        recorder.value("dkms", DKMS, lambda _place: dkms_status(recorder.root))
        folder, _, pattern = DKMS_RECIPES.rpartition("/")
        recorder.texts(recorder.paths(folder, pattern=pattern))
        recorder.texts((DKMS_SETTINGS, *recorder.paths(DKMS_FRAGMENTS, pattern="*.conf")))
    recorder.texts(recorder.paths("/etc/apt/preferences.d", pattern="*gdsdeploy*"))


#: Keyrings that apt's entries and dnf's sections name.  dnf replaces variables in the names.
_KEYS = (r"(?im)signed-by\s*[:=]\s*(/[^\s\],]+)", r"(?im)^\s*gpgkey\s*=.*?file://(/[^\s,]+)")
#: Bytes of a keyring; Debian's has 56 KB.
_LIMIT = 256 * 1024


@collector("sources")
def collect_sources(recorder: Recorder, request: EvidenceRequest) -> None:
    if not request.sources:
        return
    for pattern in ("*.list", "*.sources"):
        recorder.texts((APT_SOURCES, *recorder.paths(APT_PARTS, pattern=pattern)))
    recorder.texts((*recorder.paths(DNF_PARTS, pattern="*.repo"), *recorder.paths(DNF_VARIABLES)))
    release = major_version(recorder.text("/etc/os-release") or "")
    places = [path for path in recorder.document["files"] if path.startswith((APT_SOURCES, APT_PARTS, DNF_PARTS))]
    for path in places:
        for key in (key for pattern in _KEYS for key in re.findall(pattern, recorder.text(path) or "")):
            name = re.sub(r"\$(?:releasever|\{releasever\})", release, key)
            recorder.binary(name, _LIMIT)


#: Beginnings of the names of logs, current and rotated, in /var/log and below; at most this many of each are read.
DPKG_LOG, APT_HISTORY, DNF_LOG, DNF_COMMANDS = "dpkg.log", "history.log", "dnf.rpm.log", "dnf.log"
ROTATIONS = 13
#: Where apt reads its configuration; all other places are its to say.
APT_CONFIGURATION = ("/etc/apt/apt.conf", "/etc/apt/apt.conf.d")
APT_PLACES = (
    "Dir::State::status/f", "Dir::State::lists/d", "Dir::Etc::sourcelist/f", "Dir::Etc::sourceparts/d",
    "Dir::Etc::preferences/f", "Dir::Etc::preferencesparts/d",
)  # fmt: skip
#: The foreign architectures, which dpkg tells apt, and what decides who gets an update in phases (strace of apt 2.6).
APT_OTHERS = (
    "/usr/bin/apt-cache",
    "/var/lib/dpkg/arch",
    "/etc/dpkg/dpkg.cfg",
    "/etc/dpkg/dpkg.cfg.d",
    "/etc/machine-id",
)


@collector("drift")
def collect_drift(recorder: Recorder, request: EvidenceRequest) -> None:
    """Only for expected packages: without them, nothing could have moved."""
    if not request.packages:
        return
    names = "(?:{})".format("|".join(re.escape(name) for name in request.packages))
    if reading.package_manager(recorder.root) == reading.DPKG:
        argv = ["apt-cache", "policy", *request.packages]
        recorder.command("apt-policy", argv, timeout=60, env=ENVIRONMENT, inputs=apt_inputs(recorder))
        _record_logs(recorder, "/var/log", DPKG_LOG, rf"^\S+ \S+ (?:install|upgrade|remove|purge) {names}[: ]")
        # One block a run: who began it when and how, and what it did.
        pattern = rf"^(?:Start-Date|Commandline|Requested-By|End-Date): |^[A-Z][a-z]+: (?:.*[ ,])?{names}:"
        _record_logs(recorder, "/var/log/apt", APT_HISTORY, pattern)
        return
    recorder.texts(VERSIONLOCKS)
    _record_logs(recorder, "/var/log", DNF_LOG, rf"[A-Z][a-z]+: {names}-[0-9]")
    _record_logs(recorder, "/var/log", DNF_COMMANDS, r" Command: ")


def dpkg_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about dpkg's packages; None where variables name another database."""
    if any(name in os.environ for name in ("DPKG_ADMINDIR", "DPKG_ROOT", "DPKG_DATADIR")):
        return None
    paths = ("/var/lib/dpkg", "/var/lib/dpkg/updates", "/usr/bin/dpkg-query", "/etc/dpkg/dpkg.cfg")
    return cache.Inputs(tuple(map(recorder.at, paths)))


def apt_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about apt's policy; None where that can't be told.

    Where the files are is apt's to say, and its configuration's.
    """
    if cache.folder() is None or "APT_CONFIG" in os.environ:
        return None
    argv = ["apt-config", "shell", *(word for place in APT_PLACES for word in ("X", place))]
    configuration = cache.Inputs(tuple(map(recorder.at, (*APT_CONFIGURATION, *APT_OTHERS))))
    output = cache.stored_run("apt-config", argv, configuration, lambda: process.run(argv, 10.0, env=ENVIRONMENT))
    places = re.findall(r"^X='([^'\n]+)'$", output.stdout, re.MULTILINE)
    return cache.Inputs((*configuration.paths, *places)) if len(places) == len(APT_PLACES) else None


def _record_logs(recorder: Recorder, folder: str, begin: str, pattern: str) -> None:
    recorder.excerpts(recorder.paths(folder, pattern=begin + "*")[:ROTATIONS], pattern)


#: No kernel's release is empty: gdsdeploy writes it where the modules are received.
_IDLE = re.compile(r"""^BUILD_EXCLUSIVE_KERNEL=["']\^\$["']""", re.MULTILINE)
_SIGNS = r"""^[ \t]*(?:export[ \t]+)?try_sign_modules=["']?([A-Za-z_]+)"""


class Package(NamedTuple):
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
            return there(self.document.names(DKMS, "dkms"), DKMS)
        # Older evidence has what the program said.
        return tuple(self.document.output("dkms", "dkms status").splitlines())

    @fact
    def dkms_signs(self) -> str:
        """DKMS's ``try_sign_modules``: ``true``, ``false``, or its default ``not_in_chroot``."""
        names = self.document.names(DKMS_FRAGMENTS + "/*.conf")
        # The last assignment counts: DKMS sources its settings, then the fragments by name.
        value = "not_in_chroot"
        for path in (DKMS_SETTINGS, *(f"{DKMS_FRAGMENTS}/{name}" for name in sorted(names or ()))):
            value = [value, *re.findall(_SIGNS, self.document.text(path) or "", re.MULTILINE)][-1]
        return value

    @fact
    def dkms_idle(self) -> Tuple[str, ...]:
        """Modules that DKMS builds for no kernel, by their names there."""
        folder, names = DKMS_RECIPES.rpartition("/")[0], self.document.names(DKMS_RECIPES) or ()
        texts = {name: if_known(partial(self.document.text, f"{folder}/{name}"), None) for name in names}
        return tuple(sorted(name[: -len(".conf")] for name, text in texts.items() if _IDLE.search(text or "")))


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


def _dpkg(document: Document) -> Iterator[Move]:
    runs = _apt_runs(document)
    for line in _logs(document, "/var/log/dpkg.log"):
        words = line.split()
        if len(words) != 6 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        at, name = " ".join(words[:2]), words[3].partition(":")[0]
        before, after = ("" if version == "<none>" else version for version in words[4:])
        command, user = next(((run[2], run[3]) for run in runs if run[0] <= at <= run[1]), ("", ""))
        yield Move(at, name, words[2], before, after, command, user)


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


def _dnf(document: Document) -> Iterator[Move]:
    """dnf4 logs ``Upgrade: new`` and ``Upgraded: old``; the command that began before stands in another log."""
    commands = []
    for line in _logs(document, "/var/log/dnf.log"):
        stamp, _, command = line.partition(" Command: ")
        commands.append((_stamp(stamp), command.strip()))
    for line in _logs(document, "/var/log/dnf.rpm.log"):
        match = _DNF_LINE.match(line)
        if match is None:
            continue
        at, action, name, version = _stamp(match.group(1)), match.group(2).lower(), match.group(3), match.group(4)
        is_removal = action in ("erase", "removed")
        command = next((words for moment, words in sorted(commands, reverse=True) if moment <= at), "")
        yield Move(at, name, action, version if is_removal else "", "" if is_removal else version, command, "")


def _stamp(text: str) -> str:
    """``2026-11-21T03:00:00+0000 …`` as the other logs write it."""
    return text.split()[0][:19].replace("T", " ") if text.split() else ""


#: dpkg's states of a completely installed package: selected for installation, or held.
COMPLETE = ("ii", "hi")
#: Packages named in a finding; the rest is counted.
WRONG_NAMED = 5


@check(
    "packages.locked-versions",
    "every package of the lock is installed in exactly the locked version",
    expects="the packages of the lock, completely installed",
    prevents="drift: an upgrade by hand or by unattended-upgrades; a package that dpkg left half-configured",
    of_provision=True,
)
def locked_versions(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = facts.packages.installed, locked_packages(expectation)
    wrong = list(filter(None, (_problem(name, locked[name], installed.get(name, ())) for name in locked)))
    if not wrong:
        return passed(f"{len(locked)} packages")
    hint = "Provision the host again; if apt refuses, read why: dpkg --audit; apt-get check"
    return failed(first_few(wrong, WRONG_NAMED, "; "), hint, wrong)


def locked_packages(expectation: Expectation) -> Dict[str, str]:
    """Package → version of the lock, sorted; raises UndecidedError for an expectation without packages."""
    if not expectation.packages:
        raise UndecidedError("the expectation names no packages")
    return dict(sorted(expectation.packages.items()))


def _problem(name: str, version: str, packages: Sequence[Package]) -> str:
    if any(package.version == version and package.status in COMPLETE for package in packages):
        return ""
    if all(package.status.startswith(("un", "rc", "pn")) for package in packages):
        return f"{name} is not installed (locked: {version})"
    shown = ", ".join(f"{package.version} [{package.status}]" for package in packages)
    return f"{name} is {shown} (locked: {version})"


#: Packages named in a finding; the rest is counted.
MOVES_NAMED = 3


@check(
    "packages.drift",
    "only provision changes the stack: its packages have the locked versions, pinned and held",
    expects="every package of the lock pinned to its version and held",
    prevents="a driver that 'install cuda', an upgrade or unattended-upgrades installs, with no trace of the command",
    of_provision=True,
)
def drift(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = facts.packages.installed, locked_packages(expectation)
    versions = {name: _version(installed.get(name, ()), version) for name, version in locked.items()}
    moves = known(lambda: facts.drift.moves)
    moved = [
        _describe_move(name, version, versions[name], moves)
        for name, version in locked.items()
        if versions[name] != version
    ]
    if moved:
        hint = "Provision the host again: it restores the locked versions, and their pins and holds"
        return failed(first_few(moved, MOVES_NAMED, "; "), hint, moved)
    versionlocks = if_known(lambda: facts.drift.locked, None)
    choices = if_known(lambda: facts.drift.choices, None) if versionlocks is not None else facts.drift.choices
    if choices is not None:
        lines = [_apt(name, version, choices.get(name), installed.get(name, ())) for name, version in locked.items()]
        loose = list(filter(None, lines))
    else:
        loose = [f"{name} is not locked" for name in locked if name not in (versionlocks or ())]
    if loose:
        hint = "Provision the host again: it writes the pins and sets the holds"
        return failed(first_few(loose, MOVES_NAMED, "; "), hint, loose)
    return passed(f"nothing would move {len(locked)} packages")


def _apt(name: str, version: str, choice: Optional[Choice], packages: Sequence[Package]) -> str:
    """What is wrong with apt's choice; empty: nothing."""
    if choice is None or not choice.candidate:
        return f"{name}: apt has no candidate"
    if choice.candidate != version:
        origin = f" from {choice.source}" if choice.source else ""
        return f"{name} would become {choice.candidate}{origin}"
    if not any(package.version == version and package.status.startswith("h") for package in packages):
        return f"{name} is not held"
    return ""


def _version(packages: Sequence[Package], locked: str) -> str:
    """The unpacked version, or the locked one of several: rpm keeps older kernels.

    packages.locked-versions checks whether it is configured.
    """
    versions = [package.version for package in packages if package.status[1:2] not in ("n", "c", "")]
    return locked if locked in versions else next(iter(versions), "")


def _describe_move(name: str, locked: str, installed: str, moves: Maybe[Tuple[Move, ...]]) -> str:
    text = "{} moved from {} to {}".format(name, locked, installed or "nothing")
    if isinstance(moves, Unknown):
        return f"{text}; {moves.reason}"
    # The change that installed this version, or that removed the package.
    fitting = [move for move in moves if move.package == name and (move.after == installed or not installed)]
    if not fitting:
        return text + "; no log has the change"
    last = fitting[-1]
    user = f" ({last.user})" if last.user else ""
    command = f"by '{last.command}'{user}" if last.command else "by dpkg alone, or by a command that no log has"
    return f"{text} on {last.at} {command}"


#: Of ``dkms status``: ``nvidia-fs/2.19.7, 6.12.94+deb13-amd64, x86_64: installed (…)``.
_STATUS = re.compile(r"^(?P<name>nvidia[\w.+-]*)/(?P<version>[^,]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.*)$")


@check(
    "packages.dkms",
    "DKMS has installed the stack's modules for the locked kernel, as it built them",
    expects="every nvidia module of DKMS installed for {kernel_release}",
    prevents="a kernel that boots without its modules because a build failed, was interrupted, or was replaced by hand",
)
def dkms(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.packaged:
        return not_applicable("packages bring the modules: modules.next-boot names what has precedence over theirs")
    if "dkms" not in facts.packages.installed:
        return not_applicable("DKMS is not installed: the modules are received")
    lines, release = facts.packages.dkms, expectation.kernel_release
    rows = [match.group(0, "name", "kernel", "state") for match in map(_STATUS.match, lines) if match]
    if not rows:
        return not_applicable("DKMS has no modules of this stack")
    bad = [line for line, _, _, state in rows if "Diff between" in state or "broken" in state]
    names = sorted({name for _, name, _, _ in rows})
    installed = {name for _, name, kernel, state in rows if kernel == release and "installed" in state}
    missing = [name for name in names if name not in installed]
    idle = if_known(lambda: facts.packages.dkms_idle, ())
    bad += [f"{name} is not installed for {release}" for name in missing if name not in idle]
    if not bad and missing == names:
        return not_applicable("DKMS has a recipe that builds nothing: the modules are received")
    if bad:
        hint = f"Provision the host again; by hand: dkms install NAME/VERSION -k {release}"
        return failed("; ".join(bad), hint, lines)
    others = len({kernel for _, _, kernel, _ in rows if kernel} - {release})
    also = f", and for {others} other kernel{'s' if others > 1 else ''}" if others else ""
    return passed("{} for {}{}".format(", ".join(name for name in names if name in installed), release, also), lines)
