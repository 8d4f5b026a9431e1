"""The program that does what a crash or a hang of a library may end; subjects/proof.py starts it, and never imports it.

Each line of its output is a JSON object with its kind in ``event``, written before the next call that may not return.
It needs only the standard library and loads the libraries by name.

With an argument it reads and writes through cuFile, for each mount and GPU.  The argument is a JSON object:
``libraries`` (names or paths of libcufile), ``mounts`` (folder → id of its mount, or empty), ``stats`` (the counters of
nvidia-fs), ``log`` (libcufile's log file), ``name`` (of the scratch file).  Nothing stays behind.
Its scratch file loses its name after it is registered: libcufile then opens it again by name, and returns 5031 if it
has none (seen in 1.15.1 and 1.20.0).  If that call doesn't return, proof.py removes the file.

Without an argument it registers GPU memory with RDMA adapters.  For each GPU and adapter it registers memory as
programs do, and deregisters it: through peermem (``ibv_reg_mr`` of a GPU's address) and as DMA-BUF
(``ibv_reg_dmabuf_mr`` of an exported descriptor).  Memory of the host comes first: an adapter that refuses that says
nothing about GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import re
import resource
import secrets
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

SIZE = 1 << 20
#: cufile.h: CU_FILE_HANDLE_TYPE_OPAQUE_FD.
OPAQUE_FD = 1
#: linux/sched.h
CLONE_NEWIPC = 0x08000000
#: GPUs, and adapters, that are tried.
MOST = 64
#: Log lines about the path of one piece of I/O, at level TRACE, in 1.15 to 1.20.
PATH_LINES = re.compile(
    r"\] (ERROR|WARN) |Compatibility Mode:|IO mode:|Updating stats|use p2p mode|P2P Support|posix path taken"
)
LINES = 40
#: In this order: the read verifies what was written without cuFile, and the write replaces it.
OPERATIONS = ("read", "write")
#: Bytes that are registered; a multiple of the pages of GPUs (64 KiB) and of every host.
MEMORY = 2 << 20
#: verbs.h: IBV_ACCESS_LOCAL_WRITE, _REMOTE_WRITE and _REMOTE_READ.
ACCESS = 1 | 2 | 4
#: cuda.h: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which GPUDirect RDMA asks for, and CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
SYNC_MEMOPS = 6
DMA_BUF_FD = 1
#: Ways of registration, in their order.
HOST, PEERMEM, DMABUF = "host", "peermem", "dmabuf"


class Status(ctypes.Structure):
    """CUfileError_t"""

    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]

    def words(self) -> List[int]:
        return [self.err, self.cu_err]


class Description(ctypes.Structure):
    """CUfileDescr_t; of its union only the file descriptor is used."""

    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_ssize_t), ("operations", ctypes.c_void_p)]


def say(event: str, **words: Any) -> None:
    print(json.dumps({"event": event, **words}), flush=True)


def loaded(names: List[str]) -> Any:
    """The first library that can be loaded; ends the program if none can."""
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError as reason:
            reasons.append(str(reason))
    say("not loaded", reason="; ".join(reasons))
    raise SystemExit(3)


def gpus(cuda: Any) -> List[Tuple[str, ctypes.c_void_p]]:
    """(PCI address, primary context) of each GPU; ends the program if CUDA gives none."""
    devices: List[Tuple[str, ctypes.c_void_p]] = []
    count = ctypes.c_int()
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        status = getattr(cuda, name)(*arguments)
        if status:
            say("no GPU", call=name, status=cuda_error(cuda, status))
            raise SystemExit(4)
    for number in range(min(count.value, MOST)):
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(32)
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetPCIBusId(address, 32, device)
        status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if status:
            say("no context", gpu=address.value.decode().lower(), status=cuda_error(cuda, status))
        else:
            devices.append((address.value.decode().lower(), context))
    return devices


def cuda_error(cuda: Any, status: int) -> str:
    """An error of CUDA by its number, and its name where libcuda has one."""
    name = ctypes.c_char_p()
    if hasattr(cuda, "cuGetErrorName"):
        cuda.cuGetErrorName(status, ctypes.byref(name))
    return f"{status} ({name.value.decode()})" if name.value else str(status)


def scratch(path: str) -> Tuple[int, bool]:
    """(descriptor of a new file, whether it is open for direct I/O)"""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        # Some filesystems create the file before they fail.
        if error.errno != errno.EINVAL:
            raise
        remove(path)
        return os.open(path, flags, 0o600), False


def remove(path: str) -> None:
    # Nothing that happens to one mount may end the tries on the others.
    with contextlib.suppress(OSError):
        os.unlink(path)


def require_mount(fd: int, ident: str) -> None:
    """Raise OSError where a file lies on another mount than the one with this id, as where that was covered."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        if ident and f"mnt_id:\t{ident}\n" not in file.readlines():
            raise OSError(errno.EXDEV, "another mount is there now")


