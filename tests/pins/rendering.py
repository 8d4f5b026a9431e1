"""The files that the roles write, rendered as Ansible renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from gdsdeploy import lockfile
from gdsdeploy.inventory import Sources, inventory
from gdsdeploy.load import load_fleet

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"


def host_variables() -> dict[str, Any]:
    """What the roles are given for the lab's host when it builds its own modules."""
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"builder": None})
    fleet = fleet.model_copy(update={"profiles": {"gds": profile}, "builders": {}})
    sources = Sources(Path("/fleet"), Path("/host.pyz"), Path("/modules"), {"gpu1": "{}\n"}, {"gpu1": "{}\n"})
    groups = inventory(fleet, lockfile.read(LAB / "gdsdeploy.lock"), sources)["all"]["children"]
    found: dict[str, Any] = groups["hosts"]["hosts"]["gpu1"]
    return found


def rendered(template: str, variables: dict[str, Any]) -> str:
    """A template of the roles with their variables."""
    loader = jinja2.FileSystemLoader(ROOT / "templates")
    environment = jinja2.Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True)
    return environment.get_template(template).render(variables)


def preferences(variables: dict[str, Any], exclusive: tuple[dict[str, str], ...] = ()) -> str:
    """The preferences that the role writes."""
    return rendered("apt-preferences.j2", {**variables, "__gds_repo_exclusive": exclusive})
