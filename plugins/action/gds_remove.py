"""Revert all changes of gdsdeploy on a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction


class ActionModule(ApplyAction):  # type: ignore[misc]
    """The host program's command ``remove``."""

    def command(self, options: Mapping[str, Any]) -> list[str]:
        """Remove every applied resource."""
        order = ["--fleet-id", options["fleet_id"], "--lock-serial", str(options["lock_serial"])]
        return ["remove", *(order if options["fleet_id"] else [])]
