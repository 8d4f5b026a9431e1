"""Codes of files: handles, flags, filesystems, single reads and writes."""

from __future__ import annotations

from typing import Tuple

from .entry import Cause, Entry, cufile

_UNSUPPORTED_MOUNT = Cause(
    "the filesystem, its mount options, the file's attributes or the layers below are not supported",
    "cufile.log at INFO: 'ext4 journal mode for device not supported!', 'detected unsupported … inode flags', "
    "'RAID level not supported …', 'NVMe Driver not registered with nvidia-fs!!!'",
    "gdsdeploy explain HOST MOUNT names the cause; or allow compat mode knowingly",
)

FILE: Tuple[Entry, ...] = (
    cufile(
        8,
        "IO_NOT_SUPPORTED",
        "this file cannot take the direct path, and compat mode is not allowed",
        _UNSUPPORTED_MOUNT,
        Cause(
            "I/O that is not aligned, or smaller than posix_gds_min_kb, where only compat mode can do it",
            "size, file offset and device offset of the call: multiples of 4096?",
            "align the I/O, or allow compat mode",
        ),
        Cause(
            "NFS is mounted without RDMA, or a distributed filesystem's client has no GDS support",
            "mount: proto=rdma; gdscheck -p: the row of that filesystem",
            "mount over RDMA, with a client that supports GDS",
        ),
    ),
    cufile(
        18,
        "INVALID_FILE_TYPE",
        "not a regular file or a block device",
        Cause(
            "the descriptor is a pipe, socket, directory or character device",
            "stat on it",
            "open a regular file (or, in newer releases, a block device)",
        ),
    ),
    cufile(
        19,
        "INVALID_FILE_OPEN_FLAG",
        "the file was opened with flags that cuFile does not take",
        Cause(
            "O_APPEND, O_NOCTTY, O_NONBLOCK, O_DIRECTORY, O_NOFOLLOW or O_TMPFILE",
            "cufile.log: 'fd opened with unsupported flags'",
            "open it again without them",
        ),
    ),
    cufile(
        20,
        "DIO_NOT_SET",
        "the file was not opened with O_DIRECT",
        Cause(
            "the program opens without O_DIRECT, and this path needs it",
            "/proc/PID/fdinfo/FD: flags hold 040000 where it is set (x86-64)",
            "open with O_DIRECT; from 1.9 properties.force_odirect_mode does it",
        ),
        Cause("the filesystem has no O_DIRECT", "open(2) with O_DIRECT fails with EINVAL", "use another filesystem"),
    ),
    cufile(
        22,
        "INVALID_VALUE",
        "an argument is not valid",
        Cause(
            "a null pointer or handle, a negative offset, a size of 0, a type that is not set",
            "the arguments; miscellaneous.api_check_aggressive makes the library look closer",
            "correct the call; set the whole CUfileDescr_t to zero before filling it",
        ),
    ),
    cufile(
        25,
        "PERMISSION_DENIED",
        "the library may not open the driver or the file",
        Cause(
            "/dev/nvidia-fs* cannot be opened by this user, or by this container's device rules",
            "ls -l /dev/nvidia-fs*; strace: EACCES or EPERM on it",
            "mode 0666 as nvidia-fs makes them; hand them to the container with rw",
        ),
        Cause(
            "the file is open for reading only, and is written to, or the other way about",
            "/proc/PID/fdinfo/FD",
            "open with the right mode",
        ),
    ),
    cufile(
        27,
        "HANDLE_NOT_REGISTERED",
        "the file could not be registered, or I/O was done on one that is not",
        Cause(
            "no udev database, as in containers and chroots without /run/udev",
            "cufile.log: 'udev property not found: ID_FS_USAGE'; ls /run/udev/data",
            "mount the host's /run/udev into the container, read-only",
        ),
        Cause(
            "the filesystem's attributes could not be found out otherwise (overlay, loop, device mapper)",
            "cufile.log: 'error getting volume attributes', 'unable to get volume attributes for fd'",
            "put the data on a supported filesystem that is mounted straight from its device",
        ),
        Cause(
            "cuFileHandleRegister's own error was ignored, or the handle was deregistered",
            "the status of the earlier call; cufile.log: 'cuFileHandleRegister error'",
            "check that status first",
        ),
        seen="cuFileHandleRegister of 1.15.1 and 1.20.0 on ext4 without a udev database, compat mode allowed",
    ),
    cufile(
        28,
        "HANDLE_ALREADY_REGISTERED",
        "this descriptor is registered",
        Cause(
            "the descriptor was closed and its number used again before cuFileHandleDeregister",
            "cufile.log: 'file is already registered under same fd'",
            "deregister before close",
        ),
        Cause("the file is registered twice", "the program", "share the handle"),
    ),
    cufile(
        31,
        "GETNEWFD_FAILED",
        "the library could not open a descriptor of its own for the file",
        Cause(
            "the process has no descriptors left",
            "ls /proc/PID/fd | wc -l beside ulimit -n",
            "raise the limit: cuFile takes a second descriptor for each file",
        ),
        Cause(
            "the file was renamed, removed or became unreadable after it was opened",
            "/proc/PID/fd/FD ends in (deleted)",
            "register before unlinking",
        ),
    ),
    cufile(
        34,
        "IO_DISABLED",
        "the configuration denies the direct path for this file, and compat mode is not allowed",
        Cause(
            "the file's driver, filesystem, mount or device is in the denylist of cufile.json",
            "cufile.json: denylist; gdscheck -p: 'Unsupported (Disabled)'; cufile.log: 'cuFile disabled by config'",
            "remove the entry, or allow compat mode",
        ),
    ),
    cufile(
        44,
        "IO_ERROR",
        "a read or write failed underneath",
        Cause(
            "the storage returned an error",
            "dmesg: I/O error on the device; the filesystem's own log",
            "look after the device first",
        ),
        Cause(
            "the DMA failed (IOMMU, ACS, P2P across host bridges)",
            "dmesg: DMAR or AMD-Vi faults; /proc/driver/nvidia-fs/stats: Error: dma-map",
            "switch the IOMMU off or to passthrough, ACS redirection off",
        ),
        releases="1.15 to 1.20",
    ),
)
