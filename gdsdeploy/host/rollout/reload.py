"""Exchange NVIDIA's modules without a reboot: only where they aren't in use and the earlier ones can be loaded again.

What belongs to the modules while they run are devices and services.  ``plan`` says whether an exchange is possible, and
why not.  ``exchange`` stops services, unloads from the top, loads from the bottom, and makes sure that what is loaded
then is what is installed; if anything fails, the modules that were loaded before are loaded again from the kept
archive.  A run that was killed half-way is finished by the next one in that boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import syslog
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from .. import process
from ..apply import gpu, unload
from ..apply.host import ManagedHost
from ..archive import pack
from ..boot import needed as pending
from ..boot.present import boot_id, of_this_boot
from ..errors import HostError, RolloutError
from ..io import atomic
from ..kmod.module import BUILD_ID, build_id_of, read_module
from ..rootdir import list_folder, read_bytes, read_text
from ..subjects.processes import control_group
from .reboot import FOLDER, IDENT

PEERMEM_UNIT = "gds-peermem.service"
_TIMEOUT = 180.0


class Stack(NamedTuple):
    """Modules that are exchanged together."""

    #: as the kernel calls them, in the order in which they can be unloaded
    modules: Tuple[str, ...]
    #: beginnings of the names of their device files
    devices: Tuple[str, ...]
    #: units that hold them and can be stopped and started again, in the order in which they stop
    services: Tuple[str, ...]


NVIDIA = Stack(
    gpu.ORDER,
    gpu.DEVICES,
    (
        PEERMEM_UNIT,
        "nvidia-dcgm.service",
        "nvidia-imex.service",
        "nvidia-fabricmanager.service",
        "nvidia-powerd.service",
        "nvidia-persistenced.service",
    ),
)


class Use(NamedTuple):
    """What keeps modules in use."""

    #: sentences about users that gdsdeploy may not end
    foreign: List[str]
    #: units that run now, in the order in which they stop
    services: List[str]


def stack_use(stack: Stack, root: str = "/") -> Use:
    """Who uses the modules: services that can be stopped, and all others."""
    running = [unit for unit in stack.services if is_active(unit)]
    foreign = []
    for user in gpu.open_files(root, stack.devices):
        unit = unit_of(user["pid"], root)
        if unit not in running:
            process_id = f"process {user['pid']}{f', of {unit}' if unit else ''}"
            foreign.append(f"{user['program'] or 'a program'} ({process_id}) has {', '.join(user['files'])} open")
    return Use(foreign + _references(stack, bool(running), root) + _instances(root), running)


def is_active(unit: str) -> bool:
    return process.run(["systemctl", "--quiet", "is-active", unit], _TIMEOUT).status == 0


def unit_of(pid: int, root: str = "/") -> str:
    """The service that a process belongs to; empty where it is of none."""
    units = re.findall(r"/([^/]+\.service)(?=/|$)", control_group(read_text(root, f"/proc/{pid}/cgroup")))
    return units[-1] if units else ""


def systemctl(verb: str, unit: str) -> str:
    """Stop or start a unit; returns why that failed, empty otherwise."""
    output = process.run(["systemctl", verb, unit], _TIMEOUT)
    first_line = output.stderr.strip().partition("\n")[0]
    return "" if output.status == 0 else f"systemctl {verb} {unit}: {first_line}"


def _references(stack: Stack, services: bool, root: str) -> List[str]:
    """Other users of the modules.  While services run, their references cannot be told from other programs'."""
    reasons = []
    for module in gpu.modules(root, stack.modules):
        others = [name for name in module["users"] if name not in stack.modules]
        rest = module["references"] - len(module["users"])
        if others:
            reasons.append(f"{module['name']} is used by {', '.join(others)}")
        elif rest > 0 and not services:
            reasons.append(f"{module['name']} has {rest} references that belong to no module")
    return reasons


def _instances(root: str) -> List[str]:
    """GPUs that are divided: unloading the module deletes their instances."""
    base = "/proc/driver/nvidia/capabilities"
    return [
        f"{card} has MIG instances, which an exchange would delete"
        for card in list_folder(root, base)
        if any(name.startswith("gi") for name in list_folder(root, f"{base}/{card}/mig"))
    ]


