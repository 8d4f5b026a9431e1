"""Exchange NVIDIA's modules without a reboot: only where nobody uses them, and only if what was there can be put back.

``plan`` says whether that is so, and why not.  ``exchange`` stops services, unloads from the top, loads from the
bottom, and makes sure that what is loaded then is what is installed; if anything fails, the modules that were loaded
before are loaded again from the kept archive.  A run that was killed half-way is finished by the next one in that boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import syslog
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterator, List

from .. import process
from ..archive import keep, pack
from ..boot import needed as pending
from ..boot.present import boot_id
from ..errors import HostError, RolloutError
from ..io import atomic
from ..kmod.module import read_module
from . import gpu, stack
from .reboot import FOLDER, IDENT
from .stack import NVIDIA, Stack

MARKER = FOLDER + "/reload.json"
_TIMEOUT = 180.0
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


def plan(wanted: str, ident: str, kernel: str = "", of: Stack = NVIDIA) -> Plan:
    """Look, and change nothing.  Raises RolloutError (``boot``) where this is not boot ``wanted``.

    ident: of the rollout that kept the loaded modules.  kernel: the one that is to run afterwards; empty: any.
    """
    present, running = boot_id(), os.uname().release
    if present != wanted:
        raise RolloutError("boot", f"this is boot {present}, not {wanted}", "ask for the status again")
    begun = _begun()
    loaded = [item["name"] for item in gpu.modules("/", of.modules)]
    found = stack.use(of)
    services = [unit for unit in of.services if unit in found.services or unit in begun.get("services", [])]
    # Its unit unloads and loads it.
    mine = [name for name in of.modules if name in loaded or name in begun.get("modules", [])]
    if stack.PEERMEM_UNIT in services:
        mine = [name for name in mine if name not in _PEERMEM]
    files = {name: pending.file_of(name) for name in mine}
    reasons = [f"the running kernel is {running}, not {kernel}"] if kernel not in ("", running) else []
    problems = {name: _problem(name, file) for name, file in files.items()}
    reasons += found.foreign + [item for item in problems.values() if item]
    needed = any(problems[name] or _is_other(name, file) for name, file in files.items())
    if needed and not begun:
        reasons += _kept(ident, [name for name in mine if name in loaded])
    return Plan(needed, present, reasons, mine, services, files)


def exchange(wanted: str, ident: str, kernel: str = "", of: Stack = NVIDIA) -> Dict[str, Any]:
    """Do it; returns ``{"did": "reloaded" | "nothing to do", "boot_id", "modules", "services"}``.

    Raises RolloutError: ``unsafe`` and nothing was done; ``reload`` and what was loaded before is loaded again;
    ``reload-lost`` where even that failed, and only a reboot helps.
    """
    with os.fdopen(atomic.opened(FOLDER + "/reload.lock"), "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        chosen = plan(wanted, ident, kernel, of)
        if not chosen.needed and not _begun():
            return _answer("nothing to do", chosen)
        if not chosen.safe:
            raise RolloutError("unsafe", "no exchange of modules: {}".format("; ".join(chosen.reasons)), INSTEAD)
        with _old(ident, chosen.modules) as old:
            _write(chosen)
            problem = _exchanged(chosen, of)
            if problem:
                _take_back(chosen, of, old, problem)
        atomic.remove(MARKER)
    words = "exchanged {} in boot {}".format(", ".join(chosen.modules), chosen.boot_id)
    syslog.openlog(IDENT)
    syslog.syslog(syslog.LOG_NOTICE, words)
    return _answer("reloaded", chosen)


def _exchanged(chosen: Plan, of: Stack) -> str:
    """Why it failed; empty when everything is loaded from its installed file and its services run."""
    for unit in chosen.services:
        problem = stack.stop(unit)
        if problem:
            return problem
    # Without the services nothing may be left, and somebody may have come since.
    late = stack.use(of).foreign
    if late:
        return "; ".join(late)
    return _unload(of) or _load(chosen) or _start(chosen)


def _unload(of: Stack) -> str:
    for item in gpu.modules("/", of.modules):
        done = process.run(["rmmod", item["name"]], _TIMEOUT)
        if done.status != 0:
            return "rmmod {}: {}".format(item["name"], _last(done))
    return ""


def _load(chosen: Plan) -> str:
    for name in reversed(chosen.modules):
        done = process.run(["modprobe", name], _TIMEOUT)
        if done.status != 0:
            return f"modprobe {name}: {_last(done)}"
        if _is_other(name, chosen.files[name]):
            return f"after modprobe {name} the loaded module is not the one in {chosen.files[name]}"
    return ""


def _start(chosen: Plan) -> str:
    problems = [stack.start(unit) for unit in reversed(chosen.services)]
    return "; ".join(item for item in problems if item)


def _take_back(chosen: Plan, of: Stack, old: Dict[str, str], problem: str) -> None:
    """Load what was loaded before; always raises RolloutError."""
    for unit in chosen.services:
        stack.stop(unit)
    there = {item["name"]: stack.build_id(item["name"]) for item in gpu.modules("/", of.modules)}
    lost = ""
    if any(name in old and there[name] != read_module(old[name]).build_id for name in there):
        lost = _unload(of)
        there = {}
    for name in reversed(chosen.modules):
        if lost or name in there or name not in old:
            continue
        done = process.run(["insmod", old[name], *_options(name, old[name])], _TIMEOUT)
        lost = "" if done.status == 0 else f"insmod {name}: {_last(done)}"
    lost = lost or _start(chosen)
    if lost:
        words = "the modules could not be exchanged ({}), and what was loaded could not be loaded again ({})"
        raise RolloutError("reload-lost", words.format(problem, lost), "reboot this host")
    atomic.remove(MARKER)
    words = "the modules could not be exchanged: {}; what was loaded before is loaded again"
    raise RolloutError("reload", words.format(problem), INSTEAD)


@contextlib.contextmanager
def _old(ident: str, names: List[str]) -> Iterator[Dict[str, str]]:
    """Module → a file with what was loaded, for as long as the context lasts."""
    release = os.uname().release
    archive = keep.path(ident, release)
    if not os.path.isfile(archive):
        raise RolloutError("unsafe", f"there is no {archive}")
    place = tempfile.mkdtemp(prefix=".back-", dir=os.path.dirname(archive))
    try:
        manifest = pack.unpack(archive, release, place)
        found = {item["name"]: os.path.join(place, item["file"]) for item in manifest["modules"]}
        yield {name: path for name, path in found.items() if name in names}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _kept(ident: str, loaded: List[str]) -> List[str]:
    """Why what is loaded could not be put back."""
    hint = f"rollout keep --id {ident} has to come before other packages do"
    try:
        with _old(ident, loaded) as old:
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
    return stack.build_id(name) != read_module(file).build_id or not os.path.isdir("/sys/module/" + name)


def _options(name: str, file: str) -> List[str]:
    """What modprobe.d gives the module, under the name of the kernel or of its file."""
    stem = os.path.basename(file).partition(".ko")[0].replace("-", "_")
    shown = process.run(["modprobe", "--showconfig"], _TIMEOUT).stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("options ")]
    return [word for row in rows if row[1].replace("-", "_") in (name, stem) for word in row[2:]]


def _begun() -> Dict[str, Any]:
    """What a run that did not end wrote down in this boot."""
    try:
        with open(MARKER, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and value.get("boot_id") == boot_id() else {}


def _write(chosen: Plan) -> None:
    value = {"boot_id": chosen.boot_id, "modules": chosen.modules, "services": chosen.services}
    atomic.write(MARKER, json.dumps(value, sort_keys=True) + "\n")


def _last(done: process.Output) -> str:
    return (done.stderr.strip().splitlines() or [f"exit status {done.status}"])[-1]


def _answer(did: str, chosen: Plan) -> Dict[str, Any]:
    return {"did": did, "boot_id": chosen.boot_id, "modules": chosen.modules, "services": chosen.services}
