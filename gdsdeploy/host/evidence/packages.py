"""Installed packages, DKMS, pins, the package manager's choices, locks and logs, and what others have installed.

The choices and locks could move the stack; the logs tell what did.  Repositories are collected, with the keys that they
name, only for a first fleet file.  Others may have installed module files, DKMS trees, programs, libraries, pins and
repositories; :func:`look` also runs before a provision, and costs a walk through one kernel's folder and a few small
files.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from .. import process
from ..errors import ElfError, HostError
from ..io import cache, reading
from ..kmod import driver
from ..kmod.kernel import Kernel
from ..kmod.module import read_once
from ..kmod.packaged import FOLDER, are_equal, dkms_status
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
    DNF_VARIABLES,
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
from ..subjects import userland
from ..subjects.register import collector
from .recorder import EvidenceRequest, Recorder, stored_run

#: Beginnings of package names that belong to this stack, in Debian's and NVIDIA's repositories.
NAMES = (
    r"(nvidia|libnvidia|xserver-xorg-video-nvidia|firmware-nvidia|kmod-nvidia|libcu(?:file|da|inj|blas|fft)|cuda|gds-|linux-image|linux-headers"
    r"|linux-modules|kernel-|dkms|doca|mlnx|mft|ofed|libibverbs|rdma-core|ibverbs|systemd$|udev|initramfs|grub|kmod$)"
)
DPKG_FORMAT = "${Package}\\t${Version}\\t${Architecture}\\t${db:Status-Abbrev}\\n"
#: For dpkg.
ENVIRONMENT: Dict[str, str] = {}
#: dpkg's database: the status, with the changes that a run has not yet written into it, and the architectures.
DPKG_INPUTS = ("/usr/bin/dpkg-query", "/var/lib/dpkg/status", "/var/lib/dpkg/updates", "/var/lib/dpkg/arch")
RPM_FORMAT = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\t%{ARCH}\\tii\\n"


@collector("packages")
def collect_packages(recorder: Recorder, request: EvidenceRequest) -> None:
    installed(recorder, request)
    if recorder.exists(DKMS):
        recorder.value("dkms", DKMS, lambda _place: dkms_status(recorder.root))
        folder, _, pattern = DKMS_RECIPES.rpartition("/")
        recorder.texts(folder, recorder.names(folder, pattern))
        recorder.text(DKMS_SETTINGS)
        recorder.texts(DKMS_FRAGMENTS, recorder.names(DKMS_FRAGMENTS, "*.conf"))
    recorder.texts("/etc/apt/preferences.d", recorder.names("/etc/apt/preferences.d", "*gdsdeploy*"))


def installed(recorder: Recorder, request: EvidenceRequest) -> None:
    """The package manager's own list, of packages of interest."""
    exact = "|".join(re.escape(name) for name in request.packages)
    pattern = "^(?:{}{})".format(NAMES, rf"|(?:{exact})\t" if exact else "")
    if reading.package_manager(recorder.root) == reading.DPKG:
        argv = ["dpkg-query", "-W", "-f", DPKG_FORMAT]
        inputs = cache.Inputs(tuple(map(recorder.at, DPKG_INPUTS)))
        is_moved = any(name in os.environ for name in ("DPKG_ADMINDIR", "DPKG_ROOT"))
        recorder.command(
            "dpkg-query", argv, timeout=30, env=ENVIRONMENT, pattern=pattern, inputs=None if is_moved else inputs
        )
    elif reading.package_manager(recorder.root) == reading.RPM:
        recorder.command("rpm", ["rpm", "-qa", "--qf", RPM_FORMAT], timeout=30, pattern=pattern)


#: Keyrings that apt's entries and dnf's sections name.  dnf replaces variables in the names.
_KEYS = (r"(?im)signed-by\s*[:=]\s*(/[^\s\],]+)", r"(?im)^\s*gpgkey\s*=.*?file://(/[^\s,]+)")
#: Bytes of a keyring; Debian's has 56 KB.
_LIMIT = 256 * 1024


@collector("sources")
def collect_sources(recorder: Recorder, request: EvidenceRequest) -> None:
    if not request.sources:
        return
    recorder.text(APT_SOURCES)
    for pattern in ("*.list", "*.sources"):
        recorder.texts(APT_PARTS, recorder.names(APT_PARTS, pattern))
    recorder.texts(DNF_PARTS, recorder.names(DNF_PARTS, "*.repo"))
    recorder.texts(DNF_VARIABLES, recorder.names(DNF_VARIABLES))
    release = re.search(r'(?m)^VERSION_ID="?(\d+)', recorder.text("/etc/os-release") or "")
    places = [path for path in recorder.document["files"] if path.startswith((APT_SOURCES, APT_PARTS, DNF_PARTS))]
    for path in places:
        for key in (key for pattern in _KEYS for key in re.findall(pattern, recorder.text(path) or "")):
            name = re.sub(r"\$(?:releasever|\{releasever\})", release.group(1) if release else "", key)
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
        _logs(recorder, "/var/log", DPKG_LOG, rf"^\S+ \S+ (?:install|upgrade|remove|purge) {names}[: ]")
        # One block a run: who began it when and how, and what it did.
        pattern = rf"^(?:Start-Date|Commandline|Requested-By|End-Date): |^[A-Z][a-z]+: (?:.*[ ,])?{names}:"
        _logs(recorder, "/var/log/apt", APT_HISTORY, pattern)
        return
    for path in VERSIONLOCKS:
        recorder.text(path)
    _logs(recorder, "/var/log", DNF_LOG, rf"[A-Z][a-z]+: {names}-[0-9]")
    _logs(recorder, "/var/log", DNF_COMMANDS, r" Command: ")


