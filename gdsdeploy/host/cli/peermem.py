"""``gdsdeploy-host.pyz peermem load|unload``: what gds-peermem.service runs.

It refuses a stub before loading it, unloads the predecessor (nv_peer_mem), and checks that the module registered with
the RDMA core.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from typing import Callable, List

from .. import process
from ..boot.needed import file_of
from ..errors import HostError
from ..kmod.module import in_kernel, read_module
from ..paths import HOLDERS, PEERS
from .parsers import PROGRAM, show

MODULE, LEGACY = "nvidia-peermem", "nv_peer_mem"
REGISTER = "ib_register_peer_memory_client"
#: Beginning of the names of its clients: nv_mem, and nv_mem_nc with persistent_api_support=0.
CLIENT = "nv_mem"
#: Seconds for modprobe, which may have to load the driver.
PATIENCE = 120.0


class PeermemError(Exception):
    """It cannot be loaded or unloaded; the message says why and what to do."""


@dataclass(frozen=True)
class Done:
    """What was done, and what is now."""

    changed: bool
    words: str


def load(root: str = "/") -> Done:
    """Load nvidia-peermem and make sure that it is a client of the RDMA core.  Raises PeermemError.

    root: where /sys is looked for.
    """
    legacy = _loaded(LEGACY, root)
    if legacy:
        _run(["rmmod", LEGACY], f"{LEGACY} is loaded, in whose place {MODULE} comes")
    if _loaded(MODULE, root):
        return Done(legacy, f"nvidia-peermem is loaded already, and {_registered(root)}")
    refuse_stub(file_of(MODULE))
    _run(["modprobe", MODULE], "nvidia-peermem cannot be loaded")
    try:
        words = _registered(root)
    except PeermemError:
        # Loaded and of no use, it would only keep the RDMA core from being unloaded.
        process.run(["rmmod", in_kernel(MODULE)], timeout=PATIENCE)
        raise
    return Done(True, f"nvidia-peermem is loaded, and {words}")


def unload(root: str = "/") -> Done:
    """Unload it, so that the RDMA core below it can be.  Raises PeermemError, e.g. while a program uses it."""
    if not _loaded(MODULE, root):
        return Done(False, "nvidia-peermem is not loaded")
    # By its in-kernel name: the file has another one where the driver's packages choose among several.
    _run(["rmmod", in_kernel(MODULE)], "nvidia-peermem cannot be unloaded")
    return Done(True, "nvidia-peermem is unloaded")


def refuse_stub(path: str) -> None:
    """Raise PeermemError unless the module file at ``path`` registers with an RDMA core."""
    if not path:
        raise PeermemError(f"there is no nvidia-peermem for kernel {os.uname().release}: provision this host")
    try:
        module = read_module(path)
    except (HostError, OSError) as error:
        raise PeermemError(f"{path} cannot be read: {error}") from None
    if REGISTER not in module.imports:
        raise PeermemError(
            f"{path} is a stub, built without OFED's peer memory symbols; the kernel would refuse it"
            " ('Invalid argument'). Install MLNX_OFED or DOCA first and build the driver after it,"
            " or use DMA-BUF (rdma: dmabuf)"
        )


def _registered(root: str) -> str:
    """How it is known that it is registered; raises PeermemError where it is not."""
    try:
        clients = sorted(os.listdir(os.path.join(root, PEERS.lstrip("/"))))
    except FileNotFoundError:
        # Some kernels show no such folder; from its successful start on the module holds the core.
        if any(os.path.isdir(os.path.join(root, path.lstrip("/"), in_kernel(MODULE))) for path in HOLDERS):
            return f"holds the RDMA core; this kernel shows no {PEERS}, so its registration is not proven"
        raise PeermemError("nvidia-peermem is loaded, but does not hold the RDMA core") from None
    if any(name.startswith(CLIENT) for name in clients):
        return "registered with the RDMA core"
    names = ", ".join(clients) or "no client"
    raise PeermemError(f"nvidia-peermem is loaded, but {PEERS} has {names}: the RDMA core took no client")


def _loaded(name: str, root: str) -> bool:
    return os.path.isdir(os.path.join(root, "sys/module", in_kernel(name)))


def _run(argv: List[str], words: str) -> None:
    output = process.run(argv, timeout=PATIENCE)
    if output.status != 0:
        raise PeermemError(f"{words}: {' '.join(argv)}: {output.failure()}")


PEERMEM = PROGRAM.group("peermem", "load and unload nvidia-peermem, as gds-peermem.service does")


@PEERMEM.command("load", "load it unless it is a stub, and make sure that it registered with the RDMA core")
def _load(arguments: argparse.Namespace) -> int:
    return run(arguments, load)


@PEERMEM.command("unload", "unload it, before the RDMA core is unloaded")
def _unload(arguments: argparse.Namespace) -> int:
    return run(arguments, unload)


def run(arguments: argparse.Namespace, action: Callable[[], Done]) -> int:
    """Exit status: 0 done; 30 it cannot be done."""
    try:
        done = action()
    except PeermemError as error:
        print(json.dumps({"error": str(error)}) if arguments.json else f"gdsdeploy-host: {error}")
        return 30
    return show(arguments, asdict(done), [done.words])
