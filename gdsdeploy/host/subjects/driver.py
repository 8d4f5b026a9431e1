"""The NVIDIA driver: its module as it runs, its libraries, firmware and services; and nouveau, which must be away."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from functools import partial
from typing import Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from ..facts.document import Document, collected, group_of
from ..facts.unknown import Facts, Maybe, UndecidedError, any_of, fact, follows, given, if_known, known, require
from ..io.reading import kernel_number, try_open
from ..model.expectation import Expectation
from ..model.system import FABRIC, NVLSM, UMAD, services_of
from ..paths import (
    BUILD_ID,
    FABRIC_STATES,
    FIRMWARE,
    FIRMWARE_PATH,
    GPU_ORDER,
    HOLDERS,
    IMEX_NODES,
    LEGACY_SERVICE,
    LINK_TABLE,
    MODPROBE,
    NVFS,
    NVFS_DEVICE,
    NVIDIA,
    PEERS,
    RECOVERY,
    SERVICE_FOLDERS,
    SOURCES,
)
from . import quote
from .condition import DIRECT_PATH, USABLE, Cause, Condition, listed_cause, required, rule
from .kernel import NOUVEAU, NVIDIA as DRIVER, SOURCES as LOGS, check_messages
from .loader import SONAMES, known_libraries, listed
from .modules import ModuleFacts, check_module_file, loaded
from .pci import hidden_switches
from .register import Answer, Steps, check, collector, failed, not_applicable, passed, unknown
from .types import EvidenceRequest, HostFacts, Mount, Recorder

_MODULES = (
    "nvidia", "nvidia_fs", "nvidia_peermem", "nv_peer_mem", "nvidia_uvm", "nouveau", "nvme", "nvme_core", "rpcrdma",
)  # fmt: skip


@collector("gpu")
def collect_gpu(recorder: Recorder, request: EvidenceRequest) -> None:
    for name in _MODULES:
        folder = "/sys/module/" + name
        recorder.texts(("version", "srcversion", "taint", "initstate", "refcnt"), folder)
        recorder.binary(folder + BUILD_ID)
    recorder.texts(("version", "params"), NVIDIA)
    gpus = recorder.paths(NVIDIA + "/gpus")
    recorder.texts(f"{gpu}/information" for gpu in gpus)
    recorder.names("/dev", "nvidia*")
    recorder.texts(("version", "stats", "devcount", "bridges", "peer_distance", "peer_affinity"), NVFS)
    _collect_registrations(recorder)
    recorder.names("/sys/class/infiniband")
    recorder.texts(f"{peer}/version" for peer in recorder.paths(PEERS))
    recorder.paths(*HOLDERS)
    recorder.paths(*SERVICE_FOLDERS, pattern=LEGACY_SERVICE)
    # Each of these opens every GPU.
    for command in (LINK_TABLE, GPU_ORDER) if request.nvlink and len(gpus) > 1 else ():
        if recorder.command(command, command.split(), timeout=20.0).status != 0:
            return


def _collect_registrations(recorder: Recorder) -> None:
    """nvidia-fs looks for storage drivers at its first open and forgets them at its last close (nvfs_open)."""
    recorder.value("opens", NVFS_DEVICE, try_open)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, os.open(NVFS_DEVICE, os.O_RDONLY))
        recorder.text(NVFS + "/modules")


@collector("userland")
def collect_userland(recorder: Recorder, _request: EvidenceRequest) -> None:
    """Its libraries, and the GPUs' firmware."""
    output = known_libraries(recorder)
    for name in SONAMES:
        for path in listed(output.stdout, name)[:1]:
            # Debian's alternatives make a chain; the name at its end has the version.
            recorder.value("links", path, os.path.realpath)
    folders = filter(None, ((recorder.text(FIRMWARE_PATH) or "").strip(), FIRMWARE))
    versions = recorder.paths(*(folder + "/nvidia" for folder in folders), pattern="[0-9]*")
    recorder.paths(*versions, pattern="gsp*.bin*")
    # It opens every GPU, which nothing needs where none has reported an error.
    if any("NVRM: Xid" in Document(recorder.document).printed(log) for log in LOGS):
        query = "--query-gpu=pci.bus_id,gpu_recovery_action"
        recorder.command(RECOVERY, ["nvidia-smi", query, "--format=csv,noheader"], timeout=20.0)
    collect_fabric(recorder)


