"""Boot a kernel once: the boot after that is of the default again, whatever the first one came to."""

from __future__ import annotations

import json
import os
from typing import Any, Dict

from ..errors import RolloutError
from ..io import atomic
from ..rootdir import inside, read_text
from . import grub, grubenv
from .present import boot_id, booting, now

#: What was armed last; it outlives the reboot that it is about.
RECORD = "/var/lib/gdsdeploy/rollout/once.json"
NONE, ARMED, WITHDRAWN, BOOTED, FELL_BACK = "none", "armed", "withdrawn", "booted", "fell back"
_HINT = "docs/rollout-host.md says where one boot of another kernel is possible"


def arm(kernel: str, default: str = "", root: str = "/") -> Dict[str, Any]:
    """Have the next boot, and only that one, start ``kernel``; idempotent.

    default: the kernel that boots otherwise, made the default first; empty: whatever is the default now.
    Returns ``{"changed", "once", "kernel", "entry", "default", "boot_id"}``; ``once`` is False where the kernel is the
    default, so that nothing was to be armed.  Raises RolloutError (``no-one-shot``, ``grub``) or BootError; the next
    boot is then of the default.
    """
    problems = grubenv.obstacles(root)
    if problems and kernel != (default or booting(root)["default"]):
        raise RolloutError("no-one-shot", "no kernel can be booted just once: {}".format("; ".join(problems)), _HINT)
    entry = grub.entry_of(kernel, root)
    changed = bool(default and grub.set_default(default, root=root)["changed"])
    before = grub.default_kernel(root)
    if before["default"] == kernel:
        changed = clear(root)["changed"] or changed
        return _answer(changed, False, kernel, entry, kernel, root)
    if not before["default"]:
        raise RolloutError("grub", "what GRUB boots by default is no Linux kernel", "name it with --default")
    if grubenv.variables(root).get("next_entry") != entry or record(root).get("boot_id") != boot_id(root):
        changed = True
        # Written down first: an entry that nobody remembers could not be told from somebody else's.
        written = {"kernel": kernel, "default": before["default"], "boot_id": boot_id(root), "when": now()}
        atomic.write(inside(root, RECORD), json.dumps(written, sort_keys=True) + "\n")
        grubenv.change(["set", "next_entry=" + entry], root)
    after = grub.default_kernel(root)
    if (after["next"], after["default"]) != (kernel, before["default"]):
        clear(root)
        words = "GRUB was told to boot {} once, and would boot {}".format(kernel, after["next"] or "something unknown")
        raise RolloutError("grub", words, "look at: gdsdeploy-host.pyz boot show")
    return _answer(changed, True, kernel, entry, before["default"], root)


def clear(root: str = "/") -> Dict[str, Any]:
    """Take back what :func:`arm` did, or anybody else's entry for one boot; the same shape.  Raises RolloutError."""
    found = record(root)
    armed = bool(grubenv.variables(root).get("next_entry"))
    if armed:
        grubenv.change(["unset", "next_entry"], root)
    if found:
        atomic.remove(inside(root, RECORD))
    default = booting(root)["default"]
    return _answer(armed or bool(found), False, found.get("kernel", ""), "", default, root)


def state(root: str = "/", running: str = "") -> Dict[str, Any]:
    """``once`` of the status; ``running``: the kernel that runs, where it is not this machine's."""
    found = record(root)
    problem = "; ".join(grubenv.obstacles(root))
    empty = {"state": NONE, "kernel": "", "default": "", "boot_id": "", "when": ""}
    if not found:
        name = NONE
    elif found["boot_id"] == boot_id(root):
        name = ARMED if booting(root)["next"] == found["kernel"] else WITHDRAWN
    else:
        name = BOOTED if (running or os.uname().release) == found["kernel"] else FELL_BACK
    return {**empty, **found, "state": name, "possible": not problem, "problem": problem}


def record(root: str = "/") -> Dict[str, str]:
    """What was armed last: ``{"kernel", "default", "boot_id", "when"}``; empty where nothing was."""
    try:
        value = json.loads(read_text(root, RECORD) or "{}")
    except ValueError:
        return {}
    keys = ("kernel", "default", "boot_id", "when")
    return {key: str(value[key]) for key in keys} if isinstance(value, dict) and set(keys) <= set(value) else {}


def words(found: Dict[str, Any]) -> str:
    """The state in words."""
    if found["state"] == NONE:
        return "impossible: {}".format(found["problem"]) if found["problem"] else "none was asked for"
    return "{}: {} (default {})".format(found["state"], found["kernel"], found["default"])


def _answer(changed: bool, once: bool, kernel: str, entry: str, default: str, root: str) -> Dict[str, Any]:
    return {
        "changed": changed,
        "once": once,
        "kernel": kernel,
        "entry": entry,
        "default": default,
        "boot_id": boot_id(root),
    }
