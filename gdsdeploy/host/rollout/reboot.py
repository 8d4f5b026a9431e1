"""Reboot if this is still the boot that the caller means, and at most once in it.

The state of the host that a rollout reads before and after a step.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import syslog
from typing import Any, Dict, List

from .. import process
from ..apply import gpu, lock
from ..apply.packages import state as packages
from ..boot import once
from ..boot.present import boot_id, booting, lock_digest, now, nvidia, of_this_boot
from ..errors import RolloutError
from ..io import atomic, space
from ..rootdir import inside, read_text

FOLDER = "/run/gdsdeploy"
MARKER = FOLDER + "/reboot.json"
UNIT = "gdsdeploy-rollout-reboot"
IDENT = "gdsdeploy-rollout"
#: Seconds from the answer until the host goes down, so that the answer gets away.
DELAY = 2
#: Seconds after which an order that systemd does not follow counts as lost.
PATIENCE = 120.0
_TIMEOUT = 60.0


def order(expected: str, rollout: str = "", root: str = "/") -> Dict[str, str]:
    """Order a reboot of boot ``expected``; returns ``{"did", "boot_id", "kernel"}`` and the host goes down soon after.

    Raises RolloutError, and then the host stays up: ``packages-busy``, ``packages-broken``, ``inhibited``, ``systemd``.
    """
    present = boot_id(root)
    if present != expected:
        return _answer("already rebooted", present)
    with os.fdopen(atomic.open_descriptor(inside(root, FOLDER) + "/reboot.lock"), "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        earlier = of_this_boot(MARKER, root)
        if earlier and (_is_stopping() or uptime(root) - float(earlier["uptime"]) < PATIENCE):
            return _answer("already ordered", present)
        _refuse(root)
        record = {"boot_id": present, "rollout": rollout, "when": now(), "uptime": uptime(root)}
        atomic.write(inside(root, MARKER), json.dumps(record, sort_keys=True) + "\n")
        # The record must survive a host that hangs while it shuts down.
        os.sync()
        try:
            _schedule()
        except RolloutError:
            atomic.remove(inside(root, MARKER))
            raise
    by = f"rollout {rollout}" if rollout else "a rollout"
    syslog.openlog(IDENT)
    syslog.syslog(syslog.LOG_NOTICE, f"{by} has this host rebooted in {DELAY} s (boot {present})")
    return _answer("ordered", present)


def uptime(root: str = "/") -> float:
    words = read_text(root, "/proc/uptime").split()
    return float(words[0]) if words else 0.0


def inhibitors() -> List[str]:
    """Programs that block a shutdown, as sentences; inhibitors that only delay it don't count."""
    call = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors"]
    output = process.run(["busctl", "--no-pager", "call", *call], _TIMEOUT)
    # Without logind there are no inhibitors.
    return blocking(output.stdout) if output.status == 0 else []


def blocking(text: str) -> List[str]:
    """Pure: what ``busctl call`` prints for an array of (what, who, why, mode, uid, pid)."""
    words = shlex.split(text)[2:]
    rows = [words[place : place + 6] for place in range(0, len(words) - len(words) % 6, 6)]
    return [
        f"{who} (process {pid}) keeps this host from shutting down: {why}"
        for what, who, why, mode, _, pid in rows
        if "shutdown" in what.split(":") and mode == "block"
    ]


def _refuse(root: str) -> None:
    state = packages.state(root)
    for kind, reasons, hint in (
        ("packages-busy", _busy(state), "try again when it has ended"),
        ("packages-broken", _broken(state), "dpkg --configure -a"),
        ("inhibited", inhibitors(), "systemd-inhibit --list"),
    ):
        if reasons:
            raise RolloutError(kind, f"no reboot now: {'; '.join(reasons)}", hint)


def _busy(state: Dict[str, Any]) -> List[str]:
    return [f"{lock['program'] or 'a program'} (process {lock['pid']}) holds {lock['path']}" for lock in state["locks"]]


def _broken(state: Dict[str, Any]) -> List[str]:
    reasons = ["dpkg was interrupted"] if state["interrupted"] else []
    names = ", ".join(f"{package['package']} ({package['state']})" for package in state["broken"])
    return reasons + ([f"packages are half-installed: {names}"] if names else [])


def _is_stopping() -> bool:
    return process.run(["systemctl", "is-system-running"], _TIMEOUT).stdout.strip() == "stopping"


def _schedule() -> None:
    argv = ["systemd-run", "--quiet", "--collect", "--unit=" + UNIT, f"--on-active={DELAY}"]
    output = process.run([*argv, "--timer-property=AccuracySec=100ms", "systemctl", "reboot"], _TIMEOUT)
    if output.status != 0:
        raise RolloutError("systemd", f"systemd does not take the order: {output.failure()}", "systemctl list-jobs")


def _answer(words: str, present: str) -> Dict[str, str]:
    return {"did": words, "boot_id": present, "kernel": os.uname().release}


VERSION = 1


def status(root: str = "/") -> Dict[str, Any]:
    """The document, as the package's docstring has it; raises RolloutError where packages cannot be listed."""
    state = packages.state(root)
    earlier = of_this_boot(MARKER, root)
    return {
        "version": VERSION,
        "boot_id": boot_id(root),
        "kernel": os.uname().release,
        "devices": nvidia(root),
        "lock_digest": lock_digest(root),
        "uptime": uptime(root),
        "boot": booting(root),
        "once": once.state(root),
        "packages": state,
        "gpu": gpu.users(root),
        "space": space.free(root),
        "apply": lock.holder(),
        "reboot": {
            "ordered": bool(earlier),
            "rollout": earlier.get("rollout", ""),
            "when": earlier.get("when", ""),
            "blocked": [*_busy(state), *_broken(state), *inhibitors()],
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
