"""Applies one resource of the host program; the module of the task names it."""

from __future__ import annotations

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction


class ActionModule(ApplyAction):  # type: ignore[misc]
    """For every module that needs no file of the controller."""
