"""What a profile's hosts boot with: the arguments of the kernel and the parameters of its modules.  Pure.

NVIDIA's guide to GPUDirect Storage has the IOMMU off on x86, with intel_iommu=off or amd_iommu=off.  A fleet file
doesn't say whose processor a host has, and a kernel on the other one reads past the word that isn't its own.
PCI P2PDMA also needs NVMe multipath off.  Grace needs nothing: its IOMMU translates addresses, and multipath may be on.
"""

from __future__ import annotations

from typing import Final

from gdsdeploy.converge import p2pdma
from gdsdeploy.host.boot.arguments import name, parameters
from gdsdeploy.model.fleet import Profile

NO_IOMMU: Final = ("intel_iommu=off", "amd_iommu=off")
#: Of these the profile's own decide alone.
_IOMMU: Final = {"iommu", "intel_iommu", "amd_iommu"}
#: As an argument it also reaches an nvme_core that is built into the kernel.
NO_MULTIPATH: Final = f"nvme_core.{p2pdma.MULTIPATH}"


def arguments(profile: Profile) -> list[str]:
    """The arguments that gdsdeploy sets, in their order; what the profile writes counts before the preset."""
    own = [key if value is None else f"{key}={value}" for key, value in profile.boot.arguments.items()]
    own_names = {name(word) for word in own}
    if own_names & _IOMMU:
        own_names |= _IOMMU
    return [*own, *(word for word in preset(profile) if name(word) not in own_names)]


def preset(profile: Profile) -> tuple[str, ...]:
    """The arguments of ``boot: auto``."""
    if profile.boot.preset != "auto" or profile.mode == "compat" or profile.arch != "x86_64":
        return ()
    return (*NO_IOMMU, NO_MULTIPATH) if profile.mode == "p2pdma" else NO_IOMMU


def module_options(profile: Profile) -> dict[str, dict[str, str]]:
    """Module → parameter → value, for modprobe.d."""
    return {module: dict(values) for module, values in profile.boot.module_options.items() if values}


def expected_parameters(profile: Profile) -> dict[str, str]:
    """``module.parameter`` → value that sysfs has to show once the host has booted with all of it."""
    options = {
        f"{module.replace('-', '_')}.{key}": value
        for module, values in module_options(profile).items()
        for key, value in values.items()
    }
    multipath = parameters([NO_MULTIPATH]) if p2pdma.applies(profile) else {}
    return {**options, **multipath, **parameters(arguments(profile))}
