"""What a reboot would change: the kernel that runs and the modules that are loaded, against what is installed."""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, List, Optional

from .. import process
from ..kmod import modprobe
from ..kmod.module import BUILD_ID, read_module

#: Ids of causes: another kernel runs; a module isn't loaded, has no file, or is loaded from another file.
KERNEL, UNLOADED, NO_FILE, MODULE = "kernel", "not-loaded", "no-file", "module"


@dataclass(frozen=True)
class Cause:
    """Why a reboot is needed; ``subject`` is the running kernel or the module."""

    id: str
    subject: str
    text: str


@dataclass(frozen=True)
class Pending:
    """Whether a reboot is needed to reach the installed state, why, and which boot this is."""

    needed: bool
    #: the texts of ``causes``
    reasons: List[str]
    causes: List[Cause]
    boot_id: str
    running: str
    #: modules that are not loaded although the kernel that should run does
    unloaded: List[str]


def pending(kernel: str, modules: List[str]) -> Pending:
    """Compare this running host with kernel release ``kernel`` and the files modprobe would load for ``modules``."""
    running = os.uname().release
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    causes: List[Cause] = []
    unloaded: List[str] = []
    if running != kernel:
        causes.append(Cause(KERNEL, running, f"the running kernel is {running}, not {kernel}"))
    else:
        found = [_module(name) for name in modules]
        causes = [cause for cause in found if cause is not None]
        unloaded = [name for name in modules if not _loaded(name).is_dir()]
    return Pending(bool(causes), [cause.text for cause in causes], causes, boot_id, running, unloaded)


def _module(name: str) -> Optional[Cause]:
    """Why the loaded module is not the installed one; None when it is."""
    loaded = _loaded(name)
    if not loaded.is_dir():
        return Cause(UNLOADED, name, f"the module {name} is not loaded")
    file = file_of(name)
    if not file:
        return Cause(NO_FILE, name, f"modprobe finds no file for the module {name}")
    # srcversion would not do: it does not change with the driver that a module was built against.
    note = loaded / "notes" / BUILD_ID
    if note.exists() and note.read_bytes().hex() != read_module(file).build_id:
        return Cause(MODULE, name, f"the loaded module {name} is not the one in {file}")
    return None


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
