"""Installed packages of interest, DKMS, and gdsdeploy's pins."""

from __future__ import annotations

import os
import re
from typing import Dict

from ..io import cache, database
from ..kmod.packaged import dkms_status
from ..paths import DKMS, DKMS_FRAGMENTS, DKMS_RECIPES, DKMS_SETTINGS
from .recorder import Recorder
from .request import EvidenceRequest

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


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
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
    if database.manager(recorder.root) == database.DPKG:
        argv = ["dpkg-query", "-W", "-f", DPKG_FORMAT]
        inputs = cache.Inputs(tuple(map(recorder.at, DPKG_INPUTS)))
        is_moved = any(name in os.environ for name in ("DPKG_ADMINDIR", "DPKG_ROOT"))
        recorder.command(
            "dpkg-query", argv, timeout=30, env=ENVIRONMENT, pattern=pattern, inputs=None if is_moved else inputs
        )
    elif database.manager(recorder.root) == database.RPM:
        recorder.command("rpm", ["rpm", "-qa", "--qf", RPM_FORMAT], timeout=30, pattern=pattern)
