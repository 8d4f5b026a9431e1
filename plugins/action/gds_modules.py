"""Kernel modules; their archive goes from the machine that builds to those that receive, by the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction, GdsError

#: The checksum of an archive that has to be delivered first.
NOT_DELIVERED = "none"


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Brings ``archive`` to a machine that receives, and fetches it from one that builds."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Which archive is meant, and on a machine that receives: the archive itself."""
        desired = {key: value for key, value in options.items() if key != "archive"}
        archive = options.get("archive", "")
        if options["source"] == "build":
            return {**desired, "hand_over": bool(archive)}
        return {**desired, "archive_sha256": self._bring(archive, options, variables) if archive else ""}

    def finish(self, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Fetch the archive from the machine that built it."""
        if options["source"] == "build" and options.get("archive"):
            self.play("fetch", {"src": _place(options), "dest": options["archive"], "flat": True}, variables)

    def _bring(self, archive: str, options: Mapping[str, Any], variables: dict[str, Any]) -> str:
        """The checksum of the archive, which is then on the host; raises GdsError where the controller has none."""
        if not Path(archive).is_file():
            message = f"the archive of modules for {options['kernel_release']} isn't on the controller ({archive})"
            if self._task.check_mode:
                return NOT_DELIVERED
            hint = "provision the host that builds it first: run provision without --limit, or with that host in it"
            raise GdsError("not-delivered", message, hint)
        return self.bring(archive, _place(options), variables)


def _place(options: Mapping[str, Any]) -> str:
    """Where a host has the archive."""
    return f"/var/lib/gdsdeploy/modules-{options['kernel_release']}.tar"
