"""The driver, nvidia-fs and nvidia-peermem: their modules, files, libraries and messages."""

from __future__ import annotations

import re
import shlex
from functools import partial
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ..facts import HostFacts, UndecidedError, Unknown, require
from ..facts.driver import ModuleFacts, ModuleFile
from ..facts.kernel import NVIDIA, NVIDIA_FS, PEERMEM, KernelAudit, Message, ModuleAudit
from ..facts.kernel import messages as logged
from ..facts.unknown import if_known, known
from ..kmod.module import ERROR, NOTE, UNKNOWN
from ..model.expectation import Expectation
from ..model.system import FABRIC, NVSWITCH, services_of
from ..paths import IMEX_NODES
from ..secure_boot.signature import KEYRINGS
from ..subjects import mechanisms, peer_memory
from ..subjects.condition import DMABUF, Condition, weigh
from ..subjects.pci import NVIDIA_VENDOR
from ..subjects.register import Answer, capitalized, check, failed, not_applicable, passed


def messages(facts: HostFacts, *words: str) -> Tuple[str, ...]:
    """The last kernel messages with one of ``words``, as evidence only."""
    lines = if_known(lambda: facts.kernel.messages, ())
    return tuple(line for line in lines if any(word in line for word in words))[-6:]


def its_file(module: ModuleFacts) -> ModuleFile:
    """The file of a module, if it is known to be the loaded one; raises UndecidedError otherwise."""
    file = module.file
    if file is None:
        raise UndecidedError(f"modprobe finds no file for {module.name}")
    if module.loaded and not module.is_its_file():
        raise UndecidedError(f"the loaded {module.name} is not the file {file.path}, the only one that can be read")
    return file


def check_module_file(
    word: str,
    name: str,
    module_of: Callable[[HostFacts], ModuleFacts],
    not_needed: Callable[[Expectation], Optional[Answer]],
    *,
    replaced: str,
    not_built: str,
) -> None:
    """Register ``word``.loaded-file and ``word``.built-for-kernel for one module.

    not_needed: the answer for hosts without the module, else None.  replaced, not_built: what the two checks prevent.
    """

    @check(
        word + ".loaded-file",
        f"the loaded {name} is the file that modprobe would load",
        expects="the same build in memory and on disk",
        prevents=replaced,
        of_running=True,
    )
    def loaded_file(facts: HostFacts, expectation: Expectation) -> Answer:
        return not_needed(expectation) or _judge_file(facts, module_of(facts))

    @check(
        word + ".built-for-kernel",
        f"{name} was built for the running kernel",
        expects="vermagic {kernel_release}",
        prevents=not_built,
        of_running=True,
    )
    def built_for_kernel(facts: HostFacts, expectation: Expectation) -> Answer:
        return not_needed(expectation) or _judge_kernel(facts, module_of(facts))


def _judge_file(facts: HostFacts, module: ModuleFacts) -> Answer:
    """Whether a reboot would load the same module again."""
    file = module.file
    if not module.loaded:
        where = "it has no file either" if file is None else f"its file is {file.path}"
        return failed(f"{module.name} is not loaded; {where}", "See the check for its loaded version")
    if file is None:
        hint = "Install the module for this kernel: provision the host again"
        return failed(f"loaded, but modprobe finds no file for kernel {facts.kernel.release}", hint)
    if module.is_its_file():
        return passed(file.path)
    return failed(
        f"{file.path} is another build than the loaded one",
        "Reboot the host; if that doesn't help, the initramfs has an old copy: rebuild it for this kernel",
        [f"loaded: version {module.version} build id {module.build_id}",
         f"file:   version {file.version} build id {file.build_id}"],
    )  # fmt: skip


def _judge_kernel(facts: HostFacts, module: ModuleFacts) -> Answer:
    file, release = module.file, facts.kernel.release
    expected, hint = f"vermagic {release}", "Build it for this kernel: provision the host again"
    if file is None:
        return failed(f"modprobe finds no {module.name} for {release}", hint, expected=expected)
    vermagic = f"vermagic {file.kernel} in {file.path}"
    if file.kernel == release:
        return passed(vermagic, expected=expected)
    return failed(vermagic, hint, expected=expected)


