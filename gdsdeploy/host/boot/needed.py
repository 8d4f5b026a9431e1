"""What a reboot would change: the kernel that runs and the modules that are loaded, against what is installed."""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, List, Optional

from .. import process
from ..kmod import modprobe
from ..kmod.module import BUILD_ID, build_id_of, read_module

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
    """Whether a reboot is needed to reach the installed state, why, and the id of this boot."""

    needed: bool
    #: the texts of ``causes``
    reasons: List[str]
    causes: List[Cause]
    boot_id: str
    running: str
    #: modules that aren't loaded although the expected kernel runs
    unloaded: List[str]


def pending(kernel: str, modules: List[str]) -> Pending:
    """Compare this running host with kernel release ``kernel`` and the files modprobe would load for ``modules``."""
    running = os.uname().release
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if running != kernel:
        causes = [Cause(KERNEL, running, f"the running kernel is {running}, not {kernel}")]
    else:
        causes = list(filter(None, map(_module, modules)))
    unloaded = [cause.subject for cause in causes if cause.id == UNLOADED]
    return Pending(bool(causes), [cause.text for cause in causes], causes, boot_id, running, unloaded)


def _module(name: str) -> Optional[Cause]:
    """Why the loaded module isn't the installed one; None if it is."""
    loaded = _folder_of(name)
    if not loaded.is_dir():
        return Cause(UNLOADED, name, f"the module {name} is not loaded")
    file = file_of(name)
    if not file:
        return Cause(NO_FILE, name, f"modprobe finds no file for the module {name}")
    # srcversion doesn't change with the driver that a module was built against.
    note = loaded / "notes" / BUILD_ID
    if note.exists() and build_id_of(note.read_bytes().hex()) != read_module(file).build_id:
        return Cause(MODULE, name, f"the loaded module {name} is not the one in {file}")
    return None


def _folder_of(name: str) -> Path:
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
    parser = subparsers.add_parser("needed", help="print whether a reboot is needed to reach the installed state")
    parser.add_argument("--kernel", required=True, metavar="RELEASE", help="the expected kernel")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "modules that should be loaded from their installed files"
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=text)
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    result = pending(arguments.kernel, arguments.modules)
    text = "; ".join(result.reasons) or "no reboot is needed"
    print(json.dumps(asdict(result), sort_keys=True) if arguments.json else text)
    return 0