def build_id(name: str, root: str = "/") -> str:
    """Of a loaded module; empty where it has none."""
    return build_id_of(read_bytes(root, f"/sys/module/{name}/notes/{BUILD_ID}").hex())


MARKER = FOLDER + "/reload.json"
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
INSTEAD = "a reboot exchanges them as well"


@dataclass(frozen=True)
class Plan:
    """What an exchange would do, and why it would be refused."""

    needed: bool
    boot_id: str
    #: sentences; empty when it is safe
    reasons: List[str]
    #: modules, in the order in which they are unloaded; they are loaded in the reverse order
    modules: List[str]
    #: units, in the order in which they are stopped; they are started in the reverse order
    services: List[str]
    #: module → the file that will be loaded
    files: Dict[str, str] = field(default_factory=dict)

    @property
    def safe(self) -> bool:
        return not self.reasons

    def document(self) -> Dict[str, Any]:
        """The plan as JSON."""
        return {**asdict(self), "safe": self.safe}


def plan(expected: str, ident: str, kernel: str = "", of: Stack = NVIDIA) -> Plan:
    """Look, and change nothing.  Raises RolloutError (``boot``) where this is not boot ``expected``.

    ident: of the rollout that kept the loaded modules.  kernel: the one that is to run afterwards; empty: any.
    """
    present, running = boot_id(), os.uname().release
    if present != expected:
        raise RolloutError("boot", f"this is boot {present}, not {expected}", "ask for the status again")
    # The record of a run that was interrupted in this boot.
    begun = of_this_boot(MARKER)
    # Provisioning unloads some before it exchanges packages; they come back with the others.
    unloaded = set(unload.recorded(ManagedHost()))
    loaded = [module["name"] for module in gpu.modules("/", of.modules)]
    use = stack_use(of)
    services = [unit for unit in of.services if unit in {*use.services, *begun.get("services", []), *unloaded}]
    names = [name for name in of.modules if name in {*loaded, *begun.get("modules", []), *unloaded}]
    if PEERMEM_UNIT in services:
        # The unit itself unloads and loads them.
        names = [name for name in names if name not in _PEERMEM]
    files = {name: pending.file_of(name) for name in names}
    reasons = [f"the running kernel is {running}, not {kernel}"] if kernel not in ("", running) else []
    problems = {name: _problem(name, file) for name, file in files.items()}
    reasons += use.foreign + list(filter(None, problems.values()))
    needed = any(problems[name] or _is_other(name, file) for name, file in files.items())
    if needed and not begun:
        reasons += _irreversible(ident, [name for name in names if name in loaded])
    return Plan(needed, present, reasons, names, services, files)


