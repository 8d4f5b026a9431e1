"""The files that provision writes on hosts, and gdsdeploy's folders.

``apply.removal`` takes the same away.  What a resource reverts is known without being on a list here.
"""

from __future__ import annotations

import fnmatch
import posixpath
from functools import lru_cache
from typing import FrozenSet, List

from ..paths import IMEX_NODES
from ..rootdir import list_folder, read_text
from . import registry

#: In the first line of every rendered file.
MARK = "Rendered by gdsdeploy"
CUFILE = "/etc/cufile.json"

#: Files that make the host what its lock says; a rollback has to bring back every one.
FILES = (
    "/etc/kernel/postinst.d/zzz-gdsdeploy-guard",
    "/etc/kernel/postrm.d/zzz-gdsdeploy-guard",
    "/etc/kernel/install.d/99-gdsdeploy-guard.install",
    "/etc/apt/preferences.d/00-gdsdeploy.pref",
    "/etc/apt/apt.conf.d/99gdsdeploy",
    "/etc/apt/sources.list.d/gdsdeploy.sources",
    "/etc/yum.repos.d/gdsdeploy.repo",
    "/etc/modprobe.d/gdsdeploy.conf",
    "/etc/modprobe.d/gdsdeploy-boot.conf",
    "/etc/default/grub.d/zz-gdsdeploy-boot.cfg",
    "/etc/modules-load.d/gdsdeploy.conf",
    "/etc/tmpfiles.d/gdsdeploy.conf",
    "/etc/dkms/framework.conf.d/gdsdeploy.conf",
    "/etc/systemd/system/gds-gate.service",
    "/etc/systemd/system/gds-peermem.service",
    "/etc/systemd/system/gds-watch.service",
    "/etc/systemd/system/nv_peer_mem.service.d/gdsdeploy.conf",
)
#: gdsdeploy's folders.  The content of /etc/gdsdeploy belongs to the lock; the others hold programs and results.
FOLDERS = ("/etc/gdsdeploy", "/usr/lib/gdsdeploy", "/var/lib/gdsdeploy", "/var/log/gdsdeploy/kmod", "/run/gdsdeploy")
#: Temporary files: the secret of an enrolment, and packages that a rollback puts back.
PASSING = (
    "/var/lib/gdsdeploy-mok-password",
    "/var/lib/gdsdeploy-restore",
    "/var/lib/gdsdeploy-restore.tar",
    "/etc/apt/sources.list.d/gdsdeploy-restore.sources",
)
#: In the names of temporary keys for these packages.
RESTORING = "gdsdeploy-restore"
#: Folder and name of files of which there may be any number.
KEYS = (("/etc/apt/keyrings", "gdsdeploy-*.gpg"), ("/etc/pki/rpm-gpg", "RPM-GPG-KEY-gdsdeploy-*"))
RECIPES = ("/etc/dkms", "*.conf")
DEPMOD = ("/etc/depmod.d", "gdsdeploy-*")
_PATTERNS = (*KEYS, RECIPES, DEPMOD)
#: Files with lines of gdsdeploy among others, or that others write where gdsdeploy doesn't; the boot loader's settings.
SHARED = (IMEX_NODES, "/etc/dnf/plugins/versionlock.list", "/etc/default/grub.d/gdsdeploy.cfg")


def is_ours(path: str) -> bool:
    """Whether the name alone tells that only gdsdeploy writes the file."""
    return (
        path in FILES
        or path in PASSING
        or path == SHARED[-1]
        or in_folders(path)
        or any(fnmatch.fnmatchcase(path, f"{folder}/{pattern}") for folder, pattern in (*KEYS, DEPMOD))
    )


def in_folders(path: str) -> bool:
    """Whether it is one of FOLDERS, or in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in FOLDERS)


@lru_cache(maxsize=1)
def _reverted_paths() -> FrozenSet[str]:
    """The files that resources revert, without those of FOLDERS and PASSING."""
    paths = {path for name in registry.names() for path in registry.resource(name).reverts}
    return frozenset(path for path in paths - {*PASSING} if not in_folders(path) and not set(path) & set("*?["))


def is_known(path: str) -> bool:
    """Whether :func:`paths` may name ``path`` on some host: absolute, normalized, and written by provision."""
    folder, name = posixpath.split(path)
    if path in (*FILES, *SHARED, CUFILE) or path in _reverted_paths():
        return True
    patterns = [pattern for place, pattern in (*_PATTERNS, ("/etc/gdsdeploy", "?*")) if place == folder]
    return name not in (".", "..") and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def paths(root: str = "/") -> List[str]:
    """Every path that a snapshot looks at, whether or not it is there; sorted."""
    every = {*FILES, *SHARED, CUFILE, *_reverted_paths(), "/etc/gdsdeploy/expectation.json", "/etc/gdsdeploy/gate.json"}
    for folder, pattern in (*_PATTERNS, ("/etc/gdsdeploy", "*")):
        listed = [f"{folder}/{name}" for name in fnmatch.filter(list_folder(root, folder), pattern)]
        if (folder, pattern) == RECIPES:
            listed = [path for path in listed if MARK in read_text(root, path)[:400]]
        every.update(path for path in listed if RESTORING not in path)
    return sorted(every)
