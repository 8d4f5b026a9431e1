"""The path through nvidia-fs: the module, its devices, and storage drivers that let it in."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown, storage
from ..facts.modules import ModuleFile
from ..facts.storage import Mount
from ..facts.unknown import test
from ..gdscheck import Report
from ..paths import NVFS, NVFS_DEVICE
from . import gpus, modules, quote, reference
from .blocks import stack
from .cause import Cause, Condition, numbers
from .filesystem import NETWORK

#: Symbols by which a storage stack lets nvidia-fs in; one of them is enough (nvfs-dma.c probes the same names).
HOOKS = {
    "nvme": ("nvme_v1_register_nvfs_dma_ops", "nvme_v2_register_nvfs_dma_ops"),
    "nvme_rdma": ("nvme_rdma_v1_register_nvfs_dma_ops",),
    "rpcrdma": ("rpcrdma_register_nvfs_dma_ops",),
    "lnet": ("lustre_v1_register_nvfs_dma_ops",),
    "beegfs": ("beegfs_v1_register_nvfs_dma_ops",),
    "mmfslinux": ("ibm_scale_v1_register_nvfs_dma_ops",),
    "scatefs": ("scatefs_register_nvfs_dma_ops",),
}
REFERENCES = {
    "rpcrdma": reference.NFS,
    "lnet": reference.LUSTRE,
    "beegfs": reference.BEEGFS,
    "mmfslinux": reference.SCALE,
}
#: nvidia-fs asks nvme for hooks of version 2 from this release on, if it was built for this kernel or a newer one.
V2_NVIDIA_FS, V2_KERNEL = (2, 28, 2), (6, 17)
#: The only major version that libcufile 1.4 to 1.20 takes; the minor one that it calls the minimum.
MAJOR, MINIMUM = 2, (2, 12)
#: First driver whose page table for peers has another layout than before.
NEW_PAGE_TABLE = 580
WRONG_PAGE_TABLE = r"Incompatible page table version"


def usable(facts: HostFacts) -> Iterator[Condition]:
    """With an nvidia-fs of another major version libcufile refuses to work at all."""
    if facts.nvidia_fs.module.loaded is True:
        version = facts.nvidia_fs.module.version
        what = f"libcufile takes nvidia-fs {MAJOR}.x only, and {version} is loaded"
        evidence = quote.file(facts, "/sys/module/nvidia_fs/version")
        cause = Cause("nvidia-fs.other-major", what, "install the nvidia-fs of the lock", evidence, reference.SOFTWARE)
        yield Condition(test(version, lambda found: not found or numbers(found)[:1] == (MAJOR,)), cause)


def direct(facts: HostFacts, mount: Mount) -> Iterator[Condition]:
    """What this path needs beyond what both need."""
    yield from module(facts)
    yield from gpus.iommu(facts, mount, needs_it_off=False)
    if mount.filesystem in NETWORK:
        yield from hooks(facts, NETWORK[mount.filesystem])
    for item in stack(mount):
        if item.kind == storage.MD:
            what = f"{item.name} is {item.md_level}, and nvidia-fs takes raid0 only"
            evidence = (f"/sys/dev/block/{item.number}/md/level: {item.md_level}",)
            cause = Cause("storage.raid-level", what, "use RAID 0 or single disks", evidence, reference.LIMITATIONS)
            yield Condition(test(item.md_level, lambda level: level == "raid0"), cause)
        elif item.kind == storage.NVME:
            yield from hooks(facts, "nvme")
        elif item.kind == storage.NVMEOF:
            what = f"{item.name} is NVMe over {item.transport}"
            evidence = (f"/sys/class/nvme: {item.name} by {item.transport}",)
            cause = Cause("nvmeof.not-rdma", what, "connect it over RDMA", evidence, reference.NVME)
            yield Condition(test(item.transport, lambda name: name == "rdma"), cause)
            yield from hooks(facts, "nvme_rdma")
        elif item.kind == storage.MULTIPATH:
            yield from _paths(facts, item)


def _paths(facts: HostFacts, item: storage.Device) -> Iterator[Condition]:
    """NVMe multipath: which driver its paths go through is not known, but some driver has to have hooks."""
    names = HOOKS["nvme"] + HOOKS["nvme_rdma"]
    what = "the loaded nvme has no hooks for nvidia-fs, and neither has nvme_rdma"
    fix = "install both of MLNX_OFED or DOCA for this kernel, or switch multipath off: nvme_core.multipath=N"
    cause = Cause("nvme.no-hooks", what, fix, quote.symbols(facts, names), reference.NVME)
    judged = Unknown(f"{item.name} is NVMe multipath: its paths were not judged")
    symbols = facts.kernel.symbols
    none = not isinstance(symbols, Unknown) and not any(name in symbols for name in names)
    yield Condition(False if none else judged, cause)


def module(facts: HostFacts) -> Iterator[Condition]:
    """nvidia-fs loaded, usable from here, and of an age with driver and libcufile."""
    loaded = facts.nvidia_fs.module.loaded
    if loaded is False:
        yield Condition(False, modules.not_loaded(facts, modules.nvidia_fs(facts)))
        return
    yield Condition(loaded)
    yield from _devices(facts)
    yield from _page_table(facts)
    yield _mapped(facts)
    yield _minimum(facts)


def _devices(facts: HostFacts) -> Iterator[Condition]:
    container = facts.environment.container
    fix = "see the check nvidia-fs.devices"
    if isinstance(container, str):
        fix = f"give the container the host's devices: --device {NVFS_DEVICE} and as many more as there are"
    what = "there are no /dev/nvidia-fs* devices" + (f" (this is {container})" * isinstance(container, str))
    evidence = ("/dev: no nvidia-fs*",)
    cause = Cause("nvidia-fs.no-devices", what, fix, evidence, reference.INSTALL)
    there = test(facts.nvidia_fs.devices, bool)
    yield Condition(there, cause)
    if there is True:
        error = facts.nvidia_fs.opens
        what = f"{NVFS_DEVICE} cannot be opened: {error}"
        evidence = (f"{NVFS_DEVICE}: {error}",)
        if not isinstance(container, str):
            fix = "let everybody open it: chmod 0666 /dev/nvidia-fs*; and look at the udev rules and the SELinux log"
        cause = Cause("nvidia-fs.device-denied", what, fix, evidence, reference.INSTALL)
        yield Condition(test(error, lambda found: found in ("ok", None)), cause)


def _page_table(facts: HostFacts) -> Iterator[Condition]:
    """Driver 580 changed the layout of its page table for peers: a module built before fails when it pins."""
    fix = "build nvidia-fs again, against the driver that runs: provision the host again and let it reboot"
    ident = "nvidia-fs.other-page-table"
    said = quote.messages(facts, WRONG_PAGE_TABLE)
    what = "nvidia-fs was built for another layout of the driver's page tables, and cannot pin GPU memory"
    yield Condition(test(facts.kernel.messages, lambda _: not said), Cause(ident, what, fix, said, reference.INSTALL))
    file, running = facts.nvidia_fs.module.file, facts.driver.version
    if isinstance(running, str) and numbers(running)[:1] >= (NEW_PAGE_TABLE,):
        built = file.provenance.get("driver", "") if isinstance(file, ModuleFile) else ""
        what += f": built against driver {built}, {running} runs"
        evidence = (f"modinfo nvidia-fs: gdsdeploy_driver={built}",)
        older = bool(built) and numbers(built)[:1] < (NEW_PAGE_TABLE,)
        cause = Cause(ident, what, fix, evidence, reference.INSTALL)
        yield Condition(file if isinstance(file, Unknown) else not older, cause)


def _mapped(facts: HostFacts) -> Condition:
    mapped = facts.nvidia_fs.mapped
    what = "every mapping of GPU memory through BAR1 has failed so far"
    evidence = quote.file(facts, NVFS + "/stats", r"^Bar1-map")
    fix = "read why: dmesg | grep -i nvidia-fs; nvidia-fs 2.26.6 or newer works on kernels where older ones fail so"
    cause = Cause("nvidia-fs.no-mapping", what, fix, evidence, reference.STATISTICS)
    return Condition(test(mapped, lambda found: found is None or found[0] > 0 or found[1] == 0), cause)


def _minimum(facts: HostFacts) -> Condition:
    """Releases below libcufile's minimum are not refused (seen with 2.3), so it is not known what they do."""
    logged = facts.gdscheck.logged
    said = logged.nvidia_fs_minimum if isinstance(logged, Report) else ""
    minimum = numbers(said) or MINIMUM
    version = facts.nvidia_fs.module.version
    if not isinstance(version, str) or not version or numbers(version) >= minimum:
        return Condition(version if isinstance(version, Unknown) else True)
    what = "nvidia-fs {} is older than {}, which libcufile calls the minimum".format(
        version, ".".join(str(item) for item in minimum)
    )
    evidence = quote.file(facts, "/sys/module/nvidia_fs/version")
    fix = "install the nvidia-fs that goes with this libcufile: lock and provision again"
    cause = Cause("nvidia-fs.below-minimum", what, fix, evidence, reference.SOFTWARE)
    return Condition(Unknown(what), cause, suspect=True)