def exchange(expected: str, ident: str, kernel: str = "", of: Stack = NVIDIA) -> Dict[str, Any]:
    """Do it; returns ``{"did": "reloaded" | "nothing to do", "boot_id", "modules", "services"}``.

    Raises RolloutError: ``unsafe`` and nothing was done; ``reload`` and what was loaded before is loaded again;
    ``reload-lost`` where even that failed, and only a reboot helps.
    """
    with os.fdopen(atomic.open_descriptor(FOLDER + "/reload.lock"), "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        chosen = plan(expected, ident, kernel, of)
        if not chosen.needed and not of_this_boot(MARKER):
            return {"did": "nothing to do", **_summary(chosen)}
        if not chosen.safe:
            raise RolloutError("unsafe", f"no exchange of modules: {'; '.join(chosen.reasons)}", INSTEAD)
        with _old_modules(ident, chosen.modules) as old:
            atomic.write(MARKER, json.dumps(_summary(chosen), sort_keys=True) + "\n")
            problem = _exchange(chosen, of)
            if problem:
                _take_back(chosen, of, old, problem)
        atomic.remove(MARKER)
        unload.settle(ManagedHost())
    syslog.openlog(IDENT)
    syslog.syslog(syslog.LOG_NOTICE, f"exchanged {', '.join(chosen.modules)} in boot {chosen.boot_id}")
    return {"did": "reloaded", **_summary(chosen)}


def _exchange(chosen: Plan, of: Stack) -> str:
    """Why it failed; empty when everything is loaded from its installed file and its services run."""
    for unit in chosen.services:
        problem = systemctl("stop", unit)
        if problem:
            return problem
    # A program may have opened a device since.
    late = stack_use(of).foreign
    if late:
        return "; ".join(late)
    return _unload(of) or _load(chosen) or _start(chosen)


def _unload(of: Stack) -> str:
    for module in gpu.modules("/", of.modules):
        output = process.run(["rmmod", module["name"]], _TIMEOUT)
        if output.status != 0:
            return f"rmmod {module['name']}: {output.failure()}"
    return ""


def _load(chosen: Plan) -> str:
    for name in reversed(chosen.modules):
        output = process.run(["modprobe", name], _TIMEOUT)
        if output.status != 0:
            return f"modprobe {name}: {output.failure()}"
        if _is_other(name, chosen.files[name]):
            return f"after modprobe {name} the loaded module is not the one in {chosen.files[name]}"
    return ""


def _start(chosen: Plan) -> str:
    return "; ".join(filter(None, (systemctl("start", unit) for unit in reversed(chosen.services))))


def _take_back(chosen: Plan, of: Stack, old: Dict[str, str], problem: str) -> None:
    """Load what was loaded before; always raises RolloutError."""
    for unit in chosen.services:
        systemctl("stop", unit)
    loaded = {module["name"]: build_id(module["name"]) for module in gpu.modules("/", of.modules)}
    lost = ""
    if any(name in old and loaded[name] != read_module(old[name]).build_id for name in loaded):
        lost = _unload(of)
        loaded = {}
    for name in reversed(chosen.modules):
        if lost or name in loaded or name not in old:
            continue
        output = process.run(["insmod", old[name], *_options(name, old[name])], _TIMEOUT)
        lost = "" if output.status == 0 else f"insmod {name}: {output.failure()}"
    lost = lost or _start(chosen)
    if lost:
        words = (
            f"the modules could not be exchanged ({problem}), and the earlier ones could not be loaded again ({lost})"
        )
        raise RolloutError("reload-lost", words, "reboot this host")
    atomic.remove(MARKER)
    words = f"the modules could not be exchanged: {problem}; the earlier modules are loaded again"
    raise RolloutError("reload", words, INSTEAD)


@contextlib.contextmanager
def _old_modules(ident: str, names: List[str]) -> Iterator[Dict[str, str]]:
    """Module → a file with what was loaded, for as long as the context lasts."""
    release = os.uname().release
    archive = pack.kept_path(ident, release)
    if not os.path.isfile(archive):
        raise RolloutError("unsafe", f"there is no {archive}")
    place = tempfile.mkdtemp(prefix=".back-", dir=os.path.dirname(archive))
    try:
        manifest = pack.unpack(archive, release, place)
        modules = [module for module in manifest["modules"] if module["name"] in names]
        yield {module["name"]: os.path.join(place, module["file"]) for module in modules}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _irreversible(ident: str, loaded: List[str]) -> List[str]:
    """Why what is loaded could not be put back."""
    hint = f"rollout keep --id {ident} has to come before other packages do"
    try:
        with _old_modules(ident, loaded) as old:
            other = [name for name in loaded if name not in old or _is_other(name, old[name])]
    except (HostError, OSError) as error:
        return [f"what is loaded could not be put back: {error} ({hint})"]
    return [f"the loaded {name} is not the one that was kept ({hint})" for name in other]


def _problem(name: str, file: str) -> str:
    """Why the file that modprobe would load for a module cannot be; empty where it can."""
    if not file:
        return f"modprobe finds no file for the module {name}"
    try:
        read_module(file)
    except HostError as error:
        return error.message
    return ""


def _is_other(name: str, file: str) -> bool:
    """Whether the module is not loaded, or from another file than this one."""
    return build_id(name) != read_module(file).build_id or not os.path.isdir("/sys/module/" + name)


def _options(name: str, file: str) -> List[str]:
    """What modprobe.d gives the module, under the name of the kernel or of its file."""
    stem = os.path.basename(file).partition(".ko")[0].replace("-", "_")
    shown = process.run(["modprobe", "--showconfig"], _TIMEOUT).stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("options ")]
    return [word for row in rows if row[1].replace("-", "_") in (name, stem) for word in row[2:]]


def _summary(chosen: Plan) -> Dict[str, Any]:
    return {"boot_id": chosen.boot_id, "modules": chosen.modules, "services": chosen.services}
