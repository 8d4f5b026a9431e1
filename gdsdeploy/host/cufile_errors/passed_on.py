"""Codes that cuFile passes on: CUDA's (in cu_err), the operating system's (negative, or errno), and RDMA's own.

The numbers and names of CUDA are those of its CUresult, the operating system's those of Linux.
"""

from __future__ import annotations

from typing import Tuple

from .entry import CUDA, ERRNO, RDMA, Cause, Entry

_SMI = "nvidia-smi on the same host, in the same container, as the same user"


def _cuda(code: int, name: str, meaning: str, what: str, evidence: str, fix: str, seen: str = "") -> Entry:
    return Entry(CUDA, code, "CUDA_ERROR_" + name, meaning, (Cause(what, evidence, fix),), seen=seen)


def _errno(code: int, name: str, meaning: str, *causes: Cause, releases: str = "", seen: str = "") -> Entry:
    return Entry(ERRNO, code, name, meaning, causes, releases or "1.4 to 1.20", seen)


PASSED_ON: Tuple[Entry, ...] = (
    _cuda(
        1,
        "INVALID_VALUE",
        "a parameter of a CUDA call is not valid",
        "a pointer or size that CUDA does not know was passed through cuFile",
        "cufile.log: the CUDA call in the ERROR line",
        "check the allocation, as for 5012",
    ),
    _cuda(
        2,
        "OUT_OF_MEMORY",
        "the GPU's memory is full",
        "the library could not allocate its bounce buffers",
        "nvidia-smi: memory used, per process",
        "leave room for properties.max_device_cache_size_kb on each GPU",
    ),
    _cuda(
        3,
        "NOT_INITIALIZED",
        "CUDA was not initialised",
        "cuInit failed before, or the process forked after it",
        "the first CUDA error of the process",
        "initialise CUDA in the process that uses it",
    ),
    _cuda(
        4,
        "DEINITIALIZED",
        "CUDA is shutting down",
        "cuFile is called from a destructor or exit handler, after CUDA's own",
        "the stack of the call",
        "close cuFile before main ends",
    ),
    _cuda(
        34,
        "STUB_LIBRARY",
        "the loaded libcuda is the toolkit's stub",
        "a folder named stubs is in LD_LIBRARY_PATH, or the driver's userland is missing",
        "ldconfig -p | grep libcuda; /proc/PID/maps",
        "remove the stubs folder from the path, install the driver's libcuda",
    ),
    _cuda(
        46,
        "DEVICE_UNAVAILABLE",
        "the GPU is busy or may not be used now",
        "another process holds it in exclusive mode, or it needs a reset",
        "nvidia-smi -q: Compute Mode; dmesg: Xid",
        "nvidia-smi -c DEFAULT, or free the GPU",
    ),
    _cuda(
        100,
        "NO_DEVICE",
        "CUDA finds no GPU",
        "the driver is not loaded, the container has no GPU, or CUDA_VISIBLE_DEVICES is empty",
        _SMI + "; ls /dev/nvidia*",
        "load the driver, hand in the GPUs, correct the variable",
        seen="Debian's libcuda 550.163.01 without a GPU",
    ),
    _cuda(
        101,
        "INVALID_DEVICE",
        "there is no GPU of this number",
        "CUDA_VISIBLE_DEVICES names fewer GPUs than the program uses",
        "nvidia-smi -L beside the variable",
        "correct one of the two",
    ),
    _cuda(
        201,
        "INVALID_CONTEXT",
        "no CUDA context is current, or it was destroyed",
        "a thread of its own calls cuFile without a device",
        "cuCtxGetCurrent in that thread",
        "cudaSetDevice there before the first call",
    ),
    _cuda(
        304,
        "OPERATING_SYSTEM",
        "a call of the operating system failed inside CUDA",
        "device nodes cannot be opened, or a limit (locked memory, mappings) is reached",
        "ls -l /dev/nvidia*; ulimit -l; dmesg",
        "correct the permissions or the limit",
    ),
    _cuda(
        700,
        "ILLEGAL_ADDRESS",
        "a kernel used an address that is not valid; the context is lost",
        "an earlier fault of the program, which only shows at the cuFile call",
        "compute-sanitizer on the program",
        "correct the kernel; cuFile is not the cause",
    ),
    _cuda(
        709,
        "CONTEXT_IS_DESTROYED",
        "the context of the call is gone",
        "the device was reset, or the context destroyed, while cuFile still had buffers in it",
        "the program's order of calls",
        "deregister buffers and close cuFile first",
    ),
    _cuda(
        719,
        "LAUNCH_FAILED",
        "a kernel failed; the context is lost",
        "an earlier fault of the program or the GPU",
        "dmesg: Xid; compute-sanitizer",
        "correct the kernel, or look after the GPU",
    ),
    _cuda(
        800,
        "NOT_PERMITTED",
        "the operation is not permitted",
        "profiling or pinning rights are missing, or the stream is captured",
        "cufile.log: the CUDA call in the ERROR line",
        "run it with the rights that this call needs",
    ),
    _cuda(
        801,
        "NOT_SUPPORTED",
        "the GPU, the driver or the system cannot do this",
        "the library probes for P2PDMA, DMA-BUF or stream operations; alone in the log it is no fault",
        "cufile.log: 'pci_p2pdma not supported errornum: 801'",
        "nothing, unless that path is wanted: then its driver options and kernel",
        seen="libcufile 1.15.1 on an H200 whose kernel has no P2PDMA",
    ),
    _cuda(
        802,
        "SYSTEM_NOT_READY",
        "the system is not ready for CUDA",
        "the fabric manager does not run, or is not of the driver's version",
        "systemctl status nvidia-fabricmanager; its version beside /proc/driver/nvidia/version",
        "install the version of the driver, start it, wait for it before the workload",
    ),
    _cuda(
        803,
        "SYSTEM_DRIVER_MISMATCH",
        "libcuda and the kernel module are of different releases",
        "one of them was upgraded without a reboot, or a container brings its own libcuda",
        "/proc/driver/nvidia/version beside the libcuda.so.NNN in /proc/PID/maps",
        "lock them as one set, reboot",
    ),
    _cuda(
        804,
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "CUDA's forward compatibility is not for this GPU",
        "the cuda-compat libraries are loaded on a GPU or driver they are not for",
        "/proc/PID/maps: a libcuda of a compat folder",
        "remove the compat folder from the path, or upgrade the driver",
    ),
    _cuda(
        999,
        "UNKNOWN",
        "CUDA failed for a reason it does not tell",
        "often the device nodes: nvidia-uvm is not loaded, or /dev/nvidia-uvm is missing in the container",
        "ls -l /dev/nvidia-uvm; lsmod; dmesg: Xid, NVRM",
        "load nvidia-uvm, hand the node in; otherwise reset or reboot",
    ),
    _errno(
        22,
        "EINVAL",
        "an argument, or the configuration, is not valid",
        Cause(
            "cuFileDriverOpen up to 1.18: /etc/cufile.json, or the file in CUFILE_ENV_PATH_JSON, is refused",
            "the library's output: 'failed to load config', and the line before it names the key",
            "correct the file: gdsdeploy cufile check FILE --libcufile VERSION; from 1.19 the code is 5002",
        ),
        Cause(
            "a read or write through compat mode on an O_DIRECT file that is not aligned",
            "size, offset and address of the call: multiples of the device's block size?",
            "align them",
        ),
        seen="cuFileDriverOpen of 1.4.0 to 1.18.1 with broken JSON (1.19.1 and 1.20.0 return 5002 instead)",
    ),
    _errno(
        1,
        "EPERM",
        "the system forbids it",
        Cause(
            "a container's device rules or seccomp profile forbid an ioctl of /dev/nvidia-fs*",
            "strace, or the audit log",
            "allow the devices with rw",
        ),
    ),
    _errno(
        2,
        "ENOENT",
        "a file or folder is not there",
        Cause(
            "logging.dir, or a path of the configuration, does not exist",
            "the library's output: 'found invalid log directory name'",
            "make it, or change the key",
        ),
    ),
    _errno(
        5,
        "EIO",
        "the storage failed",
        Cause(
            "the device or the filesystem reported an I/O error, or the DMA failed",
            "dmesg: I/O error, DMAR, AMD-Vi; /proc/driver/nvidia-fs/stats: Error",
            "look after the device; IOMMU and ACS as for 5044",
        ),
    ),
    _errno(
        9,
        "EBADF",
        "the descriptor is not open",
        Cause("the file was closed before cuFileHandleDeregister", "the program", "deregister, then close"),
    ),
    _errno(
        11,
        "EAGAIN",
        "a resource is exhausted for now",
        Cause(
            "too many I/Os at the same time, or too many asynchronous contexts",
            "/proc/sys/fs/aio-nr beside aio-max-nr",
            "repeat the call; raise fs.aio-max-nr",
        ),
    ),
    _errno(
        12,
        "ENOMEM",
        "memory, or what may be pinned of it, ran out",
        Cause(
            "host memory for the pools, locked memory or BAR1 is short",
            "ulimit -l; nvidia-smi -q: BAR1; dmesg",
            "raise the limit, or make posix_pool_slab_count and the caches smaller",
        ),
    ),
    _errno(
        13,
        "EACCES",
        "permission is denied",
        Cause(
            "the user may not open the file or /dev/nvidia-fs*",
            "ls -l on both, as that user",
            "correct the mode, the group or the container's devices",
        ),
    ),
    _errno(
        14,
        "EFAULT",
        "an address is not valid",
        Cause(
            "GPU memory could not be pinned: nvidia-fs before 2.26.6 on newer kernels",
            "/sys/module/nvidia_fs/version; /proc/driver/nvidia-fs/stats: err of Bar1-map rises with every call",
            "take nvidia-fs 2.26.6 or newer",
        ),
        Cause("the buffer was freed during the I/O", "the program", "keep it until the call has ended"),
    ),
    _errno(
        16,
        "EBUSY",
        "the device is in use",
        Cause(
            "a batch or a stream still uses what is to be closed",
            "the program's order of calls",
            "wait for it before closing",
        ),
    ),
    _errno(
        19,
        "ENODEV",
        "there is no such device",
        Cause(
            "the driver or nvidia-fs was unloaded under the process, or never found a GPU",
            "lsmod; dmesg: NVRM",
            "load them, then start the process anew",
        ),
    ),
    _errno(
        24,
        "EMFILE",
        "the process has no descriptors left",
        Cause(
            "cuFile takes a second descriptor for each registered file",
            "ls /proc/PID/fd | wc -l beside ulimit -n",
            "raise the limit, deregister files that are done",
        ),
    ),
    _errno(
        28,
        "ENOSPC",
        "the filesystem is full",
        Cause("no blocks or no quota are left", "df, quota", "make room; preallocate before direct writes"),
    ),
    _errno(
        95,
        "EOPNOTSUPP",
        "the filesystem or the device cannot do this",
        Cause(
            "O_DIRECT, or the kind of I/O, is not there on this filesystem",
            "open(2) with O_DIRECT on a file there; gdsdeploy explain HOST MOUNT",
            "use a supported filesystem, or compat mode without O_DIRECT",
        ),
    ),
    _errno(
        121,
        "EREMOTEIO",
        "the other side of the storage network failed",
        Cause(
            "the storage target, or the link to it, reported an error",
            "dmesg: nvme, rpcrdma; the target's own log; gdscheck -p: Up and Down of the RDMA devices",
            "look after the target and the link",
        ),
    ),
    Entry(
        RDMA,
        6001,
        "CU_FILE_RDMA_RESET_TOKEN",
        "a queue pair is to be reset, and the token with it",
        (
            Cause(
                "an RDMA connection failed and the client asks for a reset",
                "cufile.log: lines with 'QP reset'; properties.allow_rdma_token_reset",
                "none, if the next I/O works: the reset repairs it",
            ),
        ),
        "1.19 to 1.20",
    ),
    Entry(
        RDMA,
        6002,
        "CU_FILE_RDMA_RESET_TOKEN_FAILED",
        "the reset of a queue pair failed",
        (
            Cause(
                "the adapter or the target is gone for longer",
                "cufile.log: 'QP reset failed on healthy NIC'; ibstat; the target",
                "look after the link; properties.rdma_multipath_enabled (from 1.18) fails over to another",
            ),
        ),
        "1.19 to 1.20",
    ),
)
