"""Module options that mode p2pdma needs on x86, beside those of the fleet file; Grace needs none.  Pure.

GPUDirect Storage guide, NVMe P2PDMA: static BAR1 that isn't write-combined, ForceP2P=0 before Hopper, and no NVMe
multipath.
"""

from __future__ import annotations

from typing import Final

from gdsdeploy.host.facts.driver import registry
from gdsdeploy.model.fleet import Profile

REGISTRY: Final = "NVreg_RegistryDwords"
MULTIPATH: Final = "multipath=N"
WORDS: Final = {"RMForceStaticBar1": 1, "RmForceDisableIomapWC": 1}
BEFORE_HOPPER: Final = {"ForceP2P": 0}


def applies(profile: Profile) -> bool:
    """Whether the profile's hosts need these options."""
    return profile.mode == "p2pdma" and profile.arch == "x86_64"


def driver_options(profile: Profile) -> dict[str, str]:
    """Parameter of the driver's module → its text: the fleet file's options, with registry keys that they leave out."""
    options = {key: str(value) for key, value in profile.driver.options.items()}
    if applies(profile):
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