def hooks(facts: HostFacts, stack_name: str) -> Iterator[Condition]:
    """A storage stack that lets nvidia-fs in, in the version that this nvidia-fs asks for."""
    symbols = facts.kernel.symbols
    names = HOOKS[stack_name]
    fix = "install the {} of MLNX_OFED or DOCA for this kernel, or use P2PDMA mode on a kernel that has it"
    if stack_name not in ("nvme", "nvme_rdma"):
        fix = "install the {} that comes with hooks for nvidia-fs: of MLNX_OFED or DOCA, or of the filesystem's vendor"
    what = f"the loaded {stack_name} has no hooks for nvidia-fs"
    kept = REFERENCES.get(stack_name, reference.NVME)
    cause = Cause(stack_name + ".no-hooks", what, fix.format(stack_name), quote.symbols(facts, names), kept)
    holds = test(symbols, lambda found: any(name in found for name in names))
    yield Condition(holds, cause)
    if holds is True:
        if stack_name == "nvme":
            yield _version(facts, names)
        yield _registered(facts, stack_name)


def _version(facts: HostFacts, names: Tuple[str, ...]) -> Condition:
    wanted = wanted_version(facts)
    what = f"nvme has hooks for nvidia-fs of another version than {wanted}, which this nvidia-fs asks for"
    fix = "install the nvme of a DOCA release that fits this nvidia-fs and kernel (DOCA 26.04 has both), or P2PDMA mode"
    cause = Cause("nvme.other-hooks", what, fix, quote.symbols(facts, names), reference.LIMITATIONS)
    symbols = facts.kernel.symbols
    if isinstance(symbols, Unknown) or all(name in symbols for name in names):
        return Condition(symbols if isinstance(symbols, Unknown) else True)
    return Condition(test(wanted, lambda number: names[number - 1] in symbols), cause)


