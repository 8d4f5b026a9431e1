"""nvidia-fs: the module, its devices, the storage drivers that let it in, and the direct path through it."""

from __future__ import annotations

import re
from typing import Iterator, Optional, Tuple

from ..facts.unknown import Facts, UndecidedError, fact, given, if_known
from ..kmod.flavour import has_nvme_hooks
from ..model.expectation import Expectation
from ..paths import NVFS, NVFS_DEVICE
from . import quote, storage
from .condition import NVIDIA_FS, USABLE, Cause, Condition, condition, doubted, listed_cause, numbers, required, rule
from .cufile_json import p2pdma_enabled
from .filesystem import NETWORK, transport
from .kernel import NVIDIA_FS as MODULE, check_messages
from .modules import AGAIN, P2P, ModuleFacts, check_module_file, differing, is_versioned, loaded
from .register import Answer, Steps, capitalized, check, failed, not_applicable, passed
from .topology import iommu
from .types import HostFacts, Mount


class NvidiaFsFacts(Facts):
    """nvidia-fs; the facts that it shows are None while it isn't loaded."""

    module = given(lambda document: ModuleFacts(document, "nvidia-fs"))

    @fact
    def devices(self) -> Tuple[int, ...]:
        """Numbers of the /dev/nvidia-fs* that exist."""
        matches = (re.match(r"nvidia-fs(\d{1,18})$", name) for name in self.document.names("/dev/nvidia*") or ())
        return tuple(sorted(int(match.group(1)) for match in matches if match))

    #: how many of them there should be
    device_count = given(lambda document: document.decimal(NVFS + "/devcount"))
    #: storage stacks that registered with it, by name
    registered = given(lambda document: _first_words(document.text(NVFS + "/modules")))
    #: PCI bridges with ACS enabled, which it names because they send peer traffic through the root complex
    bridges = given(lambda document: _first_words(document.text(NVFS + "/bridges")))
    #: ``ok``, or why the first device cannot be opened; None: there is none
    opens = given(lambda document: document.opens(NVFS_DEVICE))

    @fact
    def mapped(self) -> Optional[Tuple[int, int]]:
        """How often GPU memory was mapped through BAR1 and how often that failed."""
        text = self.document.text(NVFS + "/stats")
        match = re.search(r"^Bar1-map\s*: n=\d+ ok=(\d{1,18}) err=(\d{1,18})", text or "", re.MULTILINE)
        # Releases that count nothing have no such line.
        counts = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
        return None if text is None else counts


def _first_words(text: Optional[str]) -> Optional[Tuple[str, ...]]:
    return None if text is None else tuple(line.split(": ")[0].strip() for line in text.splitlines() if line.strip())


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
        yield required(
            not version or numbers(version)[:1] == (MAJOR,),
            "nvidia-fs.other-major",
            quote.file(facts, "/sys/module/nvidia_fs/version"),
            what,
        )


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
    return required(level == "raid0", "storage.raid-level", evidence, what)


@condition
def _no_p2pdma_attempt(facts: HostFacts, device: storage.Device) -> Condition:
    """With P2PDMA on, libcufile tries it on a disk over fabrics, too: transfers were seen to fail with EIO.

    ai-dynamo/nixl issue 1063; with the key false the same host uses nvidia-fs.
    """
    if not p2pdma_enabled(facts):
        return Condition(True)
    what = f"P2PDMA is on, and {device.name} is NVMe over {device.transport}: such transfers were seen to fail with EIO"
    evidence = (*quote.setting(facts, "properties", "use_pci_p2pdma"), f"/sys/class/nvme: {device.name}")
    return doubted("cufile.p2pdma-nvmeof", evidence, what)


@condition
def _multipath(facts: HostFacts, device: storage.Device) -> Condition:
    """The driver of an NVMe multipath device's paths is unknown, but some driver must have hooks."""
    names = HOOKS["nvme"] + HOOKS["nvme_rdma"]
    symbols = if_known(lambda: facts.kernel.symbols, names)
    if any(name in symbols for name in names):
        raise UndecidedError(f"{device.name} is NVMe multipath: its paths were not examined")
    what = "neither the loaded nvme nor nvme_rdma has hooks for nvidia-fs"
    fix = "install both from MLNX_OFED or DOCA for this kernel, or turn multipath off: nvme_core.multipath=N"
    return required(False, "nvme.no-hooks", quote.symbols(facts, names), what, fix)


