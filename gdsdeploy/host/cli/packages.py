"""``gdsdeploy-host.pyz packages``: what is installed here; ``gdsdeploy lock --adopt`` asks for it.

``gdsdeploy-host.pyz pins refresh``: what apt runs after it has read package lists.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict

from ..apply.host import ManagedHost
from ..apply.packages import state
from ..apply.packages.apt import Apt
from ..errors import ApplyError, CannotTellError, RolloutError
from ..model.system import system_of
from ..rootdir import read_text
from .parsers import PROGRAM, ROOT, show


@PROGRAM.command("packages", "the packages that are installed here, with their versions and holds", ROOT)
def run_packages(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done; 1 the package manager can't be asked."""
    root = arguments.root
    try:
        packages = state.read_packages(root)
    except RolloutError as error:
        print(json.dumps({"error": {"kind": error.kind, "message": error.message, "hint": error.hint}}))
        return 1
    versions = state.versions([package.name for package in packages], packages)
    answer: Dict[str, Any] = {
        "version": 1,
        "os": system_of(read_text(root, "/etc/os-release")),
        "arch": os.uname().machine,
        "packages": {name: entry for name, entry in versions.items() if entry["version"]},
    }
    listed = answer["packages"].items()
    lines = (f"{name} {entry['version']}{' (held)' if entry['held'] else ''}" for name, entry in listed)
    return show(arguments, answer, lines)


@PROGRAM.group("pins", "which packages stay out of this host").command(
    "refresh", "keep out what the repositories have had since the last provisioning"
)
def refresh_pins(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done; 1 the file of preferences can't be read or written."""
    try:
        changed = Apt().refresh_pins(ManagedHost())
    except (ApplyError, CannotTellError) as error:
        print(
            json.dumps({"error": str(error)}) if arguments.json else f"gdsdeploy-host: the pins are as before: {error}"
        )
        return 1
    return show(arguments, {"changed": changed}, ())