def apt_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about apt's policy; None where that can't be told.

    Where the files are is apt's to say, and its configuration's.
    """
    if cache.folder() is None or "APT_CONFIG" in os.environ:
        return None
    argv = ["apt-config", "shell", *(word for place in APT_PLACES for word in ("X", place))]
    configuration = cache.Inputs(tuple(map(recorder.at, (*APT_CONFIGURATION, *APT_OTHERS))))
    output = stored_run("apt-config", argv, configuration, lambda: process.run(argv, 10.0, env=ENVIRONMENT))
    places = re.findall(r"^X='([^'\n]+)'$", output.stdout, re.MULTILINE)
    return cache.Inputs((*configuration.paths, *places)) if len(places) == len(APT_PLACES) else None


def _logs(recorder: Recorder, folder: str, begin: str, pattern: str) -> None:
    for name in recorder.names(folder, begin + "*")[:ROTATIONS]:
        recorder.excerpt(folder + "/" + name, pattern)


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
    look(recorder, request.expectation.kernel_release if request.expectation is not None else running)


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
    try:
        walked = kernel() if kernel is not None else Kernel(release, recorder.root)
    except HostError as error:
        absent = not recorder.exists("/lib/modules/" + release)
        return {"error": "ENOENT" if absent else error.message}
    files: List[Dict[str, Any]] = []
    for name in driver.stack_names(walked):
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
    for name in recorder.names(folder, pattern):
        yield f"{folder}/{name}"
    recorder.excerpt(INSTALLER_LOG, r"^(?:installer version|creation time): ")
    for folder in recorder.names("/usr/local", "cuda-*"):
        for name in recorder.names(f"/usr/local/{folder}/bin", "cuda-uninstaller"):
            yield f"/usr/local/{folder}/bin/{name}"
    for folder in LOADER_UNITS:
        for name in recorder.names(folder, MODULE_LOADER):
            yield f"{folder}/{name}"


def _libraries(recorder: Recorder) -> Iterator[str]:
    """Every file that the loader has for the stack's libraries; programs get the first one of each."""
    if "ldconfig" not in recorder.document["commands"]:
        recorder.command("ldconfig", ["ldconfig", "-p"], pattern=userland.LIBRARIES)
    shown = recorder.document["commands"]["ldconfig"]["stdout"]
    for name in (*userland.NAMES, CUFILE_SONAME):
        for _, path in re.findall(userland.LIBRARY_LINE.format(re.escape(name)), shown, re.MULTILINE):
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
        for name in recorder.names(_DPKG_INFO, "libcufile*.md5sums"):
            recorder.excerpt(f"{_DPKG_INFO}/{name}", r"cufile\.json$")
    elif reading.package_manager(recorder.root) == reading.RPM:
        argv = ["rpm", "-qf", "--qf", "[%{FILENAMES}\\t%{FILEDIGESTS}\\n]", place]
        recorder.command(CUFILE_RECORDS, argv, pattern=r"cufile\.json\t")
    yield place


def _package_manager(recorder: Recorder) -> None:
    """Pins, locks, excludes, gdsdeploy's own holds, and repositories that are known to have the driver."""
    pattern = f"{DRIVER_REPOSITORIES}|{_STANZA}"
    kind = reading.package_manager(recorder.root)
    if kind == reading.DPKG:
        recorder.text(HOLDS_RECORD)
        recorder.text(APT_PREFERENCES)
        names = recorder.names(PREFERENCE_PARTS)
        recorder.texts(PREFERENCE_PARTS, [name for name in names if os.path.splitext(name)[1] in ("", ".pref")])
        recorder.excerpt(APT_SOURCES, pattern)
        for name in recorder.names(APT_PARTS):
            if name.endswith((".list", ".sources")):
                recorder.excerpt(f"{APT_PARTS}/{name}", pattern)
    elif kind == reading.RPM:
        for path in VERSIONLOCKS:
            recorder.text(path)
        paths = [f"{DNF_PARTS}/{name}" for name in recorder.names(DNF_PARTS, "*.repo")]
        for path in paths:
            recorder.excerpt(path, pattern)
        for path in (DNF_CONF, *paths):
            recorder.value("excludes", path, _excludes)


def _excludes(place: str) -> List[str]:
    """``SECTION: words`` of each setting that keeps packages out; lines that begin with a space continue one."""
    with open(place, "rb") as file:
        text = file.read(256 * 1024).decode("utf-8", "replace")
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