#: The fabric manager's program; a host with one GPU and without it has no fabric.
FABRIC_PROGRAM = "/usr/bin/nv-fabricmanager"
#: States that nvidia-smi prints for a GPU until its registration with the fabric has ended, and after that.
WAITING, COMPLETED = ("In Progress", "Not Started"), "Completed"
#: Seconds between questions, and how long after the boot GPUs may still register: the fabric manager counts as started
#: before they have.
_WAITS, _BOOTING = (1.0, 2.0, 4.0, 8.0, 16.0, 0.0), 300


def collect_fabric(recorder: Recorder) -> None:
    """How far each GPU is with its fabric, where there may be one; asked again while GPUs may still register."""
    gpus = recorder.names(NVIDIA + "/gpus")
    if len(gpus) < 2 and not (gpus and recorder.exists(FABRIC_PROGRAM)):
        return
    uptime = re.match(r"\d{1,12}", if_known(lambda: Document(recorder.document).line("/proc/uptime"), "") or "")
    for wait in _WAITS if uptime and int(uptime[0]) < _BOOTING else (0.0,):
        query = "--query-gpu=pci.bus_id,fabric.state,fabric.status"
        output = recorder.command(FABRIC_STATES, ["nvidia-smi", query, "--format=csv,noheader"], timeout=20.0)
        if not any(state in output.stdout for state in WAITING):
            return
        time.sleep(wait)


OPEN, PROPRIETARY = "open", "proprietary"


class FabricState(NamedTuple):
    """Of one GPU, in nvidia-smi's words: ``Completed`` and ``Success``, or ``N/A`` without an NVLink fabric."""

    state: str
    status: str

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def registered(self) -> bool:
        return not self.waits and (self.state != COMPLETED or self.status == "Success")


_FABRIC_ROW = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{5,8}), *([A-Za-z/ \[\]]{1,40}?), *([^,]{1,80})$"


class DriverFacts(Facts):
    """The NVIDIA driver.  What is the running one's is None while none runs."""

    module = given(lambda document: ModuleFacts(document, "nvidia"))

    @fact
    def version(self) -> Optional[str]:
        text = self.document.text(NVIDIA + "/version")
        match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text or "", re.MULTILINE)
        if text is not None and match is None:
            raise UndecidedError(f"{NVIDIA}/version is not understood: {text[:200]!r}")
        return match and match.group(1)

    @fact
    def flavour(self) -> Optional[str]:
        """By the words by which libcufile decides."""
        if self.version is None:
            return None
        return OPEN if "Open Kernel Module" in (self.document.text(NVIDIA + "/version") or "") else PROPRIETARY

    @fact
    def params(self) -> Optional[Mapping[str, str]]:
        """The module's parameters as they are in effect."""
        text = self.document.text(NVIDIA + "/params")
        pairs = (line.partition(":") for line in (text or "").splitlines())
        shown = {key.strip(): value.strip().strip('"') for key, separator, value in pairs if separator}
        return None if text is None else shown

    #: PCI addresses of the GPUs that the driver runs
    gpus = given(lambda document: document.names(NVIDIA + "/gpus") or ())

    #: GPU → its model, e.g. ``NVIDIA H100 80GB HBM3``; of those in ``gpus``
    models: Mapping[str, Maybe[str]] = follows(
        lambda self: {name: known(partial(_model, self.document, name)) for name in if_known(lambda: self.gpus, ())}
    )

    #: folders of driver sources on this host → ``sha256:…`` of the files that modules are compiled against
    trees = given(lambda document: {path: known(partial(document.tree, path)) for path in document.paths("trees")})
    #: names in /usr/src that begin with nvidia
    sources = given(lambda document: document.names(SOURCES + "/nvidia*") or ())

    @fact
    def registry(self) -> Optional[Mapping[str, int]]:
        """The driver's registry, from ``RegistryDwords`` of ``params``: key in lower case → value."""
        if self.params is None:
            return None
        return registry(collected(self.params.get("RegistryDwords"), f"{NVIDIA}/params has no RegistryDwords"))

    @fact
    def recovery(self) -> Mapping[str, str]:
        """GPU by its address → what it needs, ``None``, ``Reset`` or ``Reboot``; nvidia-smi is asked after an Xid."""
        table = self.document.output(RECOVERY, "nvidia-smi doesn't say what the GPUs need")
        rows = (line.partition(",") for line in table.splitlines())
        return {gpu: action.strip() for gpu, _, action in rows}

    @fact
    def fabric(self) -> Mapping[str, FabricState]:
        """GPU by its address → how far it is with its NVLink fabric.

        Empty where nvidia-smi wasn't asked, as with one GPU and no fabric manager, or is too old to say.
        """
        if not self.document.recorded("commands", FABRIC_STATES):
            return {}
        run = self.document.ran(FABRIC_STATES)
        rows, said = [re.match(_FABRIC_ROW, line) for line in run.stdout.splitlines()], run.stdout + run.stderr
        if "not a valid field" in said:
            return {}
        if run.status != 0 or None in rows:
            raise UndecidedError(f"nvidia-smi doesn't say the state of the fabric: {said[:200].strip()}")
        return {row[1]: FabricState(row[2], row[3]) for row in rows if row}

    def tree_digest(self, path: str) -> Optional[str]:
        """The digest of the source tree at ``path``, None if it is not on this host."""
        if path in self.trees:
            return require(self.trees[path])
        folder, _, name = path.rpartition("/")
        if folder != SOURCES:
            raise UndecidedError(f"{path} was not looked at")
        if name in self.sources:
            raise UndecidedError(f"{path} was not recognized as a driver's source")
        return None


