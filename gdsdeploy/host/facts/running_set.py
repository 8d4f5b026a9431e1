"""The running kernel, driver, nvidia-fs, OFED and libcufile as the compatibility rules ask about them, and judged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Mapping, Optional, Tuple

from ..kmod.flavour import flavour_of, has_nvme_hooks
from ..model import compat
from ..model.compat import Rule
from ..model.system import family_of
from .alike import once_for_alike
from .packages import Package
from .unknown import Maybe, Unknown, when_known

if TYPE_CHECKING:
    from . import HostFacts

#: Packages of DOCA whose version is that of its kernel modules.
DOCA = ("doca-ofed", "doca-all", "doca-networking", "doca-roce")
#: What the names of packages with OFED's or DOCA's nvme begin with, on apt.
_NVME = "mlnx-nvme"
#: First libcufile of a CUDA release (the rules gds-1.N-nvidia-fs of compat.yml name the releases).
CUDA = (((1, 15), "13"), ((1, 5), "12"), ((1, 0), "11"))


@dataclass(frozen=True)
class Judgement:
    """What the rules say about a running set."""

    #: rule → what it says and what runs
    forbidden: Mapping[str, str]
    warnings: Mapping[str, str]
    #: rule that would forbid it with some value of an unknown part → why the part is unknown
    undecided: Mapping[str, str]
    rules: Mapping[str, Rule]


def judge(facts: HostFacts, mode: str, rdma: str) -> Judgement:
    """Judge what runs.  mode, rdma: the profile's, with compat.yml's names."""
    return _judge(tuple(_parts(facts, mode, rdma).items()))


@once_for_alike
def _judge(parts: Tuple[Tuple[str, Maybe[Optional[str]]], ...]) -> Judgement:
    rules = compat.shipped()
    unknown = {subject: value.reason for subject, value in parts if isinstance(value, Unknown)}
    combination = {subject: value for subject, value in parts if not isinstance(value, Unknown)}
    verdicts = compat.judge(combination, rules)
    return Judgement(
        forbidden={verdict.rule: verdict.words for verdict in verdicts if not verdict.allowed},
        warnings={verdict.rule: verdict.words for verdict in verdicts if verdict.warning},
        undecided={rule: unknown[subject] for rule, subject in compat.undecided(combination, unknown.keys(), rules)},
        rules={rule.id: rule for rule in rules},
    )


def _parts(facts: HostFacts, mode: str, rdma: str) -> Dict[str, Maybe[Optional[str]]]:
    """Subject → value; None: this host has no such part.

    Left out, so that no rule about them speaks: the GPU's class, which the check gpu.class judges; and the packages of
    sources and their makers, because a module that runs has been built.
    """
    family = when_known(facts.os.name, family_of)
    parts: Dict[str, Maybe[Optional[str]]] = {
        "driver": facts.driver.version,
        "flavour": facts.driver.flavour,
        "kernel": _kernel(facts),
        "kernel_flavour": when_known(facts.kernel.release, _flavour),
        "nvme_hooks": _nvme_hooks(facts),
        "nvidia_fs": _nvidia_fs(facts),
        "libcufile": facts.cufile.library,
        "cuda": when_known(facts.cufile.library, _cuda),
        "doca": when_known(facts.packages.installed, _doca),
        "mode": mode,
        "rdma": rdma,
        "arch": facts.os.machine,
        "dkms": when_known(facts.packages.installed, _dkms),
        "dkms_signs": facts.packages.dkms_signs,
        "secure_boot": when_known(facts.kernel.secure_boot, lambda is_on: "on" if is_on else "off"),
        "os": facts.os.name,
        "family": family,
    }
    if family in ("rhel", "ubuntu"):
        # The release begins with the package's version, or with the upstream version and the ABI number.
        parts["kernel_package"] = facts.kernel.release
    return parts


def _dkms(installed: Mapping[str, Tuple[Package, ...]]) -> Maybe[Optional[str]]:
    """Upstream's version; None without the package."""
    if not installed.get("dkms"):
        return None
    version = installed["dkms"][0].version
    match = re.match(r"(?:\d{1,9}:)?(\d{1,9}(?:\.\d{1,9})+)", version)
    return match.group(1) if match else Unknown(f"no version in DKMS's {version!r}")


def _kernel(facts: HostFacts) -> Maybe[Optional[str]]:
    """Upstream's version: Debian's release 6.1.0-50-amd64 is 6.1.176, as ``uname -v`` says."""
    build = facts.document.host("uname", "version")
    debian = re.search(r"\bDebian (\d{1,9}(?:\.\d{1,9})+)-", build) if isinstance(build, str) else None
    if debian:
        return debian.group(1)
    release = facts.kernel.release
    if isinstance(release, Unknown):
        return release
    match = re.match(r"\d{1,9}(?:\.\d{1,9})+", release)
    return match.group(0) if match else Unknown(f"no version in the kernel's release {release!r}")


def _flavour(release: str) -> Optional[str]:
    flavour = flavour_of(release)
    return flavour.name if flavour else None


def _nvme_hooks(facts: HostFacts) -> Maybe[Optional[str]]:
    """Whose nvme lets nvidia-fs in: that of a kernel which has hooks, or OFED's or DOCA's, which takes its place."""
    if isinstance(facts.kernel.release, Unknown):
        return facts.kernel.release
    if not has_nvme_hooks(facts.kernel.release):
        return "ofed"
    return when_known(
        facts.packages.installed, lambda names: "ofed" if any(name.startswith(_NVME) for name in names) else "kernel"
    )


def _nvidia_fs(facts: HostFacts) -> Maybe[Optional[str]]:
    module = facts.nvidia_fs.module
    if module.loaded is not True:
        return module.loaded if isinstance(module.loaded, Unknown) else None
    return when_known(module.version, lambda version: version or Unknown("the loaded nvidia-fs shows no version"))


def _cuda(library: Optional[str]) -> Maybe[Optional[str]]:
    """The major release of CUDA that a libcufile belongs to."""
    if library is None:
        return None
    match = re.match(r"(\d{1,9})\.(\d{1,9})", library)
    number = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    return next((cuda for first, cuda in CUDA if number >= first), Unknown(f"no release of CUDA for {library}"))


def _doca(installed: Mapping[str, Tuple[Package, ...]]) -> Maybe[Optional[str]]:
    version = next((installed[name][0].version for name in DOCA if installed.get(name)), None)
    if version is None:
        return None
    match = re.match(r"(?:\d{1,9}:)?(\d{1,9}(?:\.\d{1,9})+)", version)
    return match.group(1) if match else Unknown(f"no version in DOCA's {version!r}")
