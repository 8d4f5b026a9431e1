"""``gdsdeploy-host.pyz pins refresh``: what apt runs after it has read package lists."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..apply.host import ManagedHost
from ..apply.packages.apt import Apt
from ..errors import ApplyError, CannotTellError
from .parsers import command, group


def add_parsers(commands: Any) -> None:
    """Add ``pins`` to the host program's commands."""
    verbs = group(commands, "pins", "which packages stay out of this host")
    command(verbs, "refresh", run, "keep out what the repositories have had since the last provisioning")


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done; 1 the file of preferences can't be read or written."""
    try:
        changed = Apt().refresh_pins(ManagedHost())
    except (ApplyError, CannotTellError) as error:
        print(
            json.dumps({"error": str(error)}) if arguments.json else f"gdsdeploy-host: the pins are as before: {error}"
        )
        return 1
    if arguments.json:
        print(json.dumps({"changed": changed}))
    return 0
