"""Apply one resource of the host program, named by the task's module."""

from __future__ import annotations

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction


class ActionModule(ApplyAction):  # type: ignore[misc]
    """For modules without files of the controller."""
