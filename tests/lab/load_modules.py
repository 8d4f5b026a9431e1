"""Runs on the VM host as root: load each module.  Prints file → {"errno", "kernel": [line, …]}."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

#: x86_64
FINIT_MODULE = 313


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def load(path: Path) -> int:
    """The errno of loading the module in ``path``; 0: it was loaded and unloaded again."""
    library = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        if library.syscall(FINIT_MODULE, file.fileno(), b"", 0):
            return ctypes.get_errno()
    # udev opens its device files as they appear, and an open module can't be unloaded.
    output("udevadm", "settle")
    output("rmmod", output("modinfo", "-F", "name", str(path)).strip())
    return 0


def main() -> None:
    """Try every file in the arguments."""
    results = {}
    for path in map(Path, sys.argv[1:]):
        before = len(output("dmesg", "--notime").splitlines())
        number = load(path)
        results[path.name] = {"errno": number, "kernel": output("dmesg", "--notime").splitlines()[before:]}
    sys.stdout.write(json.dumps(results))


main()
