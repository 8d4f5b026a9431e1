"""The package repositories that this host has, with the keys that they name: only for a first fleet file."""

from __future__ import annotations

import re

from ..paths import APT_PARTS, APT_SOURCES, DNF_PARTS, DNF_VARIABLES
from .recorder import Recorder
from .request import EvidenceRequest

#: Keyrings that apt's entries and dnf's sections name.  dnf replaces variables in the names.
_KEYS = (r"(?im)signed-by\s*[:=]\s*(/[^\s\],]+)", r"(?im)^\s*gpgkey\s*=.*?file://(/[^\s,]+)")
#: Bytes of a keyring; Debian's has 56 KB.
_LIMIT = 256 * 1024


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
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