def fill(fd: int, direct: bool, data: bytes) -> None:
    if direct:
        with mmap.mmap(-1, len(data)) as memory:
            memory[:] = data
            done = os.pwrite(fd, memory, 0)
    else:
        done = os.pwrite(fd, data, 0)
    if done < len(data):
        # The filesystem filled up within it.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65536)
    except OSError as error:
        return f"error: {error.strerror}"


def logged(path: str, begin: int) -> List[str]:
    try:
        with open(path, errors="replace") as file:
            file.seek(begin)
            return [line.strip() for line in file if PATH_LINES.search(line)][-LINES:]
    except OSError:
        return []


def pair(request: Dict[str, Any], cuda: Any, cufile: Any, folder: str, gpu: Tuple[str, ctypes.c_void_p]) -> None:
    """One read and one write between a file in ``folder`` and memory of one GPU."""
    record: Dict[str, Any] = {"mount": folder, "gpu": gpu[0], "operation": OPERATIONS[0]}
    say("begin", **record)
    data, path = secrets.token_bytes(SIZE), os.path.join(folder, request["name"])
    try:
        fd, record["direct"] = scratch(path)
    except OSError as error:
        refuse(record, scratch=error.strerror)
        return
    begin = length_of(request["log"])
    try:
        require_mount(fd, request["mounts"][folder])
        fill(fd, record["direct"], data)
        transfer(request, cuda, cufile, (fd, path), gpu[1], data, record)
    except OSError as error:
        refuse(record, scratch=error.strerror, log=logged(request["log"], begin))
    finally:
        os.close(fd)
        remove(path)


def refuse(record: Dict[str, Any], **reason: Any) -> None:
    """Report why this operation, and each one after it, was not tried or failed before it began."""
    for operation in OPERATIONS[OPERATIONS.index(record["operation"]) :]:
        say("pair", **{**record, "operation": operation, **reason})


def length_of(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0


def transfer(
    request: Dict[str, Any],
    cuda: Any,
    cufile: Any,
    file: Tuple[int, str],
    context: ctypes.c_void_p,
    data: bytes,
    record: Dict[str, Any],
) -> None:
    memory, handle, length = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t(SIZE)
    begin = length_of(request["log"])
    cuda.cuCtxSetCurrent(context)
    status = cuda.cuMemAlloc_v2(ctypes.byref(memory), length)
    if status:
        refuse(record, memory=status)
        return
    description = Description(OPAQUE_FD, file[0], None)
    registered = cufile.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(description))
    record["register"] = registered.words()
    remove(file[1])
    if registered.err:
        cuda.cuMemFree_v2(memory)
        refuse(record, log=logged(request["log"], begin))
        return
    for operation in OPERATIONS:
        values = {**record, "operation": operation}
        if operation != OPERATIONS[0]:
            say("begin", **{name: values[name] for name in ("mount", "gpu", "operation")})
            begin = length_of(request["log"])
        data = move(request["stats"], cuda, cufile, operation, (handle, memory), file[0], data, values)
        say("pair", **values, log=logged(request["log"], begin))
    cufile.cuFileHandleDeregister(handle)
    cuda.cuMemFree_v2(memory)


def move(
    stats: str,
    cuda: Any,
    cufile: Any,
    operation: str,
    ends: Tuple[ctypes.c_void_p, ctypes.c_uint64],
    fd: int,
    data: bytes,
    record: Dict[str, Any],
) -> bytes:
    """One operation; returns what the file should contain afterwards."""
    handle, memory = ends
    zero, length = ctypes.c_int64(0), ctypes.c_size_t(SIZE)
    # Counters that move while this program waits are moved by other programs.
    record["idle"] = text(stats)
    time.sleep(0.02)
    record["before"] = text(stats)
    # Each operation registers the buffer for itself: some counters rise only when its memory is mapped.
    record["buffer"] = cufile.cuFileBufRegister(memory, length, 0).words()
    if operation == "read":
        cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0), length)
        call = cufile.cuFileRead
    else:
        data = secrets.token_bytes(SIZE)
        cuda.cuMemcpyHtoD_v2(memory, data, length)
        call = cufile.cuFileWrite
    record[operation] = call(handle, memory, length, zero, zero)
    record["errno"] = os.strerror(ctypes.get_errno()) if record[operation] == -1 else ""
    record["after"] = text(stats)
    if operation == "read":
        back = ctypes.create_string_buffer(SIZE)
        cuda.cuMemcpyDtoH_v2(back, memory, length)
        record["same"] = back.raw == data
    else:
        record["same"] = content(fd) == data
    if not record["buffer"][0]:
        cufile.cuFileBufDeregister(memory)
    return data


