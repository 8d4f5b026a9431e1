"""Removes what was applied on a host, in a safe order."""

from __future__ import annotations

import glob
import os
from functools import partial
from typing import Callable, List, Sequence

from .. import derived
from ..errors import ApplyError, CannotTellError, DesiredError
from ..rootdir import list_folder
from . import labels, lock, packages, registry, services, written
from .file_resource import restore
from .host import ManagedHost
from .model import INSTALLS, Change, writing
from .packages import left
from .packages.managers import HOLDS, INSTALLED
from .record import PATH as RECORD

#: Where gdsdeploy/zipapp/bootstrap.py unpacks host programs.
PROGRAMS = "/run/gdsdeploy/program-"
_Step = Callable[[ManagedHost], List[Change]]


def remove(
    host: ManagedHost, only: Sequence[str] = (), done: Callable[[Sequence[Change]], None] = lambda _: None
) -> List[Change]:
    """Revert every resource, or those of ``only``; with ``host.check`` only say what that would change.

    done: called with the changes of each step.  Raises ApplyError; a second call continues where this one stopped.
    """
    order = registry.removal_order()
    unknown = [name for name in only if name not in order]
    if unknown:
        raise DesiredError(f"{unknown[0]}: can't be removed by itself; known: {', '.join(order)}")
    changes: List[Change] = []
    steps: List[_Step] = [registry.resource(name).revert for name in order if name in only or not only]
    # A check finds the packages still there that leave before others come back.
    purged = packages.purged(host) if left.read(host) and not only else []
    bring_back = partial(left.revert, purged=purged)
    others: List[_Step] = [] if only else [bring_back, _restore_recorded, _restore_unrecorded]
    last: List[_Step] = [] if only else [_folders]

    def have_read(host: ManagedHost) -> List[Change]:
        """What reads restored files does so before the record goes that it is due."""
        is_due = derived.is_due(services.systemd(host), host.root)
        if not host.check and (is_due or any(services.FOLDER in change.subject for change in changes)):
            services.reload(host)
            with writing(derived.PATH):
                derived.settle([services.systemd(host)], host.root, keep=False)
        if not host.check:
            labels.restore(host)
        return []

    with labels.restore_after(host):
        for step in [*steps, *others, have_read, *last]:
            subjects = {earlier.subject for earlier in changes}
            try:
                # A package that leaves may come back in the version that it had.
                new = [change for change in step(host) if change.subject not in subjects or change.kind in INSTALLS]
            except CannotTellError as error:
                raise ApplyError(str(error), error.hint, error.kind) from None
            changes += new
            done(new)
    return changes


def _restore_recorded(host: ManagedHost) -> List[Change]:
    """What the record still has: paths of resources that this version doesn't know."""
    return restore(host, [glob.escape(path) for path in host.record.paths if not written.in_folders(path)])


def _restore_unrecorded(host: ManagedHost) -> List[Change]:
    """What an older version left without a record."""
    patterns = [f"{folder}/{pattern}" for folder, pattern in (*written.KEYS, written.RECIPES, written.DEPMOD)]
    return restore(host, [*written.FILES, *written.PASSING, *patterns])


def _folders(host: ManagedHost) -> List[Change]:
    """Gdsdeploy's folders, the one with the record last."""
    folders = sorted(written.FOLDERS, key=lambda name: name == os.path.dirname(RECORD))
    paths = [path for folder in folders for path in _removable(host, folder)]
    if not host.check:
        for path in paths:
            host.remove_tree(path)
    return [Change("delete", path, "folder", "", "ours") for path in paths]


def _removable(host: ManagedHost, folder: str) -> List[str]:
    """The folder, or what is in it where something has to stay: the lock, records of packages."""
    protected = {lock.PATH} | ({INSTALLED} if packages.staying(host) else set())
    # What can't come back stays on record; a check doesn't know that.
    if folder == os.path.dirname(left.RECORD) and not host.check and left.read(host):
        protected.add(left.RECORD)
    if any(os.path.dirname(path) == folder for path in protected):
        paths = [f"{folder}/{name}" for name in list_folder(host.root, folder)]
        # The program that runs is among those that were unpacked; a boot clears them.
        # Records without names are gone by then.
        staying = {*protected, HOLDS, INSTALLED}
        going = (path for path in paths if path not in staying and not path.startswith(PROGRAMS))
        return sorted(going, key=lambda path: path == RECORD)
    return [folder] if host.exists(folder) else []
