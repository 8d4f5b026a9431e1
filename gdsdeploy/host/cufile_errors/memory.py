"""Codes of GPU memory: pointers, registration, pinning."""

from __future__ import annotations

from typing import Tuple

from .entry import Cause, Entry, cufile

_RANGE = "the address and size of the allocation (cuMemGetAddressRange) beside those of the call"

MEMORY: Tuple[Entry, ...] = (
    cufile(
        12,
        "CUDA_POINTER_INVALID",
        "the pointer is not GPU memory that CUDA knows",
        Cause(
            "the buffer was freed, or belongs to another process or to a context that was destroyed",
            "cufile.log: 'cannot verify device pointer', and the program's order of frees",
            "keep the allocation alive until the I/O has ended",
        ),
        Cause(
            "host memory was passed, which this release or its allow_system_memory does not take",
            "cuPointerGetAttribute on the pointer",
            "pass memory of cudaMalloc, or a newer libcufile",
        ),
    ),
    cufile(
        13,
        "CUDA_MEMORY_TYPE_INVALID",
        "this kind of memory cannot be used",
        Cause(
            "managed memory (cudaMallocManaged): the driver cannot pin it",
            "cufile.log: 'cudaMallocManaged memory. not supported by nvidia_p2p_pages'",
            "use cudaMalloc",
        ),
        Cause(
            "memory of an async pool or the virtual memory API, without GPUDirect RDMA",
            "cufile.log: 'buffer is not GPUDirect RDMA capable'",
            "allocate with gpuDirectRDMACapable set, or with cudaMalloc",
        ),
    ),
    cufile(
        14,
        "CUDA_POINTER_RANGE_ERROR",
        "the range ends beyond the allocation",
        Cause("pointer + offset + size is larger than the allocation", _RANGE, "correct the size or the offset"),
    ),
    cufile(
        15,
        "CUDA_CONTEXT_MISMATCH",
        "the buffer belongs to another CUDA context or GPU than the current one",
        Cause(
            "the thread that does the I/O has another device current",
            "cufile.log: 'cannot verify cuda context'",
            "cudaSetDevice in that thread before the call",
        ),
        Cause(
            "the process forked after CUDA was initialised",
            "cufile.log: 'Pids are not same, fork is not supported'",
            "fork before any CUDA or cuFile call, or start a new process",
        ),
    ),
    cufile(
        16,
        "INVALID_MAPPING_SIZE",
        "the buffer is larger than what may be pinned",
        Cause(
            "max_device_pinned_mem_size_kb, or BAR1, is smaller than the registered buffers together",
            "gdscheck -p: properties.max_device_pinned_mem_size_kb and bar size (MiB); nvidia-smi -q: BAR1",
            "register less at a time, or raise the limit up to what BAR1 holds",
        ),
    ),
    cufile(
        17,
        "INVALID_MAPPING_RANGE",
        "the I/O reaches beyond the registered part of the buffer",
        Cause("size + device offset is larger than what was registered", _RANGE, "register all of it, or do less I/O"),
    ),
    cufile(
        23,
        "MEMORY_ALREADY_REGISTERED",
        "this buffer, or one that overlaps it, is registered",
        Cause(
            "cuFileBufRegister was called twice, often once by a library and once by the program",
            "cufile.log: 'Memory already registered'",
            "register once, or deregister before",
        ),
    ),
    cufile(
        24,
        "MEMORY_NOT_REGISTERED",
        "no buffer is registered at this address",
        Cause(
            "cuFileBufDeregister with an address inside the buffer, or a second time",
            "the address that was registered",
            "pass the same base address, once",
        ),
        Cause(
            "I/O on a buffer that was registered, freed and allocated anew",
            "cufile.log: 'buffer object is stale'",
            "deregister before freeing",
        ),
    ),
    cufile(
        36,
        "GPU_MEMORY_PINNING_FAILED",
        "GPU memory for the library's own buffers could not be pinned",
        Cause(
            "BAR1 is full or small",
            "nvidia-smi -q: BAR1 Memory Usage; gdscheck -p: bar size (MiB)",
            "close other users of BAR1, lower max_device_cache_size_kb, switch on large BARs in the firmware",
        ),
        Cause(
            "the GPU's memory is full",
            "nvidia-smi: memory used",
            "leave room for max_device_cache_size_kb (128 MiB by default) on each GPU",
        ),
        releases="1.9 to 1.20 (1.4.0 lacks it)",
    ),
    cufile(
        43,
        "NOMEM_ERROR",
        "memory ran out for now; the call may be repeated",
        Cause(
            "all bounce buffers are taken",
            "gds_stats -p PID -l 3: pool buffers; properties.max_device_cache_size_kb and posix_pool_slab_count",
            "repeat the call, do less at the same time, or make the pools larger",
        ),
        releases="1.15 to 1.20",
    ),
    cufile(
        45,
        "INTERNAL_BUF_REGISTER_ERROR",
        "a buffer could not be registered, for a reason inside the library",
        Cause(
            "pinning or RDMA registration failed underneath",
            "cufile.log: the line before 'cuFileBufRegister error'; dmesg",
            "as for 5036 and 5010",
        ),
        releases="1.15 to 1.20",
    ),
    cufile(
        46,
        "HASH_OPR_ERROR",
        "the library's table of files or buffers could not be changed",
        Cause(
            "two threads register or deregister the same object at the same time",
            "the program",
            "serialise registration of one object",
        ),
        releases="1.15 to 1.20",
    ),
    cufile(
        47,
        "INVALID_CONTEXT_ERROR",
        "no valid CUDA context, or one of a stream or batch that is gone",
        Cause(
            "no context is current in this thread",
            "cuCtxGetCurrent before the call",
            "cudaSetDevice, or make the context current",
        ),
        releases="1.15 to 1.20",
    ),
)
