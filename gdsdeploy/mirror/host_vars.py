"""How hosts are told to use a mirror: its one source and its key in the originals' place.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.model.fleet import Mirror
from gdsdeploy.model.lock import Target

#: Components of a mirror: what the lock holds, and what that needs of the operating system.
STACK, SYSTEM = "stack", "system"
#: Where the mirror's key lies on a host: as apt reads it, and as rpm does.
HOST_KEYRING = "/etc/apt/keyrings/gdsdeploy-mirror.gpg"
HOST_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-mirror"


def folder(target: Target) -> str:
    """Where a mirror's repository for hosts of ``target`` lies below it; those of one folder share its one index.

    A suite of apt has every architecture; an rpm repository has one.
    """
    return f"rpm/{target.os}/{target.arch}" if _of_rpm(target) else f"dists/{target.os}"


def _of_rpm(target: Target) -> bool:
    return any(index.kind == "rpm" for index in target.indices)


def variables(
    mirror: Mirror | None, target: Target, fleet_dir: Path, keys: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """What of gds_repo's variables a mirror replaces; nothing without one.

    keys: those that are brought to hosts without a mirror.  Rpm packages keep their makers' signatures, which dnf goes
    on to check.  The files are the same, so versions, pins and checksums stay those of the lock.
    """
    if mirror is None:
        return {}
    keyring = paths.locate(fleet_dir, mirror.keyring)
    if _of_rpm(target):
        makers = list(dict.fromkeys(index.host_keyring for index in target.indices))
        uri = f"{mirror.uri.rstrip('/')}/{folder(target)}"
        source = {**_source(uri, "", [], HOST_KEY), "package_keys": makers}
        own = {"src": _key(keyring, ".gpg", ".asc"), "dest": HOST_KEY}
        return {"gds_repo_indices": [source], "gds_repo_keys": [own, *map(dict, keys)]}
    suite = folder(target).removeprefix("dists/")
    source = _source(mirror.uri.rstrip("/"), suite, [STACK, SYSTEM], HOST_KEYRING)
    own = {"src": _key(keyring, ".asc", ".gpg"), "dest": HOST_KEYRING}
    return {"gds_repo_indices": [source], "gds_repo_keys": [own]}


def _key(keyring: Path, other: str, ending: str) -> str:
    """The key in this host's form: the mirror has both beside each other, and a fleet names one."""
    return str(keyring.with_suffix(ending) if keyring.suffix == other else keyring)


def _source(uri: str, suite: str, components: list[str], host_keyring: str) -> dict[str, Any]:
    return {
        "repository": "mirror",
        "uri": uri,
        "suite": suite,
        "components": components,
        "host_keyring": host_keyring,
        # What the locked packages need of the system comes from here too.
        "exclusive": False,
    }
