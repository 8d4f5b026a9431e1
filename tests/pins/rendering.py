"""What the roles are given for the lab's host, and the preferences that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdsdeploy.converge.inventory import RunFiles, inventory
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.packages import aptsources
from gdsdeploy.host.apply.packages.managers import Pin
from gdsdeploy.host.apply.pins import Desired
from gdsdeploy.lock import lockfile
from tests.pins.aptmachine import AptMachine

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"


def host_variables() -> dict[str, Any]:
    """What the roles are given for the lab's host when it builds its own modules."""
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"builder": None})
    fleet = fleet.model_copy(update={"profiles": {"gds": profile}, "builders": {}})
    sources = RunFiles(Path("/fleet"), Path("/host.pyz"), Path("/modules"), {"gpu1": "{}\n"}, {"gpu1": "{}\n"})
    groups = inventory(fleet, lockfile.read(LAB / "gdsdeploy.lock"), sources)["all"]["children"]
    variables: dict[str, Any] = groups["hosts"]["hosts"]["gpu1"]
    return variables


def preferences(machine: AptMachine, variables: dict[str, Any], closed: tuple[tuple[str, str], ...] = ()) -> str:
    """The preferences that a host gets."""
    desired = Desired("apt", pins=[Pin(**pin) for pin in variables["gds_repo_pins"]], deny=variables["gds_repo_deny"])
    packages = [pin.package for pin in desired.pins]
    names = aptsources.names_to_deny(desired.deny, packages, machine.run("apt-cache", "pkgnames").split())
    return aptsources.preferences(desired.pins, desired.deny, names, closed)
