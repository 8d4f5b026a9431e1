"""Ansible filters: what stays when provision is taken back.

They run on the controller, where gdsdeploy is installed.
"""

from __future__ import annotations

from typing import Any

from gdsdeploy.repo import zyppins


def gds_remove_zypp_kept(there: str, ours: str) -> str:
    """Zypper's file of locks without ours."""
    return zyppins.merged(there, ours, "")


class FilterModule:
    """Registers the filters with Ansible."""

    def filters(self) -> dict[str, Any]:
        """Name → function."""
        return {"gds_remove_zypp_kept": gds_remove_zypp_kept}
