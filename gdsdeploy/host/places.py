"""Where the collectors record what the facts look up: paths, and names of program runs.  One place, so none drifts."""

from __future__ import annotations

EFI = "/sys/firmware/efi"
SECURE_BOOT = EFI + "/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
NVIDIA = "/proc/driver/nvidia"
NVFS = "/proc/driver/nvidia-fs"
PEERS = "/sys/kernel/mm/memory_peers"
BUILD_ID = "/notes/.note.gnu.build-id"
#: modules-load.d(5) and modprobe.d(5), strongest first.
LOAD_FOLDERS = (
    "/etc/modules-load.d",
    "/run/modules-load.d",
    "/usr/local/lib/modules-load.d",
    "/usr/lib/modules-load.d",
)
PROBE_FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
GRUB_FILES = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg")
GRUB_ENVIRONMENTS = ("/boot/grub/grubenv", "/boot/grub2/grubenv")
PCI = "/sys/bus/pci/devices"
MOUNTINFO = "/proc/self/mountinfo"
#: Where libcufile looks first, in every release (seen in 1.4.0 to 1.20.0).
CUFILE = "/etc/cufile.json"
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
LIBRARY_PATTERN = "libcufile.so*"
SOURCES = "/usr/src"
#: Names of program runs.
GDSCHECK = "gdscheck"
CUFILE_OPEN = "cufile-open"
CUFILE_CONTROL = "cufile-open-control"
MODPROBE = "modprobe:"
