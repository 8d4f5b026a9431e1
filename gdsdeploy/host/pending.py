"""What a reboot would change: the kernel that runs and the modules that are loaded, against what is installed."""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, List

from . import modprobe, process
from .kmod.module import BUILD_ID, read_module


@dataclass(frozen=True)
class Pending:
    """Whether a reboot is needed to reach the installed state, why, and which boot this is."""

    needed: bool
    reasons: List[str]
    boot_id: str
    running: str
    #: modules that are not loaded although the kernel that should run does
    unloaded: List[str]


def pending(kernel: str, modules: List[str]) -> Pending:
    """Compare this running host with kernel release ``kernel`` and the files modprobe would load for ``modules``."""
    running = os.uname().release
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    reasons = []  # type: List[str]
    unloaded = []  # type: List[str]
    if running != kernel:
        reasons.append("the running kernel is {}, not {}".format(running, kernel))
    else:
        for name in modules:
            reason = _module(name)
            if reason:
                reasons.append(reason)
            if not _loaded(name).is_dir():
                unloaded.append(name)
    return Pending(needed=bool(reasons), reasons=reasons, boot_id=boot_id, running=running, unloaded=unloaded)


def _module(name: str) -> str:
    """Why the loaded module is not the installed one; empty when it is."""
    loaded = _loaded(name)
    if not loaded.is_dir():
        return "the module {} is not loaded".format(name)
    file = file_of(name)
    if not file:
        return "modprobe finds no file for the module {}".format(name)
    # srcversion would not do: it does not change with the driver that a module was built against.
    note = loaded / "notes" / BUILD_ID
    if note.exists() and note.read_bytes().hex() != read_module(file).build_id:
        return "the loaded module {} is not the one in {}".format(name, file)
    return ""


def _loaded(name: str) -> Path:
    return Path("/sys/module") / name.replace("-", "_")


def file_of(name: str) -> str:
    """The file that modprobe would load for ``name``, as the load at boot would; empty when there is none."""
    shown = process.run(["modprobe", "--show-depends", name], timeout=30).stdout
    other = modprobe.replacement(shown)
    if other:
        shown = process.run(["modprobe", "--show-depends", "--ignore-install", other], timeout=30).stdout
    files = modprobe.files_of(shown)
    return files[-1] if files else ""


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
