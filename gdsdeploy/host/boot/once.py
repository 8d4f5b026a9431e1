"""Boot a kernel once: the boot after that is of the default again, whether or not the first one succeeds."""

from __future__ import annotations

import json
import os
from typing import Any, Dict

from ..errors import RolloutError
from ..io import atomic
from ..rootdir import inside, read_object
from .loader import loader
from .present import boot_id, booting, now

#: What was armed last; it survives the reboot.
RECORD = "/var/lib/gdsdeploy/rollout/once.json"
NONE, ARMED, WITHDRAWN, BOOTED, FELL_BACK = "none", "armed", "withdrawn", "booted", "fell back"
_HINT = "docs/rollout-host.md says where one boot of another kernel is possible"


def arm(kernel: str, default: str = "", root: str = "/") -> Dict[str, Any]:
    """Have the next boot, and only that one, start ``kernel``; idempotent.

    default: the kernel to make the default first; empty: the current one.  Returns ``{"changed", "once", "kernel",
    "entry", "default", "boot_id"}``; ``once`` is False if ``kernel`` is the default itself.  Raises RolloutError
    (``no-one-shot``, ``grub``) or BootError; the next boot is then of the default.
    """
    boots = loader(root)
    problems = "; ".join(boots.obstacles())
    if problems and kernel != (default or booting(root)["default"]):
        raise RolloutError("no-one-shot", f"no kernel can be booted just once: {problems}", _HINT)
    entry = boots.entry_of(kernel).ident
    changed = bool(default and boots.default(default)["changed"])
    before = boots.kernels()
    if before["default"] == kernel:
        changed = clear(root)["changed"] or changed
        return _answer(changed, False, kernel, entry, kernel, root)
    if not before["default"]:
        raise RolloutError("grub", "the default entry doesn't start Linux", "name a kernel with --default")
    if boots.next_entry() != entry or record(root).get("boot_id") != boot_id(root):
        changed = True
        # Recorded first: an unrecorded entry looks like another program's.
        written = {"kernel": kernel, "default": before["default"], "boot_id": boot_id(root), "when": now()}
        atomic.write(inside(root, RECORD), json.dumps(written, sort_keys=True) + "\n")
        boots.once(entry)
    after = boots.kernels()
    if (after["next"], after["default"]) != (kernel, before["default"]):
        clear(root)
        text = f"{kernel} was set to boot once, and the next boot would be of {after['next'] or 'something unknown'}"
        raise RolloutError("grub", text, "run gdsdeploy-host.pyz boot show")
    return _answer(changed, True, kernel, entry, before["default"], root)


def clear(root: str = "/") -> Dict[str, Any]:
    """Remove the entry for one boot, :func:`arm`'s or any other; the same shape.  Raises RolloutError."""
    last = record(root)
    armed = bool(loader(root).next_entry())
    if armed:
        loader(root).once("")
    if last:
        atomic.remove(inside(root, RECORD))
    return _answer(armed or bool(last), False, last.get("kernel", ""), "", booting(root)["default"], root)


def state(root: str = "/", running: str = "") -> Dict[str, Any]:
    """``once`` of the status; ``running``: the kernel that runs, for a root of another machine."""
    last = record(root)
    problem = "; ".join(loader(root).obstacles())
    empty = {"state": NONE, "kernel": "", "default": "", "boot_id": "", "when": ""}
    if not last:
        name = NONE
    elif last["boot_id"] == boot_id(root):
        name = ARMED if booting(root)["next"] == last["kernel"] else WITHDRAWN
    else:
        name = BOOTED if (running or os.uname().release) == last["kernel"] else FELL_BACK
    return {**empty, **last, "state": name, "possible": not problem, "problem": problem}


def record(root: str = "/") -> Dict[str, str]:
    """What was armed last: ``{"kernel", "default", "boot_id", "when"}``; empty if nothing was."""
    value = read_object(root, RECORD)
    keys = ("kernel", "default", "boot_id", "when")
    return {key: str(value[key]) for key in keys} if set(keys) <= set(value) else {}


def words(status: Dict[str, Any]) -> str:
    """The state in words."""
    if status["state"] == NONE:
        return f"impossible: {status['problem']}" if status["problem"] else "none was requested"
    return f"{status['state']}: {status['kernel']} (default {status['default']})"


def _answer(changed: bool, once: bool, kernel: str, entry: str, default: str, root: str) -> Dict[str, Any]:
    answer = {"changed": changed, "once": once, "kernel": kernel, "entry": entry, "default": default}
    return {**answer, "boot_id": boot_id(root)}
