"""One cuFile write and one read back, with whatever libcufile and configuration the environment names.

    LD_LIBRARY_PATH=… CUFILE_ENV_PATH_JSON=… python3 cufile_io.py FILE

Prints one JSON object: what each call returned, and whether the bytes that came back are those that were written.
The library's log, in its logging.dir, says which path they took.  Standard library only; needs a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

SIZE = 1 << 20
OPAQUE_FD = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD, cufile.h


class Status(ctypes.Structure):
    """CUfileError_t"""

    _fields_ = (("err", ctypes.c_int), ("cu_err", ctypes.c_int))

    def words(self) -> list[int]:
        return [self.err, self.cu_err]


class Description(ctypes.Structure):
    """CUfileDescr_t; of its union only the file descriptor is used."""

    _fields_ = (("type", ctypes.c_int), ("fd", ctypes.c_ssize_t), ("operations", ctypes.c_void_p))


def device_memory(cuda: Any) -> ctypes.c_uint64:
    """Memory on the first GPU, in its primary context."""
    context, device, memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(SIZE))),
    ):
        status = getattr(cuda, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: {status}")
    return memory


def transfer(path: str) -> dict[str, Any]:
    """Every call's answer, in order; stops at the first that fails."""
    cuda, library = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcufile.so.0")
    for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister", "cuFileDriverClose"):
        getattr(library, name).restype = Status
    for name in ("cuFileWrite", "cuFileRead"):
        getattr(library, name).restype = ctypes.c_ssize_t
    memory, results = device_memory(cuda), {}
    results["cuFileDriverOpen"] = library.cuFileDriverOpen().words()
    if results["cuFileDriverOpen"][0]:
        return results
    written = bytes(range(256)) * (SIZE // 256)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        handle, description = ctypes.c_void_p(), Description(OPAQUE_FD, fd, None)
        status = library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(description))
        results["cuFileHandleRegister"] = status.words()
        if status.err:
            return results
        results["cuFileBufRegister"] = library.cuFileBufRegister(memory, ctypes.c_size_t(SIZE), 0).words()
        cuda.cuMemcpyHtoD_v2(memory, written, ctypes.c_size_t(SIZE))
        zero = ctypes.c_int64(0)
        results["cuFileWrite"] = library.cuFileWrite(handle, memory, ctypes.c_size_t(SIZE), zero, zero)
        cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0), ctypes.c_size_t(SIZE))
        results["cuFileRead"] = library.cuFileRead(handle, memory, ctypes.c_size_t(SIZE), zero, zero)
        back = ctypes.create_string_buffer(SIZE)
        cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(SIZE))
        results["same"] = back.raw == written
        library.cuFileHandleDeregister(handle)
    finally:
        os.close(fd)
        Path(path).unlink()
    results["cuFileDriverClose"] = library.cuFileDriverClose().words()
    return results


if __name__ == "__main__":
    sys.stdout.write(json.dumps(transfer(sys.argv[1])) + "\n")
    sys.stdout.flush()
    # libcufile's own threads may outlive its close.
    os._exit(0)
