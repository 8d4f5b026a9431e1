"""The root of an image: nothing in it belongs to one host, and its first boot labels what was written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence

from ..archive.provenance import KEY, PUBLIC
from ..gate.gate import RECORD, STATE_FOLDER
from .files import File
from .host import ManagedHost
from .model import Change, Resource, Words
from .record import beside

MACHINE_ID = "/etc/machine-id"
#: dbus makes this file before systemd has an id; elsewhere it is a link to systemd's.
_DBUS_ID = "/var/lib/dbus/machine-id"
#: The key that signs a machine's modules, its gate's last verdict, and the state of its rollout.
_OF_ONE_HOST = (KEY, PUBLIC, f"{STATE_FOLDER}/{RECORD}", f"{STATE_FOLDER}/rollout")
#: With this file, the first boot labels every file and boots again (selinux-autorelabel.service).
RELABEL = "/.autorelabel"
_SELINUX = "/etc/selinux/config"
_ON = re.compile(r"^SELINUX=(enforcing|permissive)\s*$", re.MULTILINE)
#: machine-id(5): systemd makes an id at the first boot.
_NO_ID = ("", "uninitialized")


@dataclass(frozen=True)
class Desired:
    """It has no fields."""


class Image(Resource[Desired]):
    """What hosts that boot from one image must not share, and the labels that can't be set while SELinux doesn't run.

    Nothing of it is recorded or taken back: a host that boots from the image would otherwise get an id of others.
    """

    name = "image"
    desired_type = Desired
    kinds: ClassVar[Words] = {"write": "write {}", "delete": "delete {}"}
    reasons: ClassVar[Words] = {"identity": "what belongs to one host", "labels": "files without labels of SELinux"}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        dbus = beside(host.root, _DBUS_ID)
        return {
            "identity": host.text(MACHINE_ID).strip() not in _NO_ID,
            "files": [path for path in _OF_ONE_HOST if os.path.lexists(beside(host.root, path))]
            + ([_DBUS_ID] if os.path.isfile(dbus) and not os.path.islink(dbus) else []),
            "relabel": bool(_ON.search(host.text(_SELINUX))) and not host.exists(RELABEL),
        }

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        changes = [Change("write", MACHINE_ID, "", "empty", "identity")] if observed["identity"] else []
        changes += [Change("delete", path, "", "", "identity") for path in observed["files"]]
        return changes + ([Change("write", RELABEL, "", "empty", "labels")] if observed["relabel"] else [])

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "delete":
            host.remove_tree(change.subject)
        else:
            host.write_unrecorded(File(change.subject, mode=0o444 if change.subject == MACHINE_ID else 0o644))