def _model(document: Document, name: str) -> str:
    path = NVIDIA + "/gpus/" + name + "/information"
    match = re.search(r"^Model:\s*(\S.*?)\s*$", document.text(path) or "", re.MULTILINE)
    return group_of(match, f"{path} names no model")


def registry(text: str) -> Mapping[str, int]:
    """``NVreg_RegistryDwords`` as the driver reads it: ``KEY=VALUE;…``, keys in any case, the last of each counts.

    The driver removes spaces, ignores what isn't one pair, and reads a value like C's strtoul with base 0.
    """
    pairs = [part.split("=") for part in text.replace(" ", "").split(";")]
    return {pair[0].lower(): kernel_number(pair[1], begins=True) or 0 for pair in pairs if len(pair) == 2 and all(pair)}


class Library(NamedTuple):
    """A library as the loader finds it; ``version`` is the one in the name of the file, e.g. 550.163.01."""

    path: str
    version: str


class UserlandFacts(Facts):
    """What the driver brings beside its modules."""

    #: by soname; None: the loader finds none
    libraries = given(lambda document: {name: known(partial(_library, document, name)) for name in SONAMES})

    @fact
    def firmware(self) -> Mapping[str, Tuple[str, ...]]:
        """Driver version → its firmware files (gsp_*.bin), in the folders where the kernel looks."""
        firmware: Dict[str, Tuple[str, ...]] = {}
        for folder in filter(None, (self.document.line(FIRMWARE_PATH), FIRMWARE)):
            for version in self.document.names(folder + "/nvidia/[0-9]*") or ():
                files = self.document.names(f"{folder}/nvidia/{version}/gsp*.bin*")
                firmware.setdefault(version, files or ())
        return firmware


def _library(document: Document, name: str) -> Optional[Library]:
    paths = listed(document.ran("ldconfig").stdout, name)
    if not paths:
        return None
    path = collected(document.link(paths[0]), f"{paths[0]} is gone")
    version = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return Library(path, group_of(version, f"{path} has no version in its name"))


