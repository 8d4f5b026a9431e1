"""Which kernel boots: read it, or make one the lasting default, by grub.cfg, ``bls.py`` or ``sdboot.py``."""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import Any, Dict, List, Optional

from .. import process
from ..errors import HostError, guarded
from ..io import atomic
from ..io.wording import line
from ..rootdir import inside, read_text
from . import bls, sdboot
from .bls import RECORD, MenuEntry, earlier, environment, menu_choice, menu_entries, of_this_system, remember

GRUB_CFG = "/boot/grub/grub.cfg"
GRUB_ENV = "/boot/grub/grubenv"
DEFAULTS = "/etc/default/grub.d/gdsdeploy.cfg"
_DEFAULTS_TEXT = "# Written by gdsdeploy: the kernel to boot is kept in /boot/grub/grubenv.\nGRUB_DEFAULT=saved\n"
#: In grub.cfg, of GRUB_DEFAULT=saved.
_SAVED = "${saved_entry}"
_TIMEOUT = 600.0


class BootError(HostError):
    """GRUB is missing, has no entry for the kernel, or refuses a change."""


def default_kernel(root: str = "/") -> Dict[str, str]:
    """What boots by default and what boots next, as ``{"default", "default_entry", "next", "next_entry"}``.

    A release is empty where the entry is unknown or doesn't start Linux.  Raises BootError without a grub.cfg.
    """
    if (other := _other(root)) is not None:
        kernels: Dict[str, str] = other.default_kernel(root)
        return kernels
    text = _config(root)
    menu = menu_entries(text)
    env = environment(read_text(root, GRUB_ENV))
    choices = re.findall(r'^\s*set default="([^"]*)"', text, re.MULTILINE)
    fixed = next((choice for choice in reversed(choices) if choice != "${next_entry}"), "0")
    choice = env.get("saved_entry", "0") if fixed == _SAVED else fixed
    # GRUB takes the first entry if the choice matches none.
    default = menu_choice(menu, choice) or (menu[0] if menu else None)
    once = menu_choice(menu, env["next_entry"]) if env.get("next_entry") else None
    following = once or default
    return {
        "default": default.release if default else "",
        "default_entry": default.path if default else "",
        "next": following.release if following else "",
        "next_entry": following.path if following else "",
    }


def set_default(release: str, check: bool = False, root: str = "/") -> Dict[str, Any]:
    """Make the kernel ``release`` the default until changed again; idempotent.

    Returns ``{"changed", "changes": [text], "kernel", "entry"}``.  Raises BootError, and then nothing has changed, if
    GRUB has no entry for it.
    """
    if (other := _other(root)) is not None:
        done: Dict[str, Any] = other.set_default(release, check, root)
        return done
    if _is_left_out(release, root):
        if check:
            return {"changed": True, "changes": [f"{GRUB_CFG} (update-grub)"], "kernel": release, "entry": ""}
        _only_here(root)
        _run(["update-grub"])
    entry = chosen(release, root) or _entry_of(release, root)
    now = _saved(root)
    changes = []
    if read_text(root, DEFAULTS) != _DEFAULTS_TEXT:
        changes.append(f"{DEFAULTS} (GRUB_DEFAULT=saved)")
    if not _takes_saved(root):
        changes.append(f"{GRUB_CFG} (update-grub)")
    if menu_choice([entry], now) is None:
        changes.append(f"{GRUB_ENV} (saved_entry={entry.path})")
    if changes and not check:
        _only_here(root)
        remember(now, entry.path, root)
        # The entry first: with it stored, a failure below leaves a machine that boots as before.
        _run(["grub-set-default", entry.path])
        atomic.sweep(inside(root, DEFAULTS))
        atomic.write(inside(root, DEFAULTS), _DEFAULTS_TEXT)
        _run(["update-grub"])
        now = default_kernel(root)["default"]
        if now != release:
            message = f"GRUB still boots {now or 'something unknown'} by default after it was set to boot {release}"
            raise BootError(message, "look for another GRUB_DEFAULT in /etc/default/grub.d")
    return {"changed": bool(changes), "changes": changes, "kernel": release, "entry": entry.path}


def clear_default(check: bool = False, root: str = "/") -> Dict[str, Any]:
    """Undo :func:`set_default`; returns the same shape, with the kernel that boots by default then.

    What was the default before is so again, unless another has been set since.
    """
    if (other := _other(root)) is not None:
        done: Dict[str, Any] = other.clear_default(check, root)
        return done
    changes = []
    before = earlier(_saved(root), root)
    if before is not None:
        changes.append(f"{GRUB_ENV} (saved_entry={before})")
    if os.path.lexists(inside(root, DEFAULTS)):
        changes.append(f"{DEFAULTS} (removed)")
    # The record goes last: while it is there, grub.cfg may still be ours.
    elif os.path.lexists(inside(root, RECORD)):
        changes.append(f"{GRUB_CFG} (update-grub)")
    if not changes and not os.path.lexists(inside(root, GRUB_CFG)):
        # A builder or a container has no menu.
        return {"changed": False, "changes": [], "kernel": "", "entry": ""}
    if changes and not check:
        _only_here(root)
        if before is not None:
            # Without an entry, grub-set-default would store one that is empty.
            words = ["set", f"saved_entry={before}"] if before else ["unset", "saved_entry"]
            _run(["grub-editenv", GRUB_ENV, *words])
        atomic.sweep(inside(root, DEFAULTS))
        atomic.remove(inside(root, DEFAULTS))
        _run(["update-grub"])
        atomic.remove(inside(root, RECORD))
    now = default_kernel(root)
    return {"changed": bool(changes), "changes": changes, "kernel": now["default"], "entry": now["default_entry"]}


