"""What the roles are given for the lab's host, and the preferences that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdsdeploy.converge.inventory import inventory
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.packages import aptsources
from gdsdeploy.host.apply.packages.managers import Pin
from gdsdeploy.host.apply.pins import Desired
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from tests.pins.aptmachine import AptMachine

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"


RUN_FILES = RunFiles(Path("/fleet"), Path("/cache/gdsdeploy-host.pyz"), Path("/cache/modules"))


def values_in(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Machine → its variables, out of an inventory."""
    groups = document["all"]["children"].values()
    return {name: values for group in groups for name, values in group["hosts"].items()}


def render(fleet: Fleet, lock: Lock) -> dict[str, dict[str, Any]]:
    """Host → its variables."""
    return values_in(inventory(fleet, lock, RUN_FILES))


def self_building(fleet: Fleet) -> Fleet:
    """The same without a builder."""
    profile = fleet.profiles["gds"].model_copy(update={"builder": None})
    return fleet.model_copy(update={"profiles": {"gds": profile}, "builders": {}})


def host_variables() -> dict[str, Any]:
    """What the roles are given for the lab's host when it builds its own modules."""
    return render(self_building(load_fleet(LAB / "fleet.yml")), lockfile.read(LAB / "gdsdeploy.lock"))["gpu1"]


def preferences(machine: AptMachine, variables: dict[str, Any], closed: tuple[tuple[str, str], ...] = ()) -> str:
    """The preferences that a host gets."""
    desired = Desired("apt", pins=[Pin(**pin) for pin in variables["gds_repo_pins"]], deny=variables["gds_repo_deny"])
    packages = [pin.package for pin in desired.pins]
    names = aptsources.names_to_deny(desired.deny, packages, machine.run("apt-cache", "pkgnames").split())
    return aptsources.preferences(desired.pins, desired.deny, names, closed)
