"""The operating system, whether gdsdeploy has provisioned the host, and what a container shows of it."""

from __future__ import annotations

import re
from typing import Mapping, Optional, Tuple

from ..facts.document import collected, there
from ..facts.unknown import Facts, UndecidedError, fact, follows, given
from ..model.expectation import Expectation
from ..model.system import family_of, fits, profile_name, release_fields
from ..paths import OWN_NAME, OWN_PARENTS
from .register import Answer, check, failed, not_applicable, passed
from .types import HostFacts

#: Ids of processors that an interrupt reaches without remapping.
APIC_IDS = 255


class OsFacts(Facts):
    """The operating system and the kind of machine."""

    #: its id and version as a fleet file writes them, e.g. ``debian-13``
    name: str = follows(lambda self: profile_name(self._named))

    @property
    def family(self) -> str:
        """By which compatibility rules speak about it: ``debian``, ``ubuntu``, ``rhel`` …"""
        return family_of(self._named)

    pretty_name: str = follows(
        lambda self: collected(self._release.get("PRETTY_NAME") or None, "/etc/os-release has no PRETTY_NAME")
    )
    #: as ``uname -m``
    machine = given(lambda document: document.host("uname", "machine"))

    @fact
    def core(self) -> Optional[Tuple[int, int]]:
        """Implementer and part of an Arm processor; None: the kernel names none, as on x86."""
        lines = there(self.document.lines("/proc/cpuinfo"), "/proc/cpuinfo")
        if not self.document.looked_for("/proc/cpuinfo", "CPU part"):
            raise UndecidedError("the processor's part was not collected")
        pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        shown = [dict(pairs).get(key) for key in ("CPU implementer", "CPU part")]
        if not any(shown):
            return None
        if not all(re.match(r"0x[0-9a-f]{1,8}$", value or "") for value in shown):
            raise UndecidedError(f"/proc/cpuinfo is not understood: implementer {shown[0]}, part {shown[1]}")
        return int(str(shown[0]), 16), int(str(shown[1]), 16)

    @fact
    def needs_iommu(self) -> bool:
        """Whether processors would be missing without the IOMMU, as with ``amd_iommu=off`` on AMD's.

        Without interrupt remapping the kernel takes none whose APIC id is above 254 (try_to_enable_x2apic in
        arch/x86/kernel/apic/apic.c); ``intel_iommu=off`` leaves that on.
        """
        lines = [line.split() for line in there(self.document.lines("/proc/cpuinfo"), "/proc/cpuinfo")]
        return sum(line[-1:] == ["AuthenticAMD"] for line in lines) > APIC_IDS

    @property
    def _release(self) -> Mapping[str, str]:
        return release_fields(there(self.document.text("/etc/os-release"), "/etc/os-release"))

    @property
    def _named(self) -> Mapping[str, str]:
        release = self._release
        if not (release.get("ID") and release.get("VERSION_ID")):
            raise UndecidedError("/etc/os-release has no ID and VERSION_ID")
        return release


FOLDERS = ", ".join(f"{parent}/{OWN_NAME}" for parent in OWN_PARENTS)


@check(
    "host.provisioned",
    "gdsdeploy has provisioned this host",
    expects="a folder of gdsdeploy: " + FOLDERS,
    prevents="a list of failures that all mean the same: this host was left out when the fleet was provisioned",
    unknown_hint="Validate the host again with this release: gdsdeploy validate FLEET --limit HOST",
)
def provisioned(facts: HostFacts, _expectation: Expectation) -> Answer:
    manager = facts.environment.container
    if manager is not None:
        return not_applicable(f"{manager}: the folders of its host are not visible")
    folders = facts.environment.own_folders
    if folders:
        return passed(", ".join(folders))
    return failed("none of them exists: the host was never provisioned", "Run gdsdeploy provision FLEET on this host")


@check(
    "os.release",
    "the host runs the operating system that the lock was resolved for",
    expects="{os} on {arch}",
    prevents="packages and modules of one release on a host with another, after an upgrade or a mix-up",
)
def release(facts: HostFacts, expectation: Expectation) -> Answer:
    name, machine = facts.os.name, facts.os.machine
    running = f"{name} on {machine}"
    if fits(expectation.os, name) and machine == expectation.arch:
        return passed(running)
    return failed(running, f"Give this host a profile for {name}, or reinstall it with {expectation.os}")
