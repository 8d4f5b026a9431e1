"""The program that reads and writes through cuFile, for each mount and GPU; proof.py starts it and never imports it.

Its only argument is a JSON object: ``libraries`` (names or paths of libcufile), ``mounts`` (folders), ``stats`` (the
counters of nvidia-fs), ``log`` (libcufile's log file), ``name`` (of the scratch file).  Each line of its output is a
JSON object with its kind in ``event``, written before the next call that may not return.  It needs only the standard
library, loads the libraries by name, and leaves nothing behind.

Its scratch file loses its name after it is registered: libcufile then opens it again by name, and returns 5031 if it
has none (seen in 1.15.1 and 1.20.0).  If that call doesn't return, proof.py removes the file.
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
from typing import Any, Dict, List, Tuple

SIZE = 1 << 20
#: cufile.h: CU_FILE_HANDLE_TYPE_OPAQUE_FD.
OPAQUE_FD = 1
#: linux/sched.h
CLONE_NEWIPC = 0x08000000
GPUS = 64
#: Log lines about the path of one piece of I/O, at level TRACE, in 1.15 to 1.20.
PATH_LINES = re.compile(
    r"\] (ERROR|WARN) |Compatibility Mode:|IO mode:|Updating stats|use p2p mode|P2P Support|posix path taken"
)
LINES = 40
#: In this order: the read verifies what was written without cuFile, and the write replaces it.
OPERATIONS = ("read", "write")


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
            say("no GPU", call=name, status=status)
            raise SystemExit(4)
    for number in range(min(count.value, GPUS)):
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(32)
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetPCIBusId(address, 32, device)
        status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if status:
            say("no context", gpu=address.value.decode().lower(), status=status)
        else:
            devices.append((address.value.decode().lower(), context))
    return devices


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
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def fill(fd: int, direct: bool, data: bytes) -> None:
    if direct:
        with mmap.mmap(-1, len(data)) as memory:
            memory[:] = data
            os.pwrite(fd, memory, 0)
    else:
        os.pwrite(fd, data, 0)
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


def main() -> None:
    # A core file would contain all that the library maps, and a GPU's memory is large.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    # The shared memory of libcufile's statistics then ends with this process, whatever becomes of it.
    libc.unshare(CLONE_NEWIPC)
    for stream in ("stdout", "stderr"):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, stream), None, 2, 0)
    say("start", mounts=request["mounts"], operations=OPERATIONS)
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
    # libcufile's own threads may outlive its close.
    os._exit(0)


if __name__ == "__main__":
    main()
