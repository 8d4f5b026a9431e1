"""Proves GPUDirect RDMA: memory of each GPU is registered with each adapter, and deregistered (rdma_child.py).

The program runs for itself: a driver may crash it, or never return.  ``facts/rdma.py`` judges its record.
"""

from __future__ import annotations

from typing import Any, Callable

from ..paths import REGISTRATION
from ..process import PYTHON
from .proof import source

#: Seconds: CUDA alone may take several to start; a registration takes milliseconds.
TIMEOUT = 30.0


def register(command: Callable[..., Any], timeout: float = TIMEOUT) -> None:
    """Try every GPU with every adapter through ``command`` (Recorder.command)."""
    command(REGISTRATION, [*PYTHON, "-c", source("rdma_child.py")], timeout=timeout)
