"""Hooks that let the kernel guard see every kernel that a package manager installs or removes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Tuple

from ..errors import DesiredError
from .file_resource import FileResource
from .files import FOLDER, File
from .packages.managers import every, manager

#: By package manager.  Last of their folders: after DKMS has built modules and the boot menu was written.
HOOKS: Dict[str, Tuple[str, ...]] = {one.name: one.kernel_hooks for one in every() if one.kernel_hooks}
_HEAD = """\
#!/bin/sh
# Rendered by gdsdeploy; changes here are overwritten. Run after a kernel was installed or removed: sees to it that the
# next boot starts a kernel whose modules are the locked ones. Never fails: that would leave a package half-configured.
program=/usr/lib/gdsdeploy/gdsdeploy-host.pyz
"""
_TAIL = """\
[ -n "$release" ] || exit 0
if [ ! -r "$program" ] || ! command -v python3 >/dev/null 2>&1; then
    text="kernel $release: nobody can tell whether it may boot by default, because $program or python3 is missing; \
provision this host again"
    echo "gdsdeploy: $text" >&2
    logger --tag gdsdeploy-guard --priority daemon.warning -- "$text" 2>/dev/null
    exit 0
fi
timeout 600 python3 -I -S "$program" guard hook "$event" "$release" </dev/null >&2 ||
    echo "gdsdeploy: kernel $release: the check did not end well; see: python3 -I -S $program guard status" >&2
exit 0
"""


@dataclass(frozen=True)
class Desired:
    """The hooks of the package manager."""

    #: The package manager that runs the hooks: ``apt`` or ``dnf``.
    manager: str


class Guard(FileResource[Desired]):
    """The guard's hooks and their folders."""

    name = "guard"
    desired_type = Desired
    removal_rank = 10
    reverts = tuple(path for paths in HOOKS.values() for path in paths)

    def desired_files(self, desired: Desired) -> List[File]:
        """One hook for each event; raises DesiredError for a package manager that has no hooks."""
        if desired.manager not in HOOKS:
            raise DesiredError(
                f"guard.manager: {desired.manager!r} has no hooks for kernels", f"use {' or '.join(HOOKS)}"
            )
        paths = HOOKS[desired.manager]
        folders = [File(os.path.dirname(path), FOLDER, mode=0o755) for path in paths]
        return [*folders, *(File.of(path, hook(desired.manager), 0o755) for path in paths)]


def hook(name: str) -> str:
    """The text of a hook of the package manager ``name``; raises DesiredError."""
    return _HEAD + manager(name).kernel_event + _TAIL