@rule(NVIDIA_FS, 10)
def module(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """nvidia-fs must be loaded, accessible, and compatible with driver and libcufile."""
    is_loaded = loaded(facts, facts.nvidia_fs.module)
    yield is_loaded
    if is_loaded.holds is not False:
        present = _present(facts)
        yield present
        if present.holds is True:
            yield _opens(facts)
        yield _page_table(facts)
        yield _driver_of_build(facts)
        yield _mapped(facts)
        yield _minimum(facts)


#: What a container's devices need, whatever is wrong with them.
_CONTAINED = f"start the container with the host's devices: --device {NVFS_DEVICE}, and so on for each"


def _present(facts: HostFacts) -> Condition:
    container = if_known(lambda: facts.environment.container, None)
    shown, fix = (f" (this is {container})", _CONTAINED) if container else ("", "")
    return required(
        lambda: bool(facts.nvidia_fs.devices),
        "nvidia-fs.no-devices",
        ("/dev: no nvidia-fs*",),
        fix=fix,
        container=shown,
    )


def closes_stdin(facts: HostFacts) -> Iterator[Cause]:
    """A note: programs lose their standard input where the module is loaded and /dev lacks its devices."""
    if if_known(lambda: facts.nvidia_fs.module.loaded and not facts.nvidia_fs.devices, False):
        yield listed_cause("cufile.closes-stdin", ("/dev: no nvidia-fs*",))


@condition
def _opens(facts: HostFacts) -> Condition:
    error = facts.nvidia_fs.opens
    what, evidence = f"{NVFS_DEVICE} can't be opened: {error}", (f"{NVFS_DEVICE}: {error}",)
    fix = "let all users open it: chmod 0666 /dev/nvidia-fs*; then look at the udev rules and the SELinux log"
    fix = _CONTAINED if if_known(lambda: facts.environment.container, None) else fix
    return required(error in ("ok", None), "nvidia-fs.device-denied", evidence, what, fix)


@condition
def _page_table(facts: HostFacts) -> Condition:
    """Driver 580 changed the layout of its page table for peers: modules built before fail to pin memory."""
    log = quote.logged(facts, WRONG_PAGE_TABLE)
    return required(not log, "nvidia-fs.other-page-table", log, OTHER_PAGE_TABLE)


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
    return required(not older, "nvidia-fs.other-page-table", evidence, what)


@condition
def _mapped(facts: HostFacts) -> Condition:
    counts = facts.nvidia_fs.mapped
    return required(
        counts is None or counts[0] > 0 or counts[1] == 0,
        "nvidia-fs.no-mapping",
        quote.file(facts, NVFS + "/stats", r"^Bar1-map"),
    )


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
    return doubted("nvidia-fs.below-minimum", evidence, what)


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
    fix = ""
    if stack_name == "nvme" and if_known(lambda: has_nvme_hooks(facts.kernel.release), False):
        fix = "use this kernel's own nvme, which has them: remove the one in its place (package mlnx-nvme-dkms)"
    what = f"the loaded {stack_name} has no hooks for nvidia-fs"
    cause = listed_cause(stack_name + ".no-hooks", quote.symbols(facts, HOOKS[stack_name]), what, fix)
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
    return required(not lines, "storage.hooks-not-gpl", lines, what)


@condition
def _version(facts: HostFacts, names: Tuple[str, ...]) -> Condition:
    symbols = facts.kernel.symbols
    if all(name in symbols for name in names):
        return Condition(True)
    needed = needed_version(facts)
    what = f"nvme's hooks have another version than {needed}, which this nvidia-fs needs"
    return required(names[needed - 1] in symbols, "nvme.other-hooks", quote.symbols(facts, names), what)


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
    evidence = quote.file(facts, NVFS + "/modules", r".")
    cause = listed_cause("storage.hooks-not-registered", evidence, driver=stack_name)
    return Condition(stack_name in registered, cause._replace(id=stack_name + ".not-registered"))


#: Up to this release nvidia-fs finds the driver's symbols at run time and imports none.
LAST_WITH_SYMBOL_GET = (2, 17, 4)
REBUILD = capitalized(AGAIN)


def not_needed(_facts: HostFacts, expectation: Expectation) -> str:
    """Why the fleet doesn't need it, or empty."""
    return "" if expectation.nvidia_fs_version else f"not needed: the mode is {expectation.mode}"


check_messages(
    "nvidia-fs.errors",
    "nvidia-fs has reported no fault since it was last loaded",
    module=MODULE,
    expects="only errors that programs cause",
    prevents="transfers that fail or hang because nvidia-fs can't pin or map GPU memory, although it is loaded",
    unless=not_needed,
)


@check(
    "nvidia-fs.loaded-version",
    "the loaded nvidia-fs is the locked version",
    expects="nvidia-fs {nvidia_fs_version}",
    prevents="silent fall-back to compat mode because nvidia-fs is missing, or an unpinned upgrade replaced it",
    of_running=True,
    unless=not_needed,
)
def loaded_version(facts: HostFacts, expectation: Expectation) -> Steps:
    yield loaded(facts, facts.nvidia_fs.module)
    version = facts.nvidia_fs.module.version
    words = "nvidia-fs " + (version or "of no known version")
    is_locked = version == expectation.nvidia_fs_version
    yield passed(words) if is_locked else failed(words, "Provision the host again and let it reboot")


check_module_file(
    "nvidia-fs",
    "nvidia-fs",
    lambda facts: facts.nvidia_fs.module,
    not_needed,
    replaced="a module that a package upgrade rebuilt on disk, and that differs after the next reboot",
    not_built="nvidia-fs that was not rebuilt for a new kernel",
)


@check(
    "nvidia-fs.symbol-versions",
    "every nvidia_p2p symbol that nvidia-fs imports has the version that the loaded driver exports",
    expects="equal versions of all " + P2P + "* symbols",
    prevents="a module that the kernel refuses ('disagrees about version of symbol'), or takes without a check",
    of_running=True,
    unless=not_needed,
)
def symbol_versions(facts: HostFacts, _expectation: Expectation) -> Answer:
    module, driver = facts.nvidia_fs.module.its_file, facts.driver.module.its_file
    imports = [name for name in module.imports if name.startswith(P2P)]
    if not imports:
        if () < numbers(module.version, 3) <= LAST_WITH_SYMBOL_GET:
            return passed("imports none: nvidia-fs up to 2.17.4 looks the driver's symbols up when they are needed")
        return failed(f"it imports no {P2P}* symbol at all", REBUILD)
    if not is_versioned(module, driver):
        raise UndecidedError(f"neither {module.path} nor {driver.path} has symbol versions: this kernel checks none")
    wrong = differing(module, driver)
    if wrong:
        return failed(
            "{} of {} differ: {}".format(len(wrong), len(imports), ", ".join(wrong)), REBUILD, [*wrong.values()]
        )
    return passed(f"{len(imports)} of {len(imports)} equal")


@check(
    "nvidia-fs.driver-tree",
    "the loaded nvidia-fs was built against the running driver's source tree",
    expects="built against nvidia {driver_version} ({driver_flavour}) in {driver_tree}",
    prevents="an nvidia-fs of another driver, which loads without complaint and fails when it pins GPU memory",
    of_running=True,
    unless=not_needed,
    of_provision=True,
)
def driver_tree(facts: HostFacts, expectation: Expectation) -> Steps:
    yield loaded(facts, facts.nvidia_fs.module)
    yield _built(facts, expectation)


def _built(facts: HostFacts, expectation: Expectation) -> Answer:
    file = facts.nvidia_fs.module.its_file
    record = file.provenance
    if expectation.packaged and not record.get("driver"):
        return not_applicable(
            f"{file.path} comes from a package and has no record of the driver it was built against: only a proven"
            " transfer shows that they fit (storage.path)",
            expected=f"a module of the locked package, for driver {expectation.driver_version}",
        )
    if not record.get("driver") or not record.get("tree"):
        missing = f"{file.path} has no record of the driver it was built against: gdsdeploy did not build it"
        return failed(missing, REBUILD)
    running, flavour = facts.driver.version, facts.driver.flavour
    built = "built against nvidia {} ({})".format(record["driver"], record.get("flavour", "?"))
    evidence = [f"gdsdeploy_{key}={value}" for key, value in sorted(record.items())]
    if (record["driver"], record.get("flavour")) != (running, flavour):
        runs = f"nvidia {running} ({flavour}) runs" if running else "no driver runs"
        return failed(f"{built}; {runs}", REBUILD, evidence)
    tree = expectation.driver_tree
    digest = facts.driver.tree_digest(tree)
    if digest is None:
        return passed(f"{built}, elsewhere: {tree} is not on this host", evidence)
    if digest != record["tree"]:
        other = f"{built} in another tree than {tree}, or that one has changed since"
        return failed(other, REBUILD, [*evidence, f"{tree} now: {digest}"])
    return passed(f"{built} in {tree}", evidence)


@check(
    "nvidia-fs.devices",
    "nvidia-fs offers its device nodes",
    expects="/dev/nvidia-fs0 and as many more as it announces",
    prevents="compat mode because libcufile cannot open the devices, as in containers without them",
    of_running=True,
    unless=not_needed,
)
def devices(facts: HostFacts, _expectation: Expectation) -> Steps:
    yield loaded(facts, facts.nvidia_fs.module)
    yield _present(facts)
    present, count = facts.nvidia_fs.devices, facts.nvidia_fs.device_count
    missing = [number for number in range(count or 0) if number not in present]
    if count and not missing:
        yield passed(f"/dev/nvidia-fs0 to {count - 1}")
        return
    words = "nvidia-fs announces no devices"
    if count:
        words = f"{count - len(missing)} of {count} exist; /dev/nvidia-fs{missing[0]} is missing"
    yield failed(words, capitalized(listed_cause("nvidia-fs.no-devices").fix))
