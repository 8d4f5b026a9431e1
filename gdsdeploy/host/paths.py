"""Where the collectors record what the facts look up: paths, and names of program runs.  One place, so none drifts."""

from __future__ import annotations

import re

#: gdsdeploy's own folders, by the folder that they are in; provision makes them before it changes anything else.
OWN_NAME, OWN_PARENTS = "gdsdeploy", ("/etc", "/usr/lib", "/var/lib")
#: Where provision leaves the expectation on a host.
EXPECTATION = "/etc/gdsdeploy/expectation.json"
#: This program, where provision and the packages put it.
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
#: Most seconds that an answer of its verb serve takes.
SERVE_SECONDS = 7200
#: The audit trail: a line for each run of the host program as root.
TRAIL = "/var/log/gdsdeploy/audit.jsonl"
#: There while the controller works in the root of an image: the kernel that runs isn't the image's.
IMAGE = "/run/gdsdeploy-image"
EFI = "/sys/firmware/efi"
#: Variables of the UEFI specification, and of shim.
SECURE_BOOT = EFI + "/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SETUP_MODE = EFI + "/efivars/SetupMode-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_STATE = EFI + "/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
NVIDIA = "/proc/driver/nvidia"
NVFS = "/proc/driver/nvidia-fs"
#: The addresses of the hosts in an IMEX domain.
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
NVFS_DEVICE = "/dev/nvidia-fs0"
PEERS = "/sys/kernel/mm/memory_peers"
#: Modules that use the RDMA core: one that registered a client there is among them.
HOLDERS = ("/sys/module/ib_uverbs/holders", "/sys/module/ib_core/holders")
#: The service of nv_peer_mem, the module before nvidia-peermem: a script or a unit.
LEGACY_SERVICE = "nv_peer_mem*"
SERVICE_FOLDERS = ("/etc/init.d", "/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
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
#: Marks of container managers.  The first two hold the manager's name: systemd in a container writes one, and
#: systemd-nspawn the other.  Then Docker, Podman or CRI-O, and Apptainer or Singularity.
CONTAINER_FILES = (
    "/run/systemd/container",
    "/run/host/container-manager",
    "/.dockerenv",
    "/run/.containerenv",
    "/.singularity.d/runscript",
)
CGROUP = "/proc/1/cgroup"
#: Where a host gives variables to programs: all of them, or those of a login or a service.
VARIABLE_FILES = ("/etc/environment", "/etc/profile", "/etc/security/pam_env.conf", "/etc/systemd/system.conf")
VARIABLE_FOLDERS = ("/etc/profile.d", "/etc/environment.d", "/etc/systemd/system.conf.d")
#: Variables in every container of a manager.
VARIABLE_NAMES = ("KUBERNETES_SERVICE_HOST", "APPTAINER_NAME", "SINGULARITY_NAME")
#: Beginning of the variables in every container of Enroot.
ENROOT = "ENROOT_"
#: The boot partition, and the EFI system partition at its usual places.
PARTITIONS = ("/boot", "/efi", "/boot/efi")
#: Folders of unified kernel images, and of the entries of the Boot Loader Specification; and the lines in these that
#: decide about arguments.
UNIFIED_FOLDERS = tuple(f"{partition}/EFI/Linux" for partition in PARTITIONS)
ENTRY_FOLDERS = tuple(f"{partition}/loader/entries" for partition in PARTITIONS)
ENTRY_LINES = r"^(title|linux|version|options)[ \t]"
GRUB_FILES = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg")
#: The menu's script on the RHEL family: of EL 9 and newer, then as links, of which the EFI system partition has EL 8's.
GRUB2_FILES = ("/boot/grub2/grub.cfg", "/etc/grub2-efi.cfg", "/etc/grub2.cfg")
GRUB_ENVIRONMENTS = ("/boot/grub/grubenv", "/boot/grub2/grubenv")
PCI = "/sys/bus/pci/devices"
#: NUMA nodes.
NODES = "/sys/devices/system/node"
INTERFACES = "/sys/class/net"
MOUNTINFO = "/proc/self/mountinfo"
FSTAB = "/etc/fstab"
BTRFS = "/sys/fs/btrfs"
#: Where libcufile looks first, in every release (seen in 1.4.0 to 1.20.0).
CUFILE = "/etc/cufile.json"
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
LIBRARY_PATTERN = "libcufile.so*"
SOURCES = "/usr/src"
#: Where DKMS builds.
DKMS = "/var/lib/dkms"
#: What DKMS reads after the packages' own settings.
DKMS_RECIPES = "/etc/dkms/nvidia*.conf"
#: DKMS's settings, and files that it reads after them, by name.
DKMS_SETTINGS, DKMS_FRAGMENTS = "/etc/dkms/framework.conf", "/etc/dkms/framework.conf.d"
#: Where the kernel looks for firmware: first in the folder that this parameter names.
FIRMWARE_PATH = "/sys/module/firmware_class/parameters/path"
FIRMWARE = "/lib/firmware"
#: Names of program runs.
GDSCHECK = "gdscheck"
#: What the driver says that each GPU needs.
RECOVERY = "nvidia-smi-recovery"
#: How far each GPU is with its NVLink fabric.
FABRIC_STATES = "nvidia-smi-fabric"
#: The table of links between GPUs, and the GPUs of its rows in order; each name is also the command.
LINK_TABLE = "nvidia-smi topo -m"
GPU_ORDER = "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader"
CUFILE_OPEN = "cufile-open"
CUFILE_CONTROL = "cufile-open-control"
#: What programs ask the loader for; also the key of the listing of such files, where no program looks for it.
CUFILE_SONAME = "libcufile.so.0"
#: A read through cuFile with compat mode disallowed, and one with it allowed.
PROOF = "cufile-proof"
PROOF_COMPAT = "cufile-proof-compat"
#: Registrations of GPU memory with RDMA adapters.
REGISTRATION = "rdma-registration"
#: The record of running programs that have loaded libcufile.
PROCESSES = "libcufile"
#: Where package managers have their repositories, and dnf the variables in their addresses.
APT_SOURCES, APT_PARTS = "/etc/apt/sources.list", "/etc/apt/sources.list.d"
DNF_PARTS, DNF_VARIABLES = "/etc/yum.repos.d", "/etc/dnf/vars"
MODPROBE = "modprobe:"
DMSETUP = "dmsetup-table"
#: The default layout of new files on a Lustre mount, whose mount point follows.
LFS = "lfs-getstripe:"
#: Parameters of Lustre's clients of object servers.
LUSTRE_OSC = "/sys/fs/lustre/osc"
ZFS_VERSION = "/sys/module/zfs/version"

#: RDMA devices.
INFINIBAND = "/sys/class/infiniband"

#: Settings of dnf for all repositories.
DNF_CONF = "/etc/dnf/dnf.conf"
#: apt's preferences: the file first, then those of the folder by name (apt-pkg's BuildPolicy).
APT_PREFERENCES, PREFERENCE_PARTS = "/etc/apt/preferences", "/etc/apt/preferences.d"
VERSIONLOCKS = ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list")
#: The names of packages that gdsdeploy holds.
HOLDS_RECORD = "/var/lib/gdsdeploy/held"
#: Names in DKMS of the stack's packages.
DKMS_STACK = re.compile(r"nvidia|nv_peer_mem")
#: The program that the driver's run file leaves for its own removal: folder and name.
RUNFILE_PROGRAM = ("/usr/bin", "nvidia-uninstall")
INSTALLER_LOG = "/var/log/nvidia-installer.log"
#: A unit that unpacks the driver's modules at each boot, and where units are.
MODULE_LOADER = "nvidia-kmod-load.service"
LOADER_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system")
#: Where a container with the driver shows its root folder.
DRIVER_ROOT = "/run/nvidia/driver"
#: Addresses and names of repositories that have a driver.
DRIVER_REPOSITORIES = (
    r"developer\.download\.nvidia\.com/compute/cuda/(?:preview/)?repos|packages\.nvidia\.com|repo\.download\.nvidia\.com/baseos"
    r"|amazonlinux-nvidia|graphics-drivers/ppa|rpmfusion.*nonfree|negativo17\.org"
)
#: The name of the run that tells what packages know about the content of cufile.json.
CUFILE_RECORDS = "rpm-cufile"
#: The file of the watch service's metrics, and its sums, which only root reads.
WATCH_METRICS = "gdsdeploy-watch.prom"
WATCH_STATE = "/run/gdsdeploy/watch.json"


def parameter_path(key: str) -> str:
    """The file in sysfs of the parameter MODULE.NAME; empty for any other text."""
    match = re.match(r"([A-Za-z0-9][\w-]*)\.(\w+)\Z", key)
    return f"/sys/module/{match.group(1).replace('-', '_')}/parameters/{match.group(2)}" if match else ""
