"""How hosts are told to use a mirror: the its one source and its key in the originals' place.  Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdsdeploy.model.fleet import Mirror
from gdsdeploy.model.lock import Target

#: Components of a mirror: what the lock holds, and what that needs of the operating system.
STACK, SYSTEM = "stack", "system"
#: Where the mirror's key lies on a host.
HOST_KEYRING = "/etc/apt/keyrings/gdsdeploy-mirror.gpg"


def variables(mirror: Mirror | None, target: Target, fleet_dir: Path) -> dict[str, Any]:
    """What of gds_repo's variables a mirror replaces; nothing without one.

    The files are the same, so versions, pins and checksums stay those of the lock.  Mirrors are apt repositories:
    hosts of rpm families go on with those of the lock.
    """
    if mirror is None or any(index.kind == "rpm" for index in target.indices):
        return {}
    source = {
        "repository": "mirror",
        "uri": mirror.uri.rstrip("/"),
        "suite": target.os,
        "components": [STACK, SYSTEM],
        "host_keyring": HOST_KEYRING,
        # What the locked packages need of the system comes from here too.
        "exclusive": False,
    }
    keyring = str(fleet_dir / Path(mirror.keyring).expanduser())
    return {"gds_repo_indices": [source], "gds_repo_keys": [{"src": keyring, "dest": HOST_KEYRING}]}
