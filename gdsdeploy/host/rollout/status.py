"""The state of the host that a rollout reads before and after a step."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from ..apply import gpu, lock
from ..apply.packages import state as packages
from ..boot import once
from ..boot.present import boot_id, booting, lock_digest, nvidia
from ..io import space
from . import reboot

VERSION = 1


def status(root: str = "/") -> Dict[str, Any]:
    """The document, as the package's docstring has it; raises RolloutError where packages cannot be listed."""
    state = packages.state(root)
    earlier = reboot.earlier_order(root)
    return {
        "version": VERSION,
        "boot_id": boot_id(root),
        "kernel": os.uname().release,
        "devices": nvidia(root),
        "lock_digest": lock_digest(root),
        "uptime": reboot.uptime(root),
        "boot": booting(root),
        "once": once.state(root),
        "packages": state,
        "gpu": gpu.users(root),
        "space": space.free(root),
        "apply": lock.holder(),
        "reboot": {
            "ordered": earlier is not None,
            "rollout": earlier["rollout"] if earlier else "",
            "when": earlier["when"] if earlier else "",
            "blocked": reboot.blockers(state),
        },
    }


def lines(document: Dict[str, Any]) -> List[str]:
    """The same in words."""
    boots, order, gpus = document["boot"], document["reboot"], document["gpu"]
    text = [
        f"boot {document['boot_id']} of kernel {document['kernel']}, up {document['uptime']:.0f} s",
        boots["problem"] or f"boots {boots['default'] or '?'} by default, {boots['next'] or '?'} next",
        f"one boot of another kernel: {once.words(document['once'])}",
        *(f"no reboot now: {reason}" for reason in order["blocked"]),
    ]
    if order["ordered"]:
        text.append(f"a reboot was ordered at {order['when']} {order['rollout']}".rstrip())
    if document["apply"]["who"]:
        text.append(f"{document['apply']['who']} is changing this host")
    text += [f"{user['program']} (process {user['pid']}) has {', '.join(user['files'])} open" for user in gpus["open"]]
    text += [f"{module['name']} is loaded, {module['references']} references" for module in gpus["modules"]]
    for folder, left in document["space"].items():
        text.append(f"{folder}: {left['bytes'] / 1e6:.0f} MB and {left['inodes']} inodes left")
    return text
