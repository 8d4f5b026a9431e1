"""Codes of opening the driver: library, configuration, nvidia-fs, platform, CUDA."""

from __future__ import annotations

from typing import Tuple

from .entry import Cause, Entry, cufile

_LOG = "cufile.log at logging.level INFO"

DRIVER: Tuple[Entry, ...] = (
    cufile(
        1,
        "DRIVER_NOT_INITIALIZED",
        "no direct path could be set up, and compat mode is not allowed",
        Cause(
            "nvidia-fs is not loaded and the configuration or the program disallows compat mode",
            f"no /proc/driver/nvidia-fs; {_LOG}: 'failed to open /proc/driver/nvidia-fs/devcount'",
            "load nvidia-fs (modprobe nvidia-fs; if that fails, dmesg says why), or allow compat mode knowingly",
        ),
        Cause(
            "a container without the host's /dev/nvidia-fs* and /proc/driver/nvidia-fs",
            "the module is loaded on the host, the paths are missing inside",
            "hand the device nodes to the container",
        ),
        Cause(
            "P2PDMA was asked for and kernel, driver or GPU cannot do it",
            _LOG + ": 'Kernel does not support PCIP2PDMA', or 'pci_p2pdma not supported'",
            "a kernel with CONFIG_PCI_P2PDMA and the open driver with static BAR1, or nvidia-fs instead",
        ),
        Cause(
            "a call came before cuFileDriverOpen, or after cuFileDriverClose",
            "the program's order of calls",
            "open the driver first",
        ),
        seen="cuFileDriverOpen of 1.9.1, 1.15.1 and 1.20.0 without nvidia-fs and with compat mode disallowed",
    ),
    cufile(
        2,
        "DRIVER_INVALID_PROPS",
        "the configuration is refused, or a property has a bad value",
        Cause(
            "/etc/cufile.json, or the file in CUFILE_ENV_PATH_JSON, is not JSON, or has a bad value",
            "the library's output: 'failed to load config', and the line before it names the key",
            "correct the file: gdsdeploy cufile check FILE --libcufile VERSION says every problem at once",
        ),
        Cause(
            "a mount or device of the denylist, or logging.dir, does not exist",
            "the library's output: 'found invalid …'",
            "remove the entry, or make the folder",
        ),
        Cause(
            "max_direct_io_size_kb below 1024 without per_buffer_cache_size_kb, valid up to 1.11 and fatal from 1.13",
            "the file worked before libcufile was upgraded",
            "set both keys",
        ),
        seen="cuFileDriverOpen of 1.19.1 and 1.20.0 with broken JSON; up to 1.18.1 the same returns -22",
    ),
    cufile(
        3,
        "DRIVER_UNSUPPORTED_LIMIT",
        "a size or count is outside of what this release takes",
        Cause(
            "cuFileDriverSet… was called with a value outside of its range, or not a multiple of what it must be",
            "the arguments, beside the ranges of the same property in cufile.json",
            "use a value that the release takes",
        ),
    ),
    cufile(
        4,
        "DRIVER_VERSION_MISMATCH",
        "the loaded nvidia-fs is of another major version than libcufile expects",
        Cause(
            "nvidia-fs and libcufile come from releases that do not go together",
            "/proc/driver/nvidia-fs/version beside 'nvidia_fs minimum version' of gdscheck -p",
            "install both from one release, then reload nvidia-fs",
        ),
        seen="gdscheck of libcufile 1.15.1 and 1.20.0 with an nvidia-fs that calls itself 3.1; an older minor version "
        "than the minimum is accepted without a word",
    ),
    cufile(
        5,
        "DRIVER_VERSION_READ_ERROR",
        "nvidia-fs is there, but its version could not be read",
        Cause(
            "/proc/driver/nvidia-fs/version is unreadable, e.g. in a container with a masked /proc",
            "cat /proc/driver/nvidia-fs/version as the same user, in the same container",
            "make it readable there",
        ),
    ),
    cufile(
        6,
        "DRIVER_CLOSING",
        "the driver is being closed",
        Cause(
            "one thread closes the driver while another still calls it",
            "the program: cuFileDriverClose, or an exit handler, beside running I/O",
            "finish all I/O before closing",
        ),
    ),
    cufile(
        7,
        "PLATFORM_NOT_SUPPORTED",
        "no GPU, or no supported one, was found on this machine",
        Cause(
            "CUDA sees no GPU",
            "nvidia-smi -L; gdscheck -p: 'No cuda devices available'",
            "load the driver, or give the container its GPUs",
        ),
        Cause(
            "every GPU is older than what this release supports (compute capability 6)",
            "gdscheck -p: 'Model Not Supported', 'does not have supported architecture'",
            "an older libcufile, or a newer GPU",
        ),
        Cause(
            "the machine is a virtual one or of an architecture that the library refuses",
            _LOG + ": 'Platform has been denied for GDS', 'Platform CPU Architecture not Supported!'",
            "run on a supported machine, or in compat mode",
        ),
        seen="gdscheck of 1.4.0 to 1.20.0 without a GPU",
    ),
    cufile(
        9,
        "DEVICE_NOT_SUPPORTED",
        "this GPU cannot take part",
        Cause(
            "the GPU's class has no GPUDirect RDMA (GeForce), or its BAR1 is too small or absent",
            "gdscheck -p: 'Model Not Supported', 'NO GDS SUPPORT - Reason: …'; bar size (MiB)",
            "use a data-centre GPU; switch on large BARs (Above 4G Decoding) in the firmware",
        ),
        Cause(
            "CUFILE_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES leaves this GPU out",
            "the program's environment",
            "name the GPU there",
        ),
    ),
    cufile(
        10,
        "NVFS_DRIVER_ERROR",
        "an ioctl of nvidia-fs failed",
        Cause(
            "nvidia-fs was built against another driver than the one that runs",
            "dmesg: 'disagrees about version of symbol nvidia_p2p_…'; gdsdeploy validate: nvidia-fs.symbol-versions",
            "build it anew against the running driver, and reload it",
        ),
        Cause(
            "GPU memory could not be pinned (BAR1 is full, or nvidia-fs before 2.26.6 on a newer kernel)",
            "/proc/driver/nvidia-fs/stats: err of Bar1-map rises; nvidia-smi -q: BAR1 used",
            "free BAR1, lower max_device_pinned_mem_size_kb, or take a newer nvidia-fs",
        ),
    ),
    cufile(
        11,
        "CUDA_DRIVER_ERROR",
        "CUDA itself failed; its own code stands in cu_err (gdsdeploy explain --error cuda:N)",
        Cause(
            "no GPU is visible (cu_err 100)",
            "nvidia-smi -L in the same container and as the same user",
            "load the driver, or hand in the GPUs",
        ),
        Cause(
            "the fabric manager does not run, or is not of the driver's version (cu_err 802)",
            "systemctl status nvidia-fabricmanager",
            "install the version of the driver and start it",
        ),
        Cause(
            "libcuda and the loaded driver are of different releases (cu_err 803)",
            "/proc/driver/nvidia/version beside the package versions",
            "lock them as one set and reboot",
        ),
        seen="cuFileDriverOpen of 1.13.1 and 1.15.1 with Debian's libcuda 550.163.01 and no GPU: cu_err 100",
    ),
    cufile(
        26,
        "DRIVER_ALREADY_OPEN",
        "the driver is open already",
        Cause(
            "cuFileDriverOpen or cuFileDriverSet… came after another part of the program had opened the driver",
            "the program and its libraries: the first cuFile call opens it implicitly",
            "open once; set properties before",
        ),
    ),
    cufile(
        29,
        "DEVICE_NOT_FOUND",
        "the GPU of a call is not among those that cuFile found when it opened",
        Cause(
            "the current CUDA device or context is not one of the visible GPUs",
            "CUDA_VISIBLE_DEVICES, and cuCtxGetDevice before the call",
            "make the context current, and open the driver after choosing devices",
        ),
    ),
    cufile(
        30,
        "INTERNAL_ERROR",
        "something failed inside the library that has no code of its own",
        Cause(
            "the log has the reason",
            "ERROR lines of cufile.log before the call returned",
            "read them; at logging.level TRACE every step is there",
        ),
    ),
    cufile(
        33,
        "NVFS_SETUP_ERROR",
        "the library could not set itself up",
        Cause(
            "libcuda.so.1 cannot be loaded",
            "the library's output: 'dlopen error libcuda.so.1', 'missing cuda symbols while dynamic loading'",
            "install the driver's userland (Debian: libcuda1), or mount it into the container",
        ),
        Cause(
            "libcuda is older than this libcufile needs (CUDA 11.1 at least)",
            "the library's output: 'Cuda version not Supported'",
            "upgrade the driver",
        ),
        Cause(
            "nvidia-fs has fewer device nodes than it announces, or they cannot be opened",
            "ls -l /dev/nvidia-fs* beside /proc/driver/nvidia-fs/devcount",
            "reload nvidia-fs, or hand all nodes to the container",
        ),
        seen="cuFileDriverOpen of 1.4.0 to 1.15.1 without libcuda.so.1; from 1.16 it succeeds, for host memory",
    ),
    cufile(
        48,
        "NVFS_INTERNAL_DRIVER_ERROR",
        "nvidia-fs reported an error of its own",
        Cause(
            "a fault inside the module",
            "dmesg | grep nvidia-fs; /proc/driver/nvidia-fs/stats: Error",
            "with nvidia_fs's parameter dbg_enabled=1 it says more; then take a newer nvidia-fs",
        ),
        releases="1.15 to 1.20",
    ),
    cufile(
        50,
        "IO_MAX_ERROR",
        "no error of its own: it marks the end of the list",
        Cause(
            "the program looked up a number that is no code",
            "where the number comes from: a byte count read as a status, for example",
            "compare the sign and the call: cuFileRead returns bytes, or a negative code",
        ),
        releases="1.15 to 1.20 (up to 1.14 this name has the number 5039)",
    ),
)
