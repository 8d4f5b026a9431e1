"""Repositories that a fleet file uses by name alone: those of RHEL's equals and of Amazon, EPEL, and NVIDIA's.

The addresses are the vendors' own, as their setup guides and .repo files have them.  The fingerprints are from the
vendors' pages about their keys, or from several public installers that pin them; without one, the fleet file names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gdsdeploy.platform.base import Preset

#: NVIDIA's CUDA repositories: one for each system and architecture.
_CUDA: Final = "https://developer.download.nvidia.com/compute/cuda/repos"
_EPEL: Final = "https://dl.fedoraproject.org/pub/epel"
_RPM_KEYS: Final = Path("/etc/pki/rpm-gpg")
#: Of the package cuda-keyring.
_CUDA_KEYRING: Final = Path("/usr/share/keyrings/cuda-archive-keyring.gpg")

#: 3bf863cc.pub, 8793F200.pub and D42D0685.pub of the CUDA repositories.
_CUDA_DEB: Final = "EB693B3035CD5710E231E123A4B469963BF863CC"
_CUDA_DEBIAN_13: Final = "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
_CUDA_RPM: Final = "610C7B14E068A878070DA4E99CD0A493D42D0685"

#: os of a profile → NVIDIA's name of the system and its key; without one, only a short id is known (rhel10: CDF6BA43).
_NVIDIA: Final = {
    "ubuntu-22.04": ("ubuntu2204", _CUDA_DEB),
    "ubuntu-24.04": ("ubuntu2404", _CUDA_DEB),
    "ubuntu-26.04": ("ubuntu2604", _CUDA_DEB),
    "debian-12": ("debian12", _CUDA_DEB),
    "debian-13": ("debian13", _CUDA_DEBIAN_13),
    **{f"{name}-9": ("rhel9", _CUDA_RPM) for name in ("rhel", "rocky", "almalinux", "oracle")},
    **{f"{name}-10": ("rhel10", "") for name in ("rhel", "rocky", "almalinux", "oracle")},
    "amazon-2023": ("amzn2023", _CUDA_RPM),
}

#: Name of the system → name of the group, address, file of the key, release → fingerprint.
_REBUILDS: Final = {
    "rocky": (
        "rocky",
        "https://dl.rockylinux.org/pub/rocky",
        "RPM-GPG-KEY-Rocky-{}",
        {"9": "21CB256AE16FC54C6E652949702D426D350D275D", "10": "FC226859C0860BF0DDB95B085B106C736FEDFC85"},
    ),
    "almalinux": (
        "alma",
        "https://repo.almalinux.org/almalinux",
        "RPM-GPG-KEY-AlmaLinux-{}",
        {"9": "BF18AC2876178908D6E71267D36CB86CB86B3716", "10": "EE6DB7B98F5BF5EDD9DA0DE5DEE5C11CC2A1E572"},
    ),
}
_EPEL_KEYS: Final = {
    "9": "FF8AD1344597106ECE813B918A3872BF3228467C",
    "10": "7D8D15CBFC4E62688591FB2633D98517E37ED158",
}
#: Amazon Linux 2023; its index is signed since 2023.11.20260406.
_AMAZON_KEY: Final = "B21C50FA44A99720EAA72F7FE951904AD832C631"


def of_rpm_system(system: str, release: str) -> dict[str, Preset]:
    """The system's own repositories; none for one whose index needs an account (RHEL) or isn't here (Oracle)."""
    if system == "amazon":
        # The address has a digest in it, which differs by release: Amazon's mirror.list names the current one.
        keyring = _RPM_KEYS / "RPM-GPG-KEY-amazon-linux-2023"
        return {"amazon": Preset((), (), keyring, (_AMAZON_KEY,))}
    if system not in _REBUILDS or release not in _REBUILDS[system][3]:
        return {}
    group, uri, file, keys = _REBUILDS[system]
    keyring = _RPM_KEYS / file.format(release)
    return {
        f"{group}-{part.lower()}": Preset(
            (), (), keyring, (keys[release],), uri=uri, path=f"{release}/{part}/{{arch}}/os", group=group
        )
        for part in ("BaseOS", "AppStream")
    }


def of_vendors(os: str) -> dict[str, Preset]:
    """Repositories of others for this system: ``nvidia``, and ``epel`` for RHEL and its equals."""
    chosen: dict[str, Preset] = {}
    if os in _NVIDIA:
        name, key = _NVIDIA[os]
        flat = os.startswith(("ubuntu", "debian"))
        keyring = _CUDA_KEYRING if flat else _RPM_KEYS / "RPM-GPG-KEY-NVIDIA"
        keys = (key,) if key else ()
        suites = ("/",) if flat else ()
        chosen["nvidia"] = Preset(suites, (), keyring if key else None, keys, uri=_CUDA, path=f"{name}/{{sbsa}}")
    system, _, release = os.partition("-")
    if system in ("rhel", "rocky", "almalinux", "oracle") and release in _EPEL_KEYS:
        keyring = _RPM_KEYS / f"RPM-GPG-KEY-EPEL-{release}"
        path = f"{release}/Everything/{{arch}}"
        chosen["epel"] = Preset((), (), keyring, (_EPEL_KEYS[release],), uri=_EPEL, path=path)
    return chosen
