"""Codes of batches and streams."""

from __future__ import annotations

from typing import Tuple

from .entry import Cause, Entry, cufile

_LATER = "repeat the call; it is meant to be repeated"


def _internal(offset: int, call: str, name: str, note: str = "", other_names: Tuple[str, ...] = ()) -> Entry:
    return cufile(
        offset,
        f"INTERNAL_BATCH_{name}_ERROR",
        f"{call} failed inside the library; the call may be repeated",
        Cause("the library is short of buffers or contexts for now", "cufile.log at INFO: lines with 'batch'", _LATER),
        Cause(
            "more I/Os are in flight than properties.io_batchsize and execution.max_io_queue_depth allow",
            "gdscheck -p: properties.max_batch_io_size",
            "submit less at a time",
        ),
        releases="1.15 to 1.20" + note,
        other_names=other_names,
    )


BATCH: Tuple[Entry, ...] = (
    cufile(
        35,
        "BATCH_SUBMIT_FAILED",
        "a batch could not be submitted",
        Cause(
            "an entry of it is not valid: unregistered handle, bad offset or size",
            "cufile.log: 'cuFile error issuing Batch IO', with the entry",
            "correct that entry; each is judged like a single call",
        ),
        Cause(
            "the kernel's asynchronous I/O is exhausted",
            "/proc/sys/fs/aio-nr beside /proc/sys/fs/aio-max-nr",
            "raise fs.aio-max-nr",
        ),
        releases="1.9 to 1.20 (1.4.0 lacks it)",
    ),
    cufile(
        37,
        "BATCH_FULL",
        "the batch has no room for more entries",
        Cause(
            "more entries than cuFileBatchIOSetUp was given, or earlier ones were not collected",
            "the nr of the set-up beside what is outstanding",
            "collect with cuFileBatchIOGetStatus, or set up a larger batch (at most properties.io_batchsize)",
        ),
        releases="1.9 to 1.20 (1.4.0 lacks it)",
    ),
    cufile(
        38,
        "ASYNC_NOT_SUPPORTED",
        "I/O on CUDA streams cannot be done here",
        Cause(
            "the driver lacks stream memory operations, or they are switched off",
            "cufile.log: 'ASYNC IO NOT SUPPORTED'; streamMemOps in its line of GPU attributes",
            "upgrade the driver; miscellaneous.stream_memops_bypass (from 1.9) goes without them",
        ),
        Cause(
            "the I/O is not aligned",
            "cufile.log: 'async IO work failed io is unaligned'",
            "align size and offsets to 4096",
        ),
        releases="1.9 to 1.20 (1.4.0 lacks it)",
    ),
    _internal(
        39,
        "cuFileBatchIOSetUp",
        "SETUP",
        " (up to 1.14 the number is CU_FILE_IO_MAX_ERROR, the end of the list)",
        ("CU_FILE_IO_MAX_ERROR",),
    ),
    _internal(40, "cuFileBatchIOSubmit", "SUBMIT"),
    _internal(41, "cuFileBatchIOGetStatus", "GETSTATUS"),
    _internal(42, "cuFileBatchIOCancel", "CANCEL"),
    cufile(
        49,
        "BATCH_NOCOMPAT_ERROR",
        "an entry of the batch needs compat mode, which is not allowed",
        Cause(
            "a file or buffer of the batch cannot take the direct path",
            "cufile.log at INFO: why that file or buffer cannot; gdsdeploy explain HOST MOUNT",
            "as for 5008; or allow compat mode knowingly",
        ),
        releases="1.15 to 1.20",
    ),
)
