"""What the check of a cufile.json looks at on the machine that it runs on, and how it reads the file itself."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from gdsdeploy.cufile.check import Machine
from gdsdeploy.cufile.verdict import What
from gdsdeploy.host.io import reading

#: A cufile.json with every key is under 10 kB; what is longer than this is something else.
MAX_BYTES = 1 << 20
#: The kernel symbol that libcufile itself looks for.
_P2PDMA_SYMBOL = " pci_p2pdma_add_resource\n"


def this_machine() -> Machine:
    """The machine that this runs on; its paths are looked at when they are asked for."""
    return Machine(look, p2pdma())


def look(path: str) -> What:
    """What lies under a path, as stat(2) says it."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path of a file may hold what pathlib would tidy up
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "block" if stat.S_ISBLK(mode) else "other"


def p2pdma(boot: Path = Path("/boot"), symbols: Path = Path("/proc/kallsyms")) -> bool | None:
    """Whether the running kernel has PCI peer-to-peer DMA, by its configuration or its symbols; None: not known."""
    try:
        config = (boot / f"config-{os.uname().release}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    else:
        return "\nCONFIG_PCI_P2PDMA=y\n" in config
    try:
        listed = symbols.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _P2PDMA_SYMBOL in listed if listed else None


def content(file: str) -> bytes:
    """The content of a file, or of standard input for ``-``; raises OSError, also for what is far too long."""
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else reading.beginning(file, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise OSError(0, f"longer than {MAX_BYTES // 2**20} MiB, which no configuration is")
    return data
