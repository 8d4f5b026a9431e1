"""The path through nvidia-fs: the module, its devices, and storage drivers that let it in."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from ..facts import HostFacts, UndecidedError, Unknown
from ..facts.unknown import if_known
from ..kmod.flavour import has_nvme_hooks
from ..paths import NVFS, NVFS_DEVICE
from ..subjects import quote, reference, storage
from ..subjects.condition import NVIDIA_FS, USABLE, Cause, Condition, condition, listed_cause, numbers, rule
from ..subjects.cufile_json import p2pdma_enabled
from ..subjects.filesystem import NETWORK, transport
from ..subjects.storage import Mount
from ..subjects.topology import iommu
from . import modules

#: Symbols of a storage driver's hooks for nvidia-fs; one of them is enough (nvfs-dma.c probes the same names).
HOOKS = {
    "nvme": ("nvme_v1_register_nvfs_dma_ops", "nvme_v2_register_nvfs_dma_ops"),
    "nvme_rdma": ("nvme_rdma_v1_register_nvfs_dma_ops",),
    "rpcrdma": ("rpcrdma_register_nvfs_dma_ops",),
    "lnet": ("lustre_v1_register_nvfs_dma_ops",),
    "beegfs": ("beegfs_v1_register_nvfs_dma_ops",),
    "mmfslinux": ("ibm_scale_v1_register_nvfs_dma_ops",),
    "scatefs": ("scatefs_register_nvfs_dma_ops",),
    "sfxvdriver": ("sfxv_v1_register_nvfs_dma_ops",),
    "nvmeib_common": ("nvmesh_v1_register_nvfs_dma_ops",),
    "scsi_mod": ("scsi_v1_register_dma_scsi_ops",),
}
REFERENCES = {
    "rpcrdma": reference.NFS,
    "lnet": reference.LUSTRE,
    "beegfs": reference.BEEGFS,
    "mmfslinux": reference.SCALE,
}
#: From this release on nvidia-fs needs version 2 of nvme's hooks, if it was built for this kernel or a newer one.
V2_NVIDIA_FS, V2_KERNEL = (2, 28, 2), (6, 17)
#: The only major version that libcufile 1.4 to 1.20 accepts; its documented minimum.
MAJOR, MINIMUM = 2, (2, 12)
#: First driver with the new layout of the page table for peers.
NEW_PAGE_TABLE = 580
WRONG_PAGE_TABLE = r"Incompatible page table version"
OTHER_PAGE_TABLE = (
    "nvidia-fs was built for another layout of the driver's page tables, so pinning GPU memory ends in an oops"
)


@rule(USABLE, 20)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """With an nvidia-fs of another major version libcufile refuses to work at all."""
    if if_known(lambda: facts.nvidia_fs.module.loaded, False):
        version = facts.nvidia_fs.module.version
        what = f"libcufile accepts nvidia-fs {MAJOR}.x only, but {version} is loaded; every cuFile call fails"
        fix = "install the nvidia-fs of the lock: gdsdeploy provision"
        evidence = quote.file(facts, "/sys/module/nvidia_fs/version")
        cause = Cause("nvidia-fs.other-major", what, fix, evidence, reference.SOFTWARE)
        yield Condition(not version or numbers(version)[:1] == (MAJOR,), cause)


@rule(NVIDIA_FS, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What this path requires of a mount, in addition to what both require."""
    if mount is None:
        return
    yield from iommu(facts, mount, needs_it_off=False)
    if mount.filesystem in NETWORK:
        yield from hooks(facts, NETWORK[mount.filesystem])
    for device in mount.devices:
        if device.kind == storage.MD:
            yield _raid_level(device)
        elif device.kind == storage.NVME:
            yield transport(device)
            yield from hooks(facts, "nvme")
        elif device.kind == storage.NVMEOF:
            yield transport(device)
            yield _no_p2pdma_attempt(facts, device)
            yield from hooks(facts, "nvme_rdma")
        elif device.kind == storage.MULTIPATH:
            yield _multipath(facts, device)


@condition
def _raid_level(device: storage.Device) -> Condition:
    level = device.md_level
    what = f"{device.name} is {level}, but nvidia-fs supports raid0 only"
    evidence = (f"/sys/dev/block/{device.number}/md/level: {level}",)
    return Condition(level == "raid0", listed_cause("storage.raid-level", evidence, what))


@condition
def _no_p2pdma_attempt(facts: HostFacts, device: storage.Device) -> Condition:
    """With P2PDMA on, libcufile tries it on a disk over fabrics, too: transfers were seen to fail with EIO.

    ai-dynamo/nixl issue 1063; with the key false the same host uses nvidia-fs.
    """
    if not p2pdma_enabled(facts):
        return Condition(True)
    what = f"P2PDMA is on, and {device.name} is NVMe over {device.transport}"
    what += ": such transfers were seen to fail with EIO"
    evidence = (*quote.setting(facts, "properties", "use_pci_p2pdma"), f"/sys/class/nvme: {device.name}")
    return Condition(Unknown(what), listed_cause("cufile.p2pdma-nvmeof", evidence, what), suspect=True)