def entry_of(release: str, root: str = "/") -> str:
    """The boot loader's name of the entry that boots kernel ``release``; raises HostError when there is none."""
    other = _other(root)
    return _entry_of(release, root).path if other is None else other.entry_of(release, root).ident


def _other(root: str) -> Any:
    """The module for a menu that isn't in grub.cfg; None: it is."""
    return sdboot if sdboot.present(root) else bls if bls.present(root) else None


def add_parsers(subparsers: Any) -> None:
    """Add ``default``, ``clear`` and ``show`` to the subparsers of ``boot``."""
    parser = _add(subparsers, "default", _default, "make a kernel the default until changed again")
    parser.add_argument("--kernel", required=True, metavar="REL", help="kernel release")
    parser.add_argument("--check", action="store_true", help="print what would change and change nothing")
    parser = _add(subparsers, "clear", _clear, "leave the choice of the kernel to GRUB's own configuration again")
    parser.add_argument("--check", action="store_true", help="print what would change and change nothing")
    parser = _add(subparsers, "show", _show, "print which kernel boots by default and which boots next")
    parser.add_argument("--root", default="/", metavar="DIR", help="a root folder; it needn't be running")


def _add(subparsers: Any, name: str, run: Any, text: str) -> Any:
    parser = subparsers.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=guarded(run))
    return parser


def _default(arguments: argparse.Namespace) -> int:
    return _print_changes(arguments, set_default(arguments.kernel, check=arguments.check))


def _clear(arguments: argparse.Namespace) -> int:
    return _print_changes(arguments, clear_default(check=arguments.check))


def _show(arguments: argparse.Namespace) -> int:
    value = default_kernel(arguments.root)
    if arguments.json:
        print(json.dumps(value, indent=2, sort_keys=True))
    else:
        for key in ("default", "next"):
            print(line(f"{key}: {value[key] or 'no Linux kernel'} ({value[key + '_entry'] or 'no entry'})"))
    return 0


def _print_changes(arguments: argparse.Namespace, result: Dict[str, Any]) -> int:
    if arguments.json:
        print(json.dumps(result, indent=2, sort_keys=True))
    else:
        for change in result["changes"]:
            print("would change" if arguments.check else "changed", change)
        print(line(f"default: {result['kernel']} ({result['entry']})"))
    return 0


def _config(root: str) -> str:
    text = read_text(root, GRUB_CFG)
    if not text:
        hint = "this host doesn't boot through GRUB, or it needs update-grub, or root"
        raise BootError(f"{os.path.join(root, GRUB_CFG.lstrip('/'))} is missing or can't be read", hint)
    return text


def chosen(release: str, root: str = "/") -> Optional[MenuEntry]:
    """The entry that is saved as the default and brings up this system with kernel ``release``: it stays.

    None also for one that moves with the next kernel: a number, or the topmost entry that update-grub makes.
    """
    menu = menu_entries(_config(root))
    entry = menu_choice(menu, _saved(root)) if _takes_saved(root) else None
    if entry is None or entry not in _entries(menu, release) or re.fullmatch(r"[\d>]+", _saved(root)):
        return None
    return None if entry.is_made and release not in entry.path else entry


def _saved(root: str) -> str:
    return environment(read_text(root, GRUB_ENV)).get("saved_entry", "")


def _takes_saved(root: str) -> bool:
    return f'set default="{_SAVED}"' in _config(root)


def _entries(menu: List[MenuEntry], release: str) -> List[MenuEntry]:
    """Those that bring up this system with kernel ``release``."""
    own = [entry.words for entry in menu if entry.is_made]
    listed = [entry for entry in menu if entry.release == release and not entry.recovery]
    return [entry for entry in listed if of_this_system(entry.words, own)]


def _entry_of(release: str, root: str) -> MenuEntry:
    menu = menu_entries(_config(root))
    matching = _entries(menu, release)
    if not matching:
        listed = ", ".join(sorted({entry.release for entry in menu if entry.release})) or "none"
        hint = f"install linux-image-{release}, then run update-grub"
        raise BootError(f"GRUB has no entry for kernel {release}; it has: {listed}", hint)
    # The id of the topmost entry, which starts the newest kernel, has no release.
    return min(matching, key=lambda entry: (not entry.is_made, release not in entry.path.split(">")[-1]))


def _is_left_out(release: str, root: str) -> bool:
    """Whether the kernel is there and has no entry: packages of kernels make none in what they take for a container.

    That is any namespace of processes, also one in which an image is provisioned.
    """
    listed = any(entry.release == release for entry in menu_entries(_config(root)))
    return not listed and os.path.lexists(inside(root, f"/boot/vmlinuz-{release}"))


def _only_here(root: str) -> None:
    if root != "/":
        raise BootError(f"GRUB can be changed on the running system only, not below {root}")


def _run(argv: List[str]) -> None:
    done = process.run(argv, _TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise BootError(f"{argv[0]} failed: {lines[-1]}", "the kernel that boots by default is as before")
