"""A rollback's packages, from a repository on the controller."""

from __future__ import annotations

import base64
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction

#: Where the host program looks for the packages.
PLACE = "/var/lib/gdsdeploy-restore.tar"


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Bring ``archive`` and the key in ``keyring`` to the host."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Replace the archive by its checksum, and the key's path by the key."""
        desired = {key: value for key, value in options.items() if key not in ("archive", "keyring")}
        if options["step"] == "remove" or not options["archive"]:
            return desired
        desired["archive_sha256"] = self.bring(options["archive"], PLACE, variables)
        if options["keyring"]:
            desired["keyring"] = base64.b64encode(self.read(options["keyring"])).decode("ascii")
        return desired