@condition
def _multipath(facts: HostFacts, device: storage.Device) -> Condition:
    """The driver of an NVMe multipath device's paths is unknown, but some driver must have hooks."""
    names = HOOKS["nvme"] + HOOKS["nvme_rdma"]
    symbols = if_known(lambda: facts.kernel.symbols, names)
    if any(name in symbols for name in names):
        raise UndecidedError(f"{device.name} is NVMe multipath: its paths were not examined")
    what = "neither the loaded nvme nor nvme_rdma has hooks for nvidia-fs"
    fix = "install both from MLNX_OFED or DOCA for this kernel, or turn multipath off: nvme_core.multipath=N"
    return Condition(False, Cause("nvme.no-hooks", what, fix, quote.symbols(facts, names), reference.NVME))


@rule(NVIDIA_FS, 10)
def module(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """nvidia-fs must be loaded, accessible, and compatible with driver and libcufile."""
    loaded = Condition(
        lambda: facts.nvidia_fs.module.loaded, lambda: modules.not_loaded(facts, modules.nvidia_fs(facts))
    )
    yield loaded
    if loaded.holds is not False:
        yield from _devices(facts)
        yield _page_table(facts)
        yield _driver_of_build(facts)
        yield _mapped(facts)
        yield _minimum(facts)


def _devices(facts: HostFacts) -> Iterator[Condition]:
    container = if_known(lambda: facts.environment.container, None)
    what, missing, denied = "there are no /dev/nvidia-fs* devices", "load the module again: modprobe -r nvidia-fs", ""
    if container:
        what += f" (this is {container})"
        missing = denied = f"start the container with the host's devices: --device {NVFS_DEVICE}, and so on for each"
    else:
        missing += " && modprobe nvidia-fs; then see the check nvidia-fs.devices"
        denied = "let all users open it: chmod 0666 /dev/nvidia-fs*; then look at the udev rules and the SELinux log"
    cause = Cause("nvidia-fs.no-devices", what, missing, ("/dev: no nvidia-fs*",), reference.INSTALL)
    present = Condition(lambda: bool(facts.nvidia_fs.devices), cause)
    yield present
    if present.holds is True:
        yield _opens(facts, denied)


@condition
def _opens(facts: HostFacts, fix: str) -> Condition:
    error = facts.nvidia_fs.opens
    what, evidence = f"{NVFS_DEVICE} can't be opened: {error}", (f"{NVFS_DEVICE}: {error}",)
    cause = Cause("nvidia-fs.device-denied", what, fix, evidence, reference.INSTALL)
    return Condition(error in ("ok", None), cause)


@condition
def _page_table(facts: HostFacts) -> Condition:
    """Driver 580 changed the layout of its page table for peers: modules built before fail to pin memory."""
    log = quote.logged(facts, WRONG_PAGE_TABLE)
    return Condition(not log, listed_cause("nvidia-fs.other-page-table", log, OTHER_PAGE_TABLE))


@condition
def _driver_of_build(facts: HostFacts) -> Condition:
    running = if_known(lambda: facts.driver.version, None)
    if running is None or numbers(running)[:1] < (NEW_PAGE_TABLE,):
        return Condition(True)
    file = facts.nvidia_fs.module.file
    built = file.provenance.get("driver", "") if file is not None else ""
    what = f"{OTHER_PAGE_TABLE}: it was built against driver {built}, but {running} runs"
    evidence = (f"modinfo nvidia-fs: gdsdeploy_driver={built}",)
    older = bool(built) and numbers(built)[:1] < (NEW_PAGE_TABLE,)
    return Condition(not older, listed_cause("nvidia-fs.other-page-table", evidence, what))


@condition
def _mapped(facts: HostFacts) -> Condition:
    counts = facts.nvidia_fs.mapped
    what = "every mapping of GPU memory through BAR1 has failed so far"
    evidence = quote.file(facts, NVFS + "/stats", r"^Bar1-map")
    fix = "find the reason: dmesg | grep -i nvidia-fs; on some newer kernels only nvidia-fs 2.26.6 or newer works"
    cause = Cause("nvidia-fs.no-mapping", what, fix, evidence, reference.STATISTICS)
    return Condition(counts is None or counts[0] > 0 or counts[1] == 0, cause)


@condition
def _minimum(facts: HostFacts) -> Condition:
    """Releases below libcufile's minimum are not refused (seen with 2.3), so their behaviour is unknown."""
    logged = if_known(lambda: facts.gdscheck.logged, None)
    minimum = (numbers(logged.nvidia_fs_minimum) if logged else ()) or MINIMUM
    version = facts.nvidia_fs.module.version
    if not version or numbers(version) >= minimum:
        return Condition(True)
    what = "nvidia-fs {} is older than {}, libcufile's minimum".format(version, ".".join(map(str, minimum)))
    evidence = quote.file(facts, "/sys/module/nvidia_fs/version")
    fix = "install the nvidia-fs that belongs to this libcufile: gdsdeploy lock, then gdsdeploy provision"
    cause = Cause("nvidia-fs.below-minimum", what, fix, evidence, reference.SOFTWARE)
    return Condition(Unknown(what), cause, suspect=True)


def hooks(facts: HostFacts, stack_name: str) -> Iterator[Condition]:
    """A storage driver must have hooks for nvidia-fs, in the version that this nvidia-fs needs."""
    names = HOOKS[stack_name]
    offered = Condition(
        lambda: any(name in facts.kernel.symbols for name in names), lambda: _no_hooks(facts, stack_name)
    )
    yield offered
    if offered.holds is True:
        yield _gpl(facts, stack_name, names)
        if stack_name == "nvme":
            yield _version(facts, names)
        yield _registered(facts, stack_name)


def _no_hooks(facts: HostFacts, stack_name: str) -> Cause:
    fix = f"install {stack_name} from MLNX_OFED or DOCA for this kernel, "
    if stack_name in ("nvme", "nvme_rdma"):
        fix += "run a linux-nvidia kernel of Ubuntu, which has them, or use P2PDMA mode on a kernel that has it"
    else:
        fix += "or the filesystem vendor's client that has the hooks"
    if stack_name == "nvme" and if_known(lambda: has_nvme_hooks(facts.kernel.release), False):
        fix = "use this kernel's own nvme, which has them: remove the one in its place (package mlnx-nvme-dkms)"
    what = f"the loaded {stack_name} has no hooks for nvidia-fs"
    section = REFERENCES.get(stack_name, reference.NVME)
    cause = Cause(stack_name + ".no-hooks", what, fix, quote.symbols(facts, HOOKS[stack_name]), section)
    return (_ofed_unused(facts, stack_name) if stack_name in ("nvme", "nvme_rdma") else None) or cause


def _ofed_unused(facts: HostFacts, stack_name: str) -> Optional[Cause]:
    """OFED's modules use its mlx_compat; an nvme that doesn't is the kernel's own, perhaps from the initramfs."""
    lines = quote.file(facts, "/proc/modules", r"^mlx_compat ")
    words = lines[0].split()
    users = words[4].split(",") if len(words) > 4 and words[1] == "mlx_compat" else []
    if not users or stack_name in users or "nvme_core" in users:
        return None
    what = f"OFED is loaded, but {stack_name} is the kernel's own: it doesn't use mlx_compat, and has no hooks"
    return listed_cause("nvme.ofed-unused", lines, what)


@condition
def _gpl(facts: HostFacts, stack_name: str, names: Tuple[str, ...]) -> Condition:
    """Kernels from 6.6 on, and stable ones from September 2023, hand symbols that aren't GPL-only to no GPL module."""
    lines = quote.logged(facts, "non-GPLONLY symbol (?:{})".format("|".join(names)))
    what = f"{stack_name} exports its hooks for nvidia-fs without GPL, and this kernel refuses to hand them out"
    return Condition(not lines, listed_cause("storage.hooks-not-gpl", lines, what))


@condition
def _version(facts: HostFacts, names: Tuple[str, ...]) -> Condition:
    symbols = facts.kernel.symbols
    if all(name in symbols for name in names):
        return Condition(True)
    needed = needed_version(facts)
    what = f"nvme's hooks have another version than {needed}, which this nvidia-fs needs"
    cause = listed_cause("nvme.other-hooks", quote.symbols(facts, names), what)
    return Condition(names[needed - 1] in symbols, cause)


def needed_version(facts: HostFacts) -> int:
    """1 or 2: the version of nvme's hooks that the loaded nvidia-fs looks for.  Raises UndecidedError."""
    release, version = facts.kernel.release, facts.nvidia_fs.module.version
    if numbers(release) < V2_KERNEL:
        return 1
    if not numbers(version, 3):
        raise UndecidedError("the version of the loaded nvidia-fs is unknown")
    return 2 if numbers(version, 3) >= V2_NVIDIA_FS else 1


@condition
def _registered(facts: HostFacts, stack_name: str) -> Condition:
    """The hooks that nvidia-fs uses; it shows them while its device is open, as it was during collection."""
    registered = facts.nvidia_fs.registered if if_known(lambda: facts.nvidia_fs.opens, "") == "ok" else None
    if registered is None:
        return Condition(True)
    what = f"nvidia-fs doesn't use the hooks that {stack_name} offers"
    evidence = quote.file(facts, NVFS + "/modules", r".")
    fix = f"stop the programs that hold {NVFS_DEVICE[:-1]}* open, then load nvidia-fs again, after {stack_name}"
    cause = Cause(stack_name + ".not-registered", what, fix, evidence, reference.NVME)
    return Condition(stack_name in registered, cause)