def wanted_version(facts: HostFacts) -> Maybe[int]:
    """1 or 2: the version of nvme's hooks that the loaded nvidia-fs looks for."""
    release, version = facts.kernel.release, facts.nvidia_fs.module.version
    if isinstance(release, Unknown) or isinstance(version, Unknown):
        return release if isinstance(release, Unknown) else Unknown(str(version))
    if numbers(release) < V2_KERNEL:
        return 1
    if not numbers(version, 3):
        return Unknown("the version of the loaded nvidia-fs is not known")
    return 2 if numbers(version, 3) >= V2_NVIDIA_FS else 1


def _registered(facts: HostFacts, stack_name: str) -> Condition:
    """What nvidia-fs took, which it shows while its device is held open, as it was when this was read."""
    registered: Optional[Maybe[Tuple[str, ...]]] = facts.nvidia_fs.registered
    if facts.nvidia_fs.opens != "ok" or registered is None:
        return Condition(True)
    what = f"nvidia-fs did not take the hooks that {stack_name} offers"
    evidence = quote.file(facts, NVFS + "/modules", r".")
    fix = f"end the programs that hold {NVFS_DEVICE[:-1]}* open and load nvidia-fs again, after {stack_name}"
    cause = Cause(stack_name + ".not-registered", what, fix, evidence, reference.NVME)
    return Condition(test(registered, lambda found: stack_name in found), cause)