@check(
    "driver.loaded-version",
    "the loaded nvidia module is the locked version",
    expects="nvidia {driver_version}",
    prevents="a driver that was upgraded or downgraded under the stack, and no longer fits the modules built for it",
    of_running=True,
)
def loaded_version(facts: HostFacts, expectation: Expectation) -> Answer:
    version = facts.driver.version
    if version is None:
        return failed(
            "the nvidia module is not loaded",
            "Load it and read the kernel's messages: modprobe nvidia; dmesg | grep -e NVRM -e nvidia",
            messages(facts, "NVRM", "nvidia"),
        )
    if version == expectation.driver_version:
        return passed("nvidia " + version)
    return failed("nvidia " + version, "Provision the host again and let it reboot; then validate")


@check(
    "driver.flavour",
    "the loaded nvidia module has the locked flavour",
    expects="{driver_flavour}",
    prevents="the proprietary module under an nvidia-fs that links against GPL-only symbols of the open one",
    of_running=True,
)
def flavour(facts: HostFacts, expectation: Expectation) -> Answer:
    loaded = facts.driver.flavour
    if loaded is None:
        return failed("the nvidia module is not loaded", "See the check driver.loaded-version")
    if loaded == expectation.driver_flavour:
        return passed(loaded)
    return failed(loaded, f"Remove the packages of the {loaded} flavour, provision again and reboot")


check_module_file(
    "driver",
    "nvidia module",
    lambda facts: facts.driver.module,
    lambda _expectation: None,
    replaced="a module that was replaced on disk, or in the initramfs, and differs after the next reboot",
    not_built="a host that comes up without its driver after a kernel upgrade",
)


@check(
    "nouveau.absent",
    "nouveau is not loaded and cannot be loaded at boot",
    expects="not loaded, and forbidden",
    prevents="nouveau taking the GPUs before nvidia can",
)
def nouveau(facts: HostFacts, expectation: Expectation) -> Answer:
    hint = "Provision again: it forbids nouveau in /etc/modprobe.d and rebuilds the initramfs; then reboot"
    if expectation.own_kernel and "nouveau" in facts.kernel.modules:
        return failed("nouveau is loaded", hint, messages(facts, "nouveau"))
    if "nouveau" in facts.boot.forbidden:
        return passed("not loaded, and forbidden in modprobe.d or on the kernel's command line")
    return failed("not loaded, but nothing keeps it out", hint)


#: Different fixes that one hint names.
FIXES_NAMED = 3
UNKNOWN_HINT = (
    "Keep a persistent journal (mkdir -p /var/log/journal; systemctl restart systemd-journald), and run this as root; "
    "after the next boot the check can decide"
)


def _judge_messages(facts: HostFacts, expectation: Expectation, module: str) -> Answer:
    if module == NVIDIA_FS and not expectation.nvidia_fs_version:
        return not_applicable(f"not needed: the mode is {expectation.mode}")
    if module == PEERMEM and expectation.rdma != "peermem":
        return not_applicable(f"not needed: the fleet asks for RDMA {expectation.rdma}")
    log = facts.kernel.log
    # A module that is loaded now has no failure to load any more.
    loaded = module == PEERMEM and if_known(lambda: facts.peermem.module.loaded, False)
    reported = [m for m in logged(log.lines, module) if not (loaded and m.meaning.loading)]
    faults = [message for message in reported if message.meaning.fault]
    if faults:
        fixes = list(dict.fromkeys(message.meaning.fix for message in faults))
        hint = ". ".join(capitalized(fix) for fix in fixes[:FIXES_NAMED])
        return failed(_kinds(faults), hint, [message.line for message in faults])
    require(log.since_boot)
    lines = [message.line for message in reported] + list(log.suppressed)
    note = "; the kernel left out repeated messages" if log.suppressed else ""
    words = f"no fault of this host: {_kinds(reported)}" if reported else "none in the kernel's messages"
    return passed(words + note, lines)


