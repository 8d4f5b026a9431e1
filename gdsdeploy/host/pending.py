"""What a reboot would change: the kernel that runs and the modules that are loaded, against what is installed."""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, List

from . import process


@dataclass(frozen=True)
class Pending:
    """Whether a reboot is needed to reach the installed state, why, and which boot this is."""

    needed: bool
    reasons: List[str]
    boot_id: str
    running: str


def pending(kernel: str, modules: List[str]) -> Pending:
    """Compare this running host with kernel release ``kernel`` and the files modprobe would load for ``modules``."""
    running = os.uname().release
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    reasons = []  # type: List[str]
    if running != kernel:
        reasons.append("the running kernel is {}, not {}".format(running, kernel))
    else:
        for name in modules:
            reason = _module(name)
            if reason:
                reasons.append(reason)
    return Pending(needed=bool(reasons), reasons=reasons, boot_id=boot_id, running=running)


def _module(name: str) -> str:
    """Why the loaded module is not the installed one; empty when it is."""
    loaded = Path("/sys/module") / name.replace("-", "_") / "srcversion"
    if not loaded.parent.is_dir():
        return "the module {} is not loaded".format(name)
    have = loaded.read_text().strip() if loaded.exists() else ""
    # "modprobe --show-depends" resolves aliases and install commands, as the load at boot would; its last line
    # is the module itself, or an install command that names it.
    shown = process.run(["modprobe", "--show-depends", name], timeout=30)
    target = name
    for line in shown.stdout.splitlines():
        words = line.split()
        if words[:1] == ["install"] and words[1:]:
            target = [word for word in words if not word.startswith("-") and "=" not in word][-1]
    if target != name:
        shown = process.run(["modprobe", "--show-depends", "--ignore-install", target], timeout=30)
    files = [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("insmod ")]
    if not files:
        return "modprobe finds no file for the module {}".format(name)
    want = process.run(["modinfo", "-F", "srcversion", files[-1]], timeout=30).stdout.strip()
    if have and want and have != want:
        return "the loaded module {} is not the one in {}".format(name, files[-1])
    return ""


def add_parser(subparsers: Any) -> None:
    """Add ``needed`` to the parsers of ``boot``."""
    parser = subparsers.add_parser("needed", help="say whether a reboot is needed to reach the installed state")
    parser.add_argument("--kernel", required=True, metavar="RELEASE", help="kernel that should run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="modules that should be loaded from their installed files"
    )
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    found = pending(arguments.kernel, arguments.modules)
    if arguments.json:
        print(json.dumps(asdict(found), sort_keys=True))
    else:
        print("; ".join(found.reasons) or "no reboot is needed")
    return 0
