"""The program that registers GPU memory with RDMA adapters; registration.py starts it and never imports it.

For each GPU and adapter it registers memory as programs do, and deregisters it: through peermem (``ibv_reg_mr`` of a
GPU's address) and as DMA-BUF (``ibv_reg_dmabuf_mr`` of an exported descriptor).  Memory of the host comes first: an
adapter that refuses that says nothing about GPUs.

It has no arguments.  Each line of its output is a JSON object with its kind in ``event``, written before the next call
that may not return.  It needs only the standard library and loads libcuda and libibverbs by name.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
from typing import Any, Callable, Dict, List, Tuple

#: Bytes; a multiple of the pages of GPUs (64 KiB) and of every host.
SIZE = 2 << 20
#: verbs.h: IBV_ACCESS_LOCAL_WRITE, _REMOTE_WRITE and _REMOTE_READ.
ACCESS = 1 | 2 | 4
#: cuda.h: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which GPUDirect RDMA asks for, and CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
SYNC_MEMOPS = 6
DMA_BUF_FD = 1
GPUS, ADAPTERS = 64, 64
#: Ways of registration, in their order.
HOST, PEERMEM, DMABUF = "host", "peermem", "dmabuf"


def say(event: str, **words: Any) -> None:
    print(json.dumps({"event": event, **words}), flush=True)


def loaded(name: str) -> Any:
    """The library; ends the program if it can't be loaded."""
    try:
        return ctypes.CDLL(name, use_errno=True)
    except OSError as reason:
        say("not loaded", reason=str(reason))
        raise SystemExit(3) from None


def libibverbs() -> Any:
    verbs = loaded("libibverbs.so.1")
    pointers = "ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_reg_dmabuf_mr"
    for name in pointers:
        if hasattr(verbs, name):
            getattr(verbs, name).restype = ctypes.c_void_p
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    return verbs


def gpus(cuda: Any) -> List[Tuple[str, ctypes.c_void_p]]:
    """(PCI address, primary context) of each GPU; ends the program if CUDA gives none."""
    count = ctypes.c_int()
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        status = getattr(cuda, name)(*arguments)
        if status:
            say("no GPU", call=name, status=status)
            raise SystemExit(4)
    devices: List[Tuple[str, ctypes.c_void_p]] = []
    for number in range(min(count.value, GPUS)):
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(32)
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetPCIBusId(address, 32, device)
        status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        name = address.value.decode().lower()
        if status:
            say("no context", gpu=name, status=status)
        else:
            devices.append((name, context))
    return devices


def domains(verbs: Any) -> List[Tuple[str, ctypes.c_void_p]]:
    """(name, protection domain) of each adapter; the kernel frees them when this program ends."""
    count = ctypes.c_int()
    listed = verbs.ibv_get_device_list(ctypes.byref(count))
    devices = ctypes.cast(listed, ctypes.POINTER(ctypes.c_void_p)) if listed else None
    opened = []
    for number in range(min(count.value, ADAPTERS) if devices else 0):
        device = ctypes.c_void_p(devices[number]) if devices else None
        name = verbs.ibv_get_device_name(device).decode(errors="replace")
        context = verbs.ibv_open_device(device)
        domain = verbs.ibv_alloc_pd(ctypes.c_void_p(context)) if context else None
        if domain:
            opened.append((name, ctypes.c_void_p(domain)))
        else:
            call = "ibv_alloc_pd" if context else "ibv_open_device"
            say("no adapter", adapter=name, call=call, errno=error_name())
    return opened


def error_name() -> str:
    number = ctypes.get_errno()
    return errno.errorcode.get(number, str(number))


def register(verbs: Any, call: Callable[[], Any], **where: Any) -> bool:
    """Register and deregister, and report it."""
    say("begin", **where)
    ctypes.set_errno(0)
    try:
        region = call()
    except AttributeError as missing:
        say("registration", ok=False, call=str(missing).split()[-1], errno="ENOSYS", **where)
        return False
    if not region:
        say("registration", ok=False, errno=error_name(), **where)
        return False
    status = verbs.ibv_dereg_mr(ctypes.c_void_p(region))
    say("registration", ok=True, deregistered=errno.errorcode.get(status, str(status)) if status else "", **where)
    return True


def host_memory(verbs: Any, domain: ctypes.c_void_p, adapter: str) -> bool:
    """Whether the adapter registers memory of the host."""
    with mmap.mmap(-1, SIZE) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(view))
        done = register(
            verbs, lambda: verbs.ibv_reg_mr(domain, address, ctypes.c_size_t(SIZE), ACCESS), adapter=adapter, by=HOST
        )
        # Else the mapping can't be closed.
        del view
        return done


def gpu_memory(cuda: Any, verbs: Any, gpu: Tuple[str, ctypes.c_void_p], adapters: Dict[str, ctypes.c_void_p]) -> None:
    """Register memory of one GPU with every adapter, in both ways."""
    cuda.cuCtxSetCurrent(gpu[1])
    memory, length = ctypes.c_uint64(), ctypes.c_size_t(SIZE)
    status = cuda.cuMemAlloc_v2(ctypes.byref(memory), length)
    if status:
        say("no memory", gpu=gpu[0], status=status)
        return
    one = ctypes.c_uint(1)
    cuda.cuPointerSetAttribute(ctypes.byref(one), SYNC_MEMOPS, memory)
    exported, status = export(cuda, memory, length)
    say("export", gpu=gpu[0], status=status)
    for adapter, domain in adapters.items():
        where = {"gpu": gpu[0], "adapter": adapter}
        address = ctypes.c_void_p(memory.value)
        register(verbs, lambda: verbs.ibv_reg_mr(domain, address, length, ACCESS), by=PEERMEM, **where)  # noqa: B023
        if exported >= 0:
            arguments = (domain, ctypes.c_uint64(0), length, memory, exported, ACCESS)
            register(verbs, lambda: verbs.ibv_reg_dmabuf_mr(*arguments), by=DMABUF, **where)  # noqa: B023
    if exported >= 0:
        os.close(exported)
    cuda.cuMemFree_v2(memory)


def export(cuda: Any, memory: ctypes.c_uint64, length: ctypes.c_size_t) -> Tuple[int, int]:
    """(descriptor of the memory as DMA-BUF or -1, CUDA's status; -1: libcuda is too old)."""
    descriptor = ctypes.c_int(-1)
    if not hasattr(cuda, "cuMemGetHandleForAddressRange"):
        return -1, -1
    status = cuda.cuMemGetHandleForAddressRange(
        ctypes.byref(descriptor), memory, length, DMA_BUF_FD, ctypes.c_uint64(0)
    )
    return (-1, status) if status else (descriptor.value, 0)


def main() -> None:
    # A core file would contain all that the libraries map, and a GPU's memory is large.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    say("start")
    cuda, verbs = loaded("libcuda.so.1"), libibverbs()
    devices = gpus(cuda)
    say("gpus", gpus=[address for address, _ in devices])
    adapters = dict(domains(verbs))
    say("adapters", adapters=list(adapters))
    usable = {name: domain for name, domain in adapters.items() if host_memory(verbs, domain, name)}
    for gpu in devices:
        gpu_memory(cuda, verbs, gpu, usable)
    say("end")
    # Threads of libcuda may outlive this function.
    os._exit(0)


if __name__ == "__main__":
    main()