def _kinds(reported: List[Message]) -> str:
    return "; ".join(sorted({message.what for message in reported}))


for _word, _module, _since, _expects, _prevents in (
    (
        "driver", NVIDIA, "the driver has reported no fault since the boot",
        "only Xid errors that programs cause, no failed initialization",
        "a GPU that fell off the bus, has memory errors or never came up, although all modules are loaded",
    ),
    (
        "nvidia-fs", NVIDIA_FS, "nvidia-fs has reported no fault since it was last loaded",
        "only errors that programs cause",
        "transfers that fail or hang because nvidia-fs can't pin or map GPU memory, although it is loaded",
    ),
    (
        "peermem", PEERMEM, "nvidia-peermem has reported no fault since the boot",
        "only errors that programs cause",
        "RDMA that can't register GPU memory, although nvidia-peermem is loaded",
    ),
):  # fmt: skip
    check(
        _word + ".errors",
        _since,
        expects=_expects,
        prevents=_prevents,
        unknown_hint=UNKNOWN_HINT,
        of_running=True,
    )(partial(_judge_messages, module=_module))


HINT = "Provision the host again: it builds or brings the modules of the lock for this kernel"


@check(
    "modules.running",
    "the running kernel's module files can be loaded, and are those of the lock",
    expects="modules that pass the audit on the running kernel",
    prevents="files that the kernel refuses when they are loaded again: silent compat mode after a reload",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(facts.audits.running, expectation)


@check(
    "modules.next-boot",
    "the modules that the next boot will load pass the same audit",
    expects="modules that pass the audit on the kernel that boots next",
    prevents="a host that is healthy until it reboots into a kernel without its modules",
)
def next_boot(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(facts.audits.next, expectation)


def _judge(audit: KernelAudit, expectation: Expectation) -> Answer:
    names, by_name = expectation.modules(), {module.module: module for module in audit.modules}
    modules = [by_name[name] for name in names if name in by_name]
    findings = [(module.module, finding) for module in modules for finding in module.findings]
    evidence = [
        f"{name}: {finding.severity} [{finding.id}] {finding.message}"
        for name, finding in findings
        if finding.severity != NOTE
    ]
    missing = [name for name in names if name not in by_name]
    if missing:
        return failed("kernel {} has no module {}".format(audit.release, ", ".join(missing)), HINT, evidence)
    for name, finding in findings:
        if finding.outcome == ERROR:
            return failed(f"{name} on kernel {audit.release}: {finding.message}", finding.hint or HINT, evidence)
    for module in modules:
        if module.ok is not True:
            undecided = [(finding.message, finding.hint) for finding in module.findings if finding.outcome == UNKNOWN]
            reason, hint = undecided[0] if undecided else ("the audit has no result", "")
            raise UndecidedError(f"{module.module} on kernel {audit.release}: {reason}", hint)
    packaged = [f"{module.module}: {packaged_words(module)}" for module in modules if module.package]
    words = "; ".join(["{} on kernel {}".format(", ".join(names), audit.release), *packaged])
    return passed(words, evidence)


def packaged_words(module: ModuleAudit) -> str:
    """Which package brings a module, and who signed it."""
    signed = (
        f"signed by {module.signer}, {KEYRINGS.get(module.keyring, module.keyring)}" if module.signer else "unsigned"
    )
    return f"packaged by {module.package}, {signed}"


#: Up to this release nvidia-fs finds the driver's symbols at run time and imports none.
LAST_WITH_SYMBOL_GET = (2, 17, 4)
P2P = "nvidia_p2p_"
NO_EXPORT = "does not export it"
REBUILD = "Rebuild nvidia-fs against the running driver: provision the host again and let it reboot"


def _not_needed(expectation: Expectation) -> Optional[Answer]:
    """The answer for hosts whose mode doesn't use nvidia-fs."""
    if expectation.nvidia_fs_version:
        return None
    return not_applicable(f"not needed: the mode is {expectation.mode}")


def _not_loaded(facts: HostFacts, expectation: Expectation) -> Optional[Answer]:
    """The answer for hosts that don't need nvidia-fs, or haven't loaded it."""
    if not expectation.nvidia_fs_version or facts.nvidia_fs.module.loaded:
        return _not_needed(expectation)
    return failed(
        "nvidia-fs is not loaded",
        "Load it and read the kernel's messages: modprobe nvidia-fs; dmesg | grep -i nvidia",
        messages(facts, "nvidia_fs", "nvidia-fs"),
    )


@check(
    "nvidia-fs.loaded-version",
    "the loaded nvidia-fs is the locked version",
    expects="nvidia-fs {nvidia_fs_version}",
    prevents="silent fall-back to compat mode because nvidia-fs is missing, or an unpinned upgrade replaced it",
    of_running=True,
)
def loaded_nvidia_fs(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_loaded(facts, expectation):
        return early
    version = facts.nvidia_fs.module.version
    if version == expectation.nvidia_fs_version:
        return passed("nvidia-fs " + version)
    return failed("nvidia-fs " + (version or "of no known version"), "Provision the host again and let it reboot")


check_module_file(
    "nvidia-fs",
    "nvidia-fs",
    lambda facts: facts.nvidia_fs.module,
    _not_needed,
    replaced="a module that a package upgrade rebuilt on disk, and that differs after the next reboot",
    not_built="nvidia-fs that was not rebuilt for a new kernel",
)


@check(
    "nvidia-fs.symbol-versions",
    "every nvidia_p2p symbol that nvidia-fs imports has the version that the loaded driver exports",
    expects="equal versions of all " + P2P + "* symbols",
    prevents="a module that the kernel refuses ('disagrees about version of symbol'), or takes without a check",
    of_running=True,
)
def symbol_versions(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_needed(expectation):
        return early
    module, driver = its_file(facts.nvidia_fs.module), its_file(facts.driver.module)
    imports = {name: crc for name, crc in sorted(module.imports.items()) if name.startswith(P2P)}
    if not imports:
        return _no_imports(module)
    if all(crc is None for crc in module.imports.values()) and all(crc is None for crc in driver.exports.values()):
        raise UndecidedError(f"neither {module.path} nor {driver.path} has symbol versions: this kernel checks none")
    wrong = [(name, crc) for name, crc in imports.items() if crc is None or driver.exports.get(name) != crc]
    if not wrong:
        return passed(f"{len(imports)} of {len(imports)} equal")
    exports = {name: f"exports {_crc(crc)}" for name, crc in driver.exports.items()}
    return failed(
        "{} of {} differ: {}".format(len(wrong), len(imports), ", ".join(name for name, _ in wrong)),
        "Rebuild nvidia-fs against the running driver's tree and its Module.symvers: provision the host again",
        [
            f"{name}: nvidia-fs needs {_crc(crc)}, the driver {exports.get(name, 'does not export it')}"
            for name, crc in wrong
        ],
    )


def _no_imports(module: ModuleFile) -> Answer:
    version = tuple(map(int, re.findall(r"\d{1,18}", module.version)[:3]))
    if version and version <= LAST_WITH_SYMBOL_GET:
        return passed("imports none: nvidia-fs up to 2.17.4 looks the driver's symbols up when they are needed")
    return failed(f"it imports no {P2P}* symbol at all", "Rebuild nvidia-fs: provision the host again")


def _crc(value: Optional[int]) -> str:
    return "no version" if value is None else f"0x{value:08x}"


@check(
    "nvidia-fs.driver-tree",
    "the loaded nvidia-fs was built against the running driver's source tree",
    expects="built against nvidia {driver_version} ({driver_flavour}) in {driver_tree}",
    prevents="an nvidia-fs of another driver, which loads without complaint and fails when it pins GPU memory",
    of_running=True,
    of_provision=True,
)
def driver_tree(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_loaded(facts, expectation):
        return early
    file = its_file(facts.nvidia_fs.module)
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
)
def devices(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_loaded(facts, expectation):
        return early
    present, count = facts.nvidia_fs.devices, facts.nvidia_fs.device_count
    hint = "Let udev make them: udevadm trigger; or load nvidia-fs again: modprobe -r nvidia-fs; modprobe nvidia-fs"
    if not count:
        return failed("nvidia-fs announces no devices", hint)
    missing = [number for number in range(count) if number not in present]
    if not missing:
        return passed(f"/dev/nvidia-fs0 to {count - 1}")
    return failed(f"{count - len(missing)} of {count} exist; /dev/nvidia-fs{missing[0]} is missing", hint)


OFED = "install MLNX_OFED or DOCA first and build the driver after it, or use DMA-BUF (rdma: dmabuf), which needs none"


@check(
    "peermem.usable",
    "RDMA adapters can reach GPU memory in the way the fleet asks for",
    expects="rdma: {rdma}",
    prevents="a peermem that cannot be loaded ('Invalid argument') because the driver was built without OFED",
    of_running=True,
)
def usable(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(f"not needed: the fleet asks for no RDMA; {_state(facts)}")
    if expectation.rdma == "dmabuf":
        return _dmabuf(facts)
    if facts.peermem.module.loaded:
        return _registered(peer_memory.registered(facts))
    if facts.peermem.stub:
        words = "the installed nvidia-peermem is a stub: it was built without OFED's peer memory symbols"
        return failed(words, capitalized(OFED), messages(facts, "peermem", "peer_mem"))
    if facts.peermem.module.file is None:
        return failed("there is no nvidia-peermem for this kernel", "Provision the host again")
    return failed(
        "nvidia-peermem is not loaded",
        "Start its unit and read its messages: systemctl start gds-peermem; journalctl -u gds-peermem",
        messages(facts, "peermem"),
    )


def _registered(condition: Condition) -> Answer:
    if isinstance(condition.holds, Unknown):
        raise UndecidedError("nvidia-peermem is loaded; whether it registered is not known: " + condition.holds.reason)
    if condition.holds:
        return passed("nvidia-peermem is loaded and registered with the RDMA core")
    assert condition.cause is not None
    hint = "Load it again after OFED's ib_core: systemctl restart gds-peermem"
    return failed("nvidia-peermem is loaded, but not registered with the RDMA core", hint, condition.cause.evidence)


def _state(facts: HostFacts) -> str:
    if if_known(lambda: facts.peermem.module.loaded, False):
        return "nvidia-peermem is loaded"
    stub = known(lambda: facts.peermem.stub)
    if isinstance(stub, Unknown):
        return "nvidia-peermem was not looked into"
    if stub is None:
        return "nvidia-peermem is not installed"
    return "the installed nvidia-peermem is " + ("a stub, built without OFED" if stub else "complete")


def _dmabuf(facts: HostFacts) -> Answer:
    """Driver and kernel decide; the answer names the adapters' drivers, if any."""
    result = weigh(peer_memory.dmabuf_of_host(facts))
    if result.causes:
        cause = result.causes[0]
        return failed(cause.what, capitalized(cause.fix), cause.evidence)
    require(result.holds)
    words = f"the open driver and kernel {facts.kernel.release} offer DMA-BUF; peermem is not needed"
    if facts.peermem.module.loaded:
        words += ", but nvidia-peermem is loaded"
    adapters = if_known(lambda: facts.p2p.adapters_dmabuf, ())
    if adapters:
        words += "; adapters' drivers that take it: {}".format(", ".join(adapters))
    return passed(words)


@check(
    "peermem.legacy",
    "nv_peer_mem, which nvidia-peermem replaced, is not loaded",
    expects="no nv_peer_mem",
    prevents="an old module that registers in place of nvidia-peermem, or that no longer fits after a driver upgrade",
    of_running=True,
)
def legacy(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable("not needed: the fleet asks for no RDMA")
    if facts.p2p.legacy_loaded:
        hint = "Unload it: systemctl stop nv_peer_mem; then provision the host again, which keeps it out"
        return failed("nv_peer_mem is loaded", hint, ["/proc/modules: nv_peer_mem"])
    services = facts.p2p.legacy_services
    if services:
        # A condition that provision sets keeps it from starting, and its module from loading.
        return passed("it is not loaded; its service is still installed: {}".format(", ".join(services)))
    return passed("not installed")


@check(
    "peermem.mechanism",
    "the host has the mechanism between GPUs and adapters that the fleet uses",
    expects="RDMA by {rdma}, usable by this host's adapters",
    prevents="RDMA through CPU memory because core, adapter or driver don't support the mechanism",
    of_running=True,
)
def mechanism(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable("not needed: the fleet asks for no RDMA")
    if not facts.pci.gpus:
        return not_applicable("not proven: this host has no GPU")
    name = DMABUF if expectation.rdma == "dmabuf" else mechanisms.PEERDIRECT
    expected = next(candidate for candidate in mechanisms.mechanisms(facts) if candidate.name == name)
    lines = [*expected.evidence, *expected.why]
    if require(expected.usable):
        return passed(f"{expected.title} is usable", lines)
    hint = "; ".join(expected.fixes) or "Read the reasons above"
    choice = mechanisms.choose(facts)
    if isinstance(choice.rdma, str) and choice.rdma not in (expectation.rdma, mechanisms.NONE):
        hint += f"; or set rdma: {choice.rdma} in the profile, which this host offers"
    return failed("{}: {}".format(expected.title, "; ".join(expected.why)), capitalized(hint), lines)


@check(
    "driver.userland",
    "the driver's libraries that programs load have the loaded module's version",
    expects="libcuda and libnvidia-ml of driver {driver_version}",
    prevents="'API mismatch' and 'Driver/library version mismatch' after half of a driver was upgraded",
)
def userland(facts: HostFacts, expectation: Expectation) -> Answer:
    version = facts.driver.version or expectation.driver_version
    libraries = {name: require(library) for name, library in facts.userland.libraries.items()}
    paths = ["{}: {}".format(name, library.path if library else "none") for name, library in libraries.items()]
    missing = [name for name, library in libraries.items() if library is None]
    if missing:
        hint = "Provision the host again: the driver's libraries are in the lock"
        return failed("the loader finds no {}".format(" and no ".join(missing)), hint, paths)
    wrong = [
        f"{name} {library.version}" for name, library in libraries.items() if library and library.version != version
    ]
    if wrong:
        hint = "Provision the host again; to find another copy in front of it: ldconfig -p | grep libcuda"
        return failed("{} under driver {}".format(", ".join(wrong), version), hint, paths)
    return passed(f"both are {version}", paths)


@check(
    "driver.firmware",
    "the GPU firmware that the driver loads is installed in the driver's version",
    expects="gsp_*.bin for driver {driver_version}",
    prevents="open modules that find no firmware after an upgrade, and GPUs that do not come up",
)
def firmware(facts: HostFacts, expectation: Expectation) -> Answer:
    by_version = facts.userland.firmware
    version = facts.driver.version or expectation.driver_version
    if by_version.get(version):
        return passed("{}: {}".format(version, ", ".join(by_version[version])))
    if expectation.driver_flavour != "open":
        return not_applicable(f"none for {version}; the proprietary modules don't need it on many GPUs")
    others = ", ".join(sorted(other for other, files in by_version.items() if files)) or "none"
    hint = "Install the firmware package of this driver: provision the host again"
    return failed(f"none for driver {version}; there is firmware for: {others}", hint)


@check(
    "driver.services",
    "the driver's services that the lock has or the hardware needs are running",
    expects="all of them active, IMEX with the addresses of the host's domain",
    prevents="GPUs behind NVSwitch that no program can use because the fabric manager is missing or failed",
)
def services(facts: HostFacts, expectation: Expectation) -> Answer:
    if not facts.pci.gpus:
        return not_applicable("not needed: this host has no GPU")
    services = services_of(expectation.packages)
    switches = [
        function.address
        for function in facts.pci.functions
        if (function.vendor, function.kind) == (NVIDIA_VENDOR, NVSWITCH)
    ]
    if switches and FABRIC not in services:
        hint = "Add fabricmanager to the profile's companions, then lock and provision"
        return failed(f"this host has {len(switches)} NVSwitches, and the lock holds no fabric manager", hint, switches)
    if not services:
        return not_applicable("the lock holds none, and there is no NVSwitch")
    units = facts.boot.units
    states = {unit: units.get(unit, {}).get("ActiveState", "not known to systemd") for unit in services}
    down = [unit for unit, state in states.items() if state != "active"]
    if down:
        lines = [f"{unit}: {state}" for unit, state in states.items()]
        return failed("; ".join(lines), "Read why: systemctl status {0}; journalctl -b -u {0}".format(down[0]), lines)
    nodes = facts.boot.imex_nodes if expectation.imex_nodes else ()
    if sorted(nodes) != sorted(expectation.imex_nodes):
        words = f"{IMEX_NODES} has {', '.join(nodes) or 'no addresses'}, not {', '.join(expectation.imex_nodes)}"
        return failed(words, "Provision the hosts of this IMEX domain again", nodes)
    return passed(", ".join(services) + " active")


@check(
    "driver.parameters",
    "the options that modprobe.d sets for the nvidia module are in effect",
    expects="every option of modprobe.d and of the kernel's command line, as /proc/driver/nvidia/params shows it",
    prevents="an option that was edited later, or set for a module of another name, and has no effect",
    of_running=True,
)
def parameters(facts: HostFacts, _expectation: Expectation) -> Answer:
    options = _options(facts.boot.options, facts.kernel.command_line)
    if not options:
        return not_applicable("no option is set")
    params = facts.driver.params
    if params is None:
        return failed("the nvidia module is not loaded", "See the check driver.loaded-version")
    wrong = [
        f"{name} is {params[name] or 'empty'}, not {value} as in {place}"
        if name in params
        else f"{name}={value} ({place}): the loaded driver has no such option"
        for name, (value, place) in sorted(options.items())
        if name not in params or not _is_equal(value, params[name])
    ]
    if wrong:
        hint = "Reload the module or reboot; an option for a module of another name (modinfo nvidia) has no effect"
        return failed("; ".join(wrong), hint, wrong)
    return passed("{} as set".format(", ".join(sorted(options))))


def _options(
    lines: Mapping[str, Tuple[Tuple[str, str], ...]], command_line: Tuple[str, ...]
) -> Dict[str, Tuple[str, str]]:
    """Option without NVreg_ → (value, where it is set); the last one wins, as for modprobe."""
    # Debian's driver has these names too, and its options belong to the name of the file.
    modules = sorted(name for name in lines if re.fullmatch(r"nvidia(_current)?(_open)?(_tesla)?(_\d+)?", name))
    words = [word.partition(".")[2] for word in command_line if word.startswith("nvidia.")]
    texts = [*(row for module in modules for row in lines[module]), (" ".join(words), "the kernel's command line")]
    return {name: (value, place) for text, place in texts for name, value in _pairs(text)}


def _pairs(text: str) -> Iterator[Tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        name, separator, value = word.partition("=")
        if separator and name.startswith("NVreg_"):
            yield name[len("NVreg_") :], value


def _is_equal(value: str, shown: str) -> bool:
    """The driver shows all numbers as unsigned 32 bits."""
    try:
        return int(value, 0) & 0xFFFFFFFF == int(shown, 0) & 0xFFFFFFFF
    except ValueError:
        return value.strip('"') == shown
