"""The machine that a cufile.json is checked on: its paths and its kernel; and how the file itself is read."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from gdsdeploy.cufile.check import MachineFacts, What
from gdsdeploy.host.io import reading

#: A cufile.json with every key is under 10 kB; a longer file is something else.
MAX_BYTES = 1 << 20
#: The kernel symbol that libcufile itself looks for.
_P2PDMA_SYMBOL = " pci_p2pdma_add_resource\n"


def this_machine() -> MachineFacts:
    """The machine that this runs on; paths are examined on demand."""
    return MachineFacts(look, p2pdma())


def look(path: str) -> What:
    """The kind of a path, from stat(2)."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - pathlib would normalise the path
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "block" if stat.S_ISBLK(mode) else "other"


def p2pdma(boot: Path = Path("/boot"), symbols: Path = Path("/proc/kallsyms")) -> bool | None:
    """Whether the running kernel has PCI peer-to-peer DMA, by its configuration or its symbols; None: unknown."""
    with contextlib.suppress(OSError):
        config = (boot / f"config-{os.uname().release}").read_text(encoding="utf-8", errors="replace")
        return "\nCONFIG_PCI_P2PDMA=y\n" in config
    with contextlib.suppress(OSError):
        listed = symbols.read_text(encoding="utf-8", errors="replace")
        return _P2PDMA_SYMBOL in listed if listed else None
    return None


def content(file: str) -> bytes:
    """The content of a file, or of standard input for ``-``; raises OSError, also if it's far too long."""
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else reading.beginning(file, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise OSError(0, f"longer than {MAX_BYTES // 2**20} MiB, so it isn't a configuration")
    return data