@rule(DIRECT_PATH, 10)
def driver_runs(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """Both direct paths need a running driver."""
    yield loaded(facts, facts.driver.module)


@rule(USABLE, 7)
def fabric_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """CUDA answers 802 until the GPU is registered, and cuFile needs CUDA."""
    states = _fabric(facts)
    if any(gpu.waits for gpu in states.values()):
        yield Condition(False, _unregistered(states))


def _fabric(facts: HostFacts) -> Mapping[str, FabricState]:
    """Nothing is said where nvidia-smi can't be asked: its absence keeps no program from the GPUs."""
    return if_known(lambda: facts.driver.fabric, {})


def _unregistered(states: Mapping[str, FabricState]) -> Optional[Cause]:
    """The cause for GPUs whose registration with the fabric hasn't ended, or has failed."""
    wrong = [f"{gpu}: {one.state}, {one.status}" for gpu, one in states.items() if not one.registered]
    what = f"{len(wrong)} of {len(states)} GPUs aren't registered with the NVLink fabric"
    return listed_cause("nvidia.fabric-state", quote.with_source("nvidia-smi", wrong), what) if wrong else None


@check(
    "driver.loaded-version",
    "the loaded nvidia module is the locked version",
    expects="nvidia {driver_version}",
    prevents="a driver that was upgraded or downgraded under the stack, and no longer fits the modules built for it",
    of_running=True,
)
def loaded_version(facts: HostFacts, expectation: Expectation) -> Steps:
    yield loaded(facts, facts.driver.module)
    words, hint = f"nvidia {facts.driver.version}", "Provision the host again and let it reboot; then validate"
    yield passed(words) if facts.driver.version == expectation.driver_version else failed(words, hint)


@check(
    "driver.flavour",
    "the loaded nvidia module has the locked flavour",
    expects="{driver_flavour}",
    prevents="the proprietary module under an nvidia-fs that links against GPL-only symbols of the open one",
    of_running=True,
)
def flavour(facts: HostFacts, expectation: Expectation) -> Steps:
    yield loaded(facts, facts.driver.module)
    flavour = str(facts.driver.flavour)
    hint = f"Remove the packages of the {flavour} flavour; then provision the host again and let it reboot"
    yield passed(flavour) if flavour == expectation.driver_flavour else failed(flavour, hint)


check_module_file(
    "driver",
    "nvidia module",
    lambda facts: facts.driver.module,
    replaced="a module that was replaced on disk, or in the initramfs, and differs after the next reboot",
    not_built="a host that comes up without its driver after a kernel upgrade",
)


@check(
    "nouveau.absent",
    "nouveau is not loaded and cannot be loaded at boot",
    expects="not loaded, and forbidden or not installed",
    prevents="nouveau taking the GPUs before nvidia can",
)
def nouveau(facts: HostFacts, expectation: Expectation) -> Steps:
    if expectation.own_kernel:
        evidence = quote.file(facts, "/proc/modules", r"^nouveau ")
        yield required(lambda: NOUVEAU not in facts.kernel.modules, "nvidia.nouveau", evidence, "nouveau is loaded")
    forbidden = known(lambda: NOUVEAU in facts.boot.forbidden)
    # Kernels of clouds are built without it, or have it in a package of its own.  Older evidence doesn't say so.
    asked = facts.document.recorded("commands", MODPROBE + NOUVEAU)
    absent = known(lambda: asked and ModuleFacts(facts.document, NOUVEAU).path is None)
    yield required(lambda: any_of([forbidden, absent]), "nvidia.nouveau", (), "not loaded, but nothing keeps it out")
    words = "forbidden in modprobe.d or on the kernel's command line" if forbidden is True else "not installed"
    yield passed(f"not loaded, and {words}")


check_messages(
    "driver.errors",
    "the driver has reported no fault since the boot",
    module=DRIVER,
    expects="only Xid errors that programs cause, no failed initialization",
    prevents="a GPU that fell off the bus, has memory errors or never came up, although all modules are loaded",
)


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
        hint = "Install the libraries of the driver's version; with gdsdeploy: provision the host again"
        return failed("the loader finds no {}".format(" and no ".join(missing)), hint, paths)
    wrong = [
        f"{name} {library.version}" for name, library in libraries.items() if library and library.version != version
    ]
    if wrong:
        hint = (
            "Find another copy in front of it: ldconfig -p | grep libcuda; without one install the libraries of the"
            " driver's version; with gdsdeploy: provision the host again"
        )
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
    hint = "Install the firmware package of this driver; with gdsdeploy: provision the host again"
    return failed(f"none for driver {version}; there is firmware for: {others}", hint)


HIDDEN_HINT = (
    "On an HGX board, add nvlink5 to the profile's companions, then lock and provision; in a virtual machine whose host"
    " runs the fabric manager, waive this check"
)


@check(
    "driver.services",
    "the driver's services that the lock has or the hardware needs are running",
    expects="all of them active, IMEX with the addresses of the host's domain, each GPU's fabric Completed or N/A",
    prevents="GPUs behind NVSwitch that no program can use because the fabric manager is missing or failed",
    unless=lambda facts, _: "" if facts.pci.gpus else "not needed: this host has no GPU",
)
def services(facts: HostFacts, expectation: Expectation) -> Answer:
    services = services_of(expectation.packages)
    units = if_known(lambda: facts.boot.units, {})
    switches, bridges = facts.pci.switches, facts.pci.switch_bridges
    fabric = (*switches, *bridges)
    hidden = "" if fabric else hidden_switches(facts.pci, facts.driver)
    if FABRIC not in services and units.get(FABRIC, {}).get("ActiveState") == "active":
        services.append(FABRIC)
    add = f"Add {'nvlink5' if bridges else 'fabricmanager'} to the profile's companions, then lock and provision"
    if fabric and FABRIC not in services:
        what = "NVSwitches" if switches else "ways to NVSwitches"
        return failed(f"this host has {len(fabric)} {what}, and the lock holds no fabric manager", add, fabric)
    if bridges and NVLSM not in expectation.packages and NVLSM not in facts.packages.installed:
        return failed(f"the NVSwitches need {NVLSM}, which isn't installed", add, bridges)
    if bridges and UMAD not in facts.kernel.modules and facts.kernel.option("INFINIBAND_USER_MAD") != "y":
        hint = f"Load it, then start the fabric manager again: modprobe {UMAD} && systemctl restart {FABRIC}"
        return failed(f"{NVLSM} reaches the NVSwitches through {UMAD}, which isn't loaded", hint, bridges)
    registrations = _fabric(facts)
    unregistered = _unregistered(registrations)
    if hidden and FABRIC not in services and not registrations:
        return unknown(
            f"NVSwitches may connect these GPUs ({hidden}), which are no PCI devices, and no fabric manager runs",
            HIDDEN_HINT,
        )
    if not services and not unregistered:
        return not_applicable("the lock holds none, and no GPU waits for an NVSwitch")
    units = facts.boot.units if services else {}
    states = {unit: units.get(unit, {}).get("ActiveState", "not known to systemd") for unit in services}
    down = [unit for unit, state in states.items() if state != "active"]
    if down:
        lines = [f"{unit}: {state}" for unit, state in states.items()]
        return failed("; ".join(lines), "Read why: systemctl status {0}; journalctl -b -u {0}".format(down[0]), lines)
    if unregistered:
        return failed(unregistered.what, unregistered.fix, unregistered.evidence)
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
    unless=lambda facts, _: "" if _options(facts) else "no option is set",
)
def parameters(facts: HostFacts, _expectation: Expectation) -> Steps:
    options = _options(facts)
    yield loaded(facts, facts.driver.module)
    params = facts.driver.params or {}
    wrong = [
        f"{name} is {params[name] or 'empty'}, not {value} as in {place}"
        if name in params
        else f"{name}={value} ({place}): the loaded driver has no such option"
        for name, (value, place) in sorted(options.items())
        if name not in params or not _is_equal(value, params[name])
    ]
    hint = "An option for a module of another name (modinfo nvidia) has no effect; else drain the host and reboot it"
    yield failed("; ".join(wrong), hint, wrong) if wrong else passed("{} as set".format(", ".join(sorted(options))))


def _options(facts: HostFacts) -> Dict[str, Tuple[str, str]]:
    """Option without NVreg_ → (value, where it is set); the last one wins, as for modprobe."""
    lines = facts.boot.options
    # Debian's driver has these names too, and its options belong to the name of the file.
    modules = sorted(name for name in lines if re.fullmatch(r"nvidia(_current)?(_open)?(_tesla)?(_\d+)?", name))
    words = [word.partition(".")[2] for word in facts.kernel.command_line if word.startswith("nvidia.")]
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
    numbers = [kernel_number(text) for text in (value, shown)]
    if None in numbers:
        return value.strip('"') == shown
    return len({each & 0xFFFFFFFF for each in numbers if each is not None}) == 1
