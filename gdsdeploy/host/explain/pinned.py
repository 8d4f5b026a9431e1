"""How much GPU memory nvidia-fs has pinned, beside the room in BAR1: beyond that, registering a buffer fails."""

from __future__ import annotations

import re
from typing import Iterator

from ..facts import HostFacts
from ..facts.pci import bar1, find
from ..facts.storage import Mount
from ..paths import NVFS
from . import shared
from .cause import Cause
from .rules import NOTES, rule

STATS = NVFS + "/stats"
#: A GPU's row, whose last number is the most that was ever pinned on it (nvfs-stat.c).
_GPU = re.compile(r"^GPU (?P<address>[0-9a-fA-F:.]+)\s.*max_pinned_MiB=(?P<most>\d{1,9})", re.M)
#: A share of BAR1 that comes close to all of it: the driver needs some itself.
NEARLY = 0.9


@rule(NOTES, 45)
def notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    """GPUs on which nearly all of BAR1 was pinned at some time since nvidia-fs was loaded."""
    text, functions = facts.document.text(STATS), facts.pci.functions
    if not isinstance(text, str) or not isinstance(functions, tuple):
        return
    for row in _GPU.finditer(text):
        gpu = find(functions, row["address"].lower())
        size = bar1(gpu) if gpu is not None else None
        if size and int(row["most"]) << 20 >= NEARLY * size:
            what = f"up to {row['most']} MiB of the GPU {row['address']} were pinned, and BAR1 has {size >> 20} MiB"
            what += ": larger or more buffers can't be registered"
            yield shared.cause("gpu.pinned-budget", (f"{STATS}: {row[0]}"[:200],), what)
