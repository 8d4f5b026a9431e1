"""What a step of a rollout wants to know of the host before and after it."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from ..apply import lock
from ..apply.packages import state as packages
from ..boot import once
from ..boot.present import boot_id, booting, lock_digest, nvidia
from ..io import space
from . import gpu, reboot

VERSION = 1


def status(root: str = "/") -> Dict[str, Any]:
    """The document, as the package's docstring has it; raises RolloutError where packages cannot be listed."""
    state = packages.state(root)
    earlier = reboot.ordered(root)
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
            "blocked": reboot.blocked(state),
        },
    }


def lines(found: Dict[str, Any]) -> List[str]:
    """The same in words."""
    boots, one = found["boot"], found["once"]
    said = [
        "boot {} of kernel {}, up {:.0f} s".format(found["boot_id"], found["kernel"], found["uptime"]),
        boots["problem"] or "boots {} by default, {} next".format(boots["default"] or "?", boots["next"] or "?"),
        f"one boot of another kernel: {once.words(one)}",
    ]
    said += [f"no reboot now: {item}" for item in found["reboot"]["blocked"]]
    if found["reboot"]["ordered"]:
        said.append("a reboot was ordered at {when} {rollout}".format(**found["reboot"]).rstrip())
    if found["apply"]["who"]:
        said.append("{who} is changing this host".format(**found["apply"]))
    for item in found["gpu"]["open"]:
        said.append("{} (process {}) has {} open".format(item["program"], item["pid"], ", ".join(item["files"])))
    for item in found["gpu"]["modules"]:
        said.append("{} is loaded, {} references".format(item["name"], item["references"]))
    for folder, left in found["space"].items():
        said.append("{}: {:.0f} MB and {} inodes left".format(folder, left["bytes"] / 1e6, left["inodes"]))
    return said
