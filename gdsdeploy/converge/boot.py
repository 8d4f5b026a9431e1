"""What a profile's hosts boot with: the arguments of the kernel, and the options and parameters of its modules.  Pure.

NVIDIA's guide to GPUDirect Storage has the IOMMU off on x86, with intel_iommu=off or amd_iommu=off.  A fleet file
doesn't say whose processor a host has, and a kernel on the other one reads past the word that isn't its own.
PCI P2PDMA also needs static BAR1 that isn't write-combined, ForceP2P=0 before Hopper, and NVMe multipath off.  Grace
needs nothing: its IOMMU translates addresses, and multipath may be on.
"""

from __future__ import annotations

from typing import Final

from gdsdeploy.host.boot.arguments import name, parameters
from gdsdeploy.host.subjects.driver import registry
from gdsdeploy.model.fleet import Profile

REGISTRY: Final = "NVreg_RegistryDwords"
MULTIPATH: Final = "multipath=N"
WORDS: Final = {"RMForceStaticBar1": 1, "RmForceDisableIomapWC": 1}
BEFORE_HOPPER: Final = {"ForceP2P": 0}


def needs_p2pdma_options(profile: Profile) -> bool:
    """Whether the profile's hosts need these options."""
    return profile.mode == "p2pdma" and profile.arch == "x86_64"


def driver_options(profile: Profile) -> dict[str, str]:
    """Parameter of the driver's module → its text: the fleet file's options, with registry keys that they leave out."""
    options = {key: str(value) for key, value in profile.driver.options.items()}
    if needs_p2pdma_options(profile):
        options[REGISTRY] = _completed(options.get(REGISTRY, ""), profile)
    return options


def _completed(text: str, profile: Profile) -> str:
    """A key that the fleet file sets keeps its value."""
    needed = {**WORDS, **(BEFORE_HOPPER if profile.gpu in ("ampere", "ada") else {})}
    own = text.strip('"')
    missing = [f"{key}={value};" for key, value in needed.items() if key.lower() not in registry(own)]
    if not missing:
        return text
    own = own.rstrip(";")
    return (own + ";" if own else "") + "".join(missing)


NO_IOMMU: Final = ("intel_iommu=off", "amd_iommu=off")
#: Of these the profile's own decide alone.
_IOMMU: Final = {"iommu", "intel_iommu", "amd_iommu"}
#: As an argument it also reaches an nvme_core that is built into the kernel.
NO_MULTIPATH: Final = f"nvme_core.{MULTIPATH}"


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
    multipath = parameters([NO_MULTIPATH]) if needs_p2pdma_options(profile) else {}
    return {**options, **multipath, **parameters(arguments(profile))}
