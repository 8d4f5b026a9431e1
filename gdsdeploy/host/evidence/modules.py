"""The module files that modprobe would load on the running kernel, with their content."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import Any, Dict, List, Optional

from ..errors import HostError
from ..io import cache
from ..kmod.module import files_to_load, read_once, substitute_of
from ..kmod.tree import find_trees
from ..paths import MODPROBE, PROBE_FOLDERS, SOURCES
from .recorder import Recorder, failure
from .request import EvidenceRequest

MODULES = ("nvidia", "nvidia-fs", "nvidia-peermem")
#: Imports kept: those of the driver, of peer memory, of storage hooks, and the two that tie a module to its kernel.
IMPORTS = re.compile(r"nvidia_|^nv[A-Z_]|peer_memory|nvfs|^module_layout$|^_printk$|^printk$")
EXPORTS = re.compile(r"^nvidia_p2p_|peer_memory|nvfs")


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    inputs = kmod_inputs(recorder)
    for name in MODULES:
        output = recorder.command(MODPROBE + name, ["modprobe", "--show-depends", name], inputs=inputs).stdout
        replacement_name = substitute_of(output)
        if replacement_name:
            argv = ["modprobe", "--show-depends", "--ignore-install", replacement_name]
            output = recorder.command(MODPROBE + replacement_name, argv, inputs=inputs).stdout
        for path in files_to_load(output):
            if path.rpartition("/")[2].startswith("nv") and path not in recorder.document["modules"]:
                recorder.document["modules"][path] = digest(path)
        recorder.command("modinfo:" + name, ["modinfo", "-n", name], inputs=inputs)
    _trees(recorder)


def kmod_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about modprobe's and modinfo's answers; None where a part of it can't be read.

    The lists of depmod lie directly in the kernel's folder.  modprobe reads the kernel's command line, too.
    """
    arguments = recorder.text("/proc/cmdline")
    if arguments is None:
        return None
    release = recorder.document["host"]["uname"]["release"]
    paths = ("/sbin/modprobe", "/lib/modules/" + release, *PROBE_FOLDERS)
    words = (release, arguments, os.environ.get("MODPROBE_OPTIONS", ""))
    return cache.Inputs(tuple(map(recorder.at, paths)), words, _module_files)


def _module_files(output: str) -> List[str]:
    return files_to_load(output) or [line for line in output.splitlines() if line.startswith("/")]


def _trees(recorder: Recorder) -> None:
    """The driver sources on this host, with their digests; hosts that receive modules from a builder have none."""
    recorder.names(SOURCES, "nvidia*")
    for tree in find_trees(SOURCES):
        try:
            recorder.document["trees"][tree.path] = tree.as_dict()
        except HostError as error:
            recorder.document["trees"][tree.path] = failure(error)


def digest(path: str) -> Dict[str, Any]:
    """The relevant parts of a module file, as JSON; ``{"error"}`` if it can't be read."""
    try:
        module = read_once(path)
    except HostError as error:
        return {"error": str(error)}
    value = asdict(module)
    value["imports"] = _some(module.imports, IMPORTS)
    value["imports_total"] = len(module.imports)
    value["exports"] = {name: list(symbol) for name, symbol in _some(module.exports, EXPORTS).items()}
    value["exports_total"] = len(module.exports)
    value["weak"] = [name for name in module.weak if IMPORTS.search(name)]
    value["parms"] = {}
    return value


def _some(symbols: Dict[str, Any], pattern: re.Pattern[str]) -> Dict[str, Any]:
    return {name: symbols[name] for name in sorted(symbols) if pattern.search(name)}
