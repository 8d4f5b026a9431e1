"""Installed packages of interest, DKMS, gdsdeploy's pins, the package manager's choices and locks, and its logs.

The choices and locks could move the stack; the logs tell what did.  Repositories are collected, with the keys that they
name, only for a first fleet file.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Optional

from .. import process
from ..io import cache, reading
from ..kmod.packaged import dkms_status
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
