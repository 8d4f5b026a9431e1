"""How hosts are told to use a mirror: its one source and its key in the originals' place.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.host.apply.packages.managers import Index
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


def of_mirror(
    mirror: Mirror, target: Target, fleet_dir: Path, keyrings: Mapping[str, str]
) -> tuple[list[Index], dict[str, str]]:
    """The repository of a host that uses the mirror, and place on the host → keyring on the controller.

    keyrings: those that are brought to hosts without a mirror.  Rpm packages keep their makers' signatures, which dnf
    goes on to check.  The files are the same, so versions, pins and checksums stay those of the lock.
    """
    keyring = paths.locate(fleet_dir, mirror.keyring)
    if _of_rpm(target):
        makers = list(dict.fromkeys(index.host_keyring for index in target.indices))
        uri = f"{mirror.uri.rstrip('/')}/{folder(target)}"
        # What the locked packages need of the system comes from here too, so it isn't exclusive.
        index = Index("mirror", uri, "", [], HOST_KEY, exclusive=False, package_keys=makers)
        return [index], {HOST_KEY: _key(keyring, ".gpg", ".asc"), **keyrings}
    suite = folder(target).removeprefix("dists/")
    index = Index("mirror", mirror.uri.rstrip("/"), suite, [STACK, SYSTEM], HOST_KEYRING, exclusive=False)
    return [index], {HOST_KEYRING: _key(keyring, ".asc", ".gpg")}


def _key(keyring: Path, other: str, ending: str) -> str:
    """The key in this host's form: the mirror has both beside each other, and a fleet names one."""
    return str(keyring.with_suffix(ending) if keyring.suffix == other else keyring)