def content(fd: int) -> bytes:
    """The file's content, as the disk has it where the descriptor is open for direct I/O."""
    with mmap.mmap(-1, SIZE) as memory:
        return memory[: os.preadv(fd, [memory], 0)]


def prove(request: Dict[str, Any]) -> None:
    """Read and write on each mount with each GPU."""
    libc = ctypes.CDLL(None)
    # The shared memory of libcufile's statistics then ends with this process, whatever becomes of it.
    libc.unshare(CLONE_NEWIPC)
    for stream in ("stdout", "stderr"):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, stream), None, 2, 0)
    say("start", mounts=list(request["mounts"]), operations=OPERATIONS)
    cuda, cufile = loaded(["libcuda.so.1"]), loaded(request["libraries"])
    for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister", "cuFileBufDeregister"):
        getattr(cufile, name).restype = Status
    for name in ("cuFileRead", "cuFileWrite"):
        getattr(cufile, name).restype = ctypes.c_ssize_t
    devices = gpus(cuda)
    say("gpus", gpus=[address for address, _ in devices])
    if devices:
        cuda.cuCtxSetCurrent(devices[0][1])
    opened = cufile.cuFileDriverOpen()
    say("open", result=opened.words(), log=logged(request["log"], 0) if opened.err else [])
    if not opened.err:
        for folder in request["mounts"]:
            for gpu in devices:
                pair(request, cuda, cufile, folder, gpu)
        cufile.cuFileDriverClose()
    say("end")


def libibverbs() -> Any:
    verbs = loaded(["libibverbs.so.1"])
    for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_reg_dmabuf_mr"):
        if hasattr(verbs, name):
            getattr(verbs, name).restype = ctypes.c_void_p
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    return verbs


def domains(verbs: Any) -> List[Tuple[str, ctypes.c_void_p]]:
    """(name, protection domain) of each adapter; the kernel frees them when this program ends."""
    count = ctypes.c_int()
    listed = verbs.ibv_get_device_list(ctypes.byref(count))
    devices = ctypes.cast(listed, ctypes.POINTER(ctypes.c_void_p)) if listed else None
    opened = []
    for number in range(min(count.value, MOST) if devices else 0):
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
    with mmap.mmap(-1, MEMORY) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(view))
        done = register(
            verbs, lambda: verbs.ibv_reg_mr(domain, address, ctypes.c_size_t(MEMORY), ACCESS), adapter=adapter, by=HOST
        )
        # Else the mapping can't be closed.
        del view
        return done


def gpu_memory(cuda: Any, verbs: Any, gpu: Tuple[str, ctypes.c_void_p], adapters: Dict[str, ctypes.c_void_p]) -> None:
    """Register memory of one GPU with every adapter, in both ways."""
    cuda.cuCtxSetCurrent(gpu[1])
    memory, length = ctypes.c_uint64(), ctypes.c_size_t(MEMORY)
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


def register_all() -> None:
    """Register memory of each GPU with each adapter."""
    say("start")
    cuda, verbs = loaded(["libcuda.so.1"]), libibverbs()
    devices = gpus(cuda)
    say("gpus", gpus=[address for address, _ in devices])
    adapters = dict(domains(verbs))
    say("adapters", adapters=list(adapters))
    usable = {name: domain for name, domain in adapters.items() if host_memory(verbs, domain, name)}
    for gpu in devices:
        gpu_memory(cuda, verbs, gpu, usable)
    say("end")


def main() -> None:
    # A core file would contain all that the libraries map, and a GPU's memory is large.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.argv[1:]:
        prove(json.loads(sys.argv[1]))
    else:
        register_all()
    # Threads of the libraries may outlive all this.
    os._exit(0)


if __name__ == "__main__":
    main()
