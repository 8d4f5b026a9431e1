"""Operating systems as profiles name them, from the ID, VERSION_ID and ID_LIKE of os-release.  Pure.

A system needs an entry here only where profiles use another word than its ID.

Services that have to be of the driver's version, or that some GPUs need.  Classes of GPUs.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import Dict, Iterable, List, Mapping

#: ID of os-release → the system's name in a profile.
_NAMES = {"ol": "oracle", "amzn": "amazon"}
#: RHEL, Oracle Linux, which doesn't say that it is like it, and rebuilds, whose os-release may be cut.
_RHEL = ("rhel", "ol", "rocky", "almalinux")


@lru_cache(maxsize=256)
def release_fields(os_release: str) -> Mapping[str, str]:
    """The fields of the text of /etc/os-release, without those that a shell could not read."""
    values: Dict[str, str] = {}
    for line in os_release.splitlines():
        key, separator, value = line.partition("=")
        if separator and re.match(r"[A-Z0-9_]+$", key):
            try:
                values[key] = "".join(shlex.split(value)[:1])
            except ValueError:
                continue
    return values


def major_version(os_release: str) -> str:
    """The number that VERSION_ID begins with; empty where there is none."""
    number = re.match(r"[0-9]+", release_fields(os_release).get("VERSION_ID", ""))
    return number.group() if number else ""


def system_name(id: str, version_id: str) -> str:  # noqa: A002 - os-release's own word
    """As a profile names it: debian-13, or rocky-9.4 with its minor release."""
    return _NAMES.get(id, id) + "-" + version_id


def system_of(os_release: str) -> str:
    """The same, of the text of /etc/os-release."""
    fields = release_fields(os_release)
    return system_name(fields.get("ID") or "unknown", fields.get("VERSION_ID") or "none")


def fits(profile: str, system: str) -> bool:
    """Whether a profile for ``profile`` is for that system: rocky-9.4 has those for rocky-9.4 and for rocky-9."""
    return profile in (system, system.partition(".")[0])


def profile_name(release: Mapping[str, str]) -> str:
    """The name that a profile uses for a system with these fields of os-release: rocky-9 for Rocky Linux 9.4."""
    version = release["VERSION_ID"]
    # Of RHEL and its rebuilds 9.4 and 9.6 are one.
    return system_name(release["ID"], version.partition(".")[0] if family_of(release) == "rhel" else version)


def family_of(release: Mapping[str, str]) -> str:
    """The family by which compatibility rules speak about a system with these fields of os-release: rhel for Rocky."""
    id = release["ID"]  # noqa: A001 - os-release's own word
    return "rhel" if id in _RHEL or "rhel" in release.get("ID_LIKE", "").split() else _NAMES.get(id, id)


#: What the fabric manager needs for NVSwitches of the fourth generation: a package, and the module that it sends by.
NVLSM, UMAD = "nvlsm", "ib_umad"
#: Pattern of a package's name in both repositories → its service.
SERVICES = (
    (re.compile(r"nvidia-persistenced"), "nvidia-persistenced.service"),
    (re.compile(r"nvidia-fabric-?manager(-\d+)?"), "nvidia-fabricmanager.service"),
    (re.compile(r"nvidia-imex(-\d+)?"), "nvidia-imex.service"),
)
FABRIC = "nvidia-fabricmanager.service"


def services_of(packages: Iterable[str]) -> List[str]:
    """The services that packages with these names bring."""
    names = list(packages)
    return [unit for pattern, unit in SERVICES if any(map(pattern.fullmatch, names))]


#: Class of GPUs → their models, of the data centre and of workstations.
_CLASSES = {
    "grace-hopper": r"\bGH200\b",
    "rubin": r"\bVR200\b|\bRubin\b",
    "blackwell": r"\b(GB200|GB300|B100|B200|B300)\b|\bBlackwell\b",
    "hopper": r"\b(H100|H200|H800|H20)\b",
    "ada": r"\b(L2|L4|L20|L40|L40S)\b|\bAda Generation\b",
    "ampere": r"\b(A2|A10|A10G|A16|A30|A40|A100|A800)\b|\bRTX A[0-9]+\b",
    "turing": r"\bT4G?\b|\bQuadro RTX\b",
    "volta": r"\bV100\b",
    "pascal": r"\b(P4|P40|P100)\b",
}


def gpu_class(models: Iterable[str]) -> str:
    """The class of all these GPUs; empty where a model isn't known here, or they differ."""
    classes = {next((name for name, pattern in _CLASSES.items() if re.search(pattern, model)), "") for model in models}
    return classes.pop() if len(classes) == 1 else ""
