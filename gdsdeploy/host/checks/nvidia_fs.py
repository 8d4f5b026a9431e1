"""nvidia-fs: loaded, in the locked version, and built against the running driver."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

from ..facts import HostFacts, UndecidedError, require
from ..facts.modules import ModuleFile
from ..model.expectation import Expectation
from .driver import check_module_file, its_file, messages
from .registry import Answer, check, failed, not_applicable, passed, subject

subject("nvidia-fs", after="nouveau")

#: Up to this release nvidia-fs finds the driver's symbols at run time and imports none.
LAST_WITH_SYMBOL_GET = (2, 17, 4)
P2P = "nvidia_p2p_"
REBUILD = "Rebuild nvidia-fs against the running driver: provision the host again and let it reboot"


def _not_needed(expectation: Expectation) -> Optional[Answer]:
    """The answer for hosts whose mode doesn't use nvidia-fs."""
    if expectation.nvidia_fs_version:
        return None
    return not_applicable(f"not needed: the mode is {expectation.mode}")


def _not_loaded(facts: HostFacts, expectation: Expectation) -> Optional[Answer]:
    """The answer for hosts that don't need nvidia-fs, or haven't loaded it."""
    if not expectation.nvidia_fs_version or require(facts.nvidia_fs.module.loaded):
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
def loaded_version(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_loaded(facts, expectation):
        return early
    version = require(facts.nvidia_fs.module.version)
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
    return failed(
        "{} of {} differ: {}".format(len(wrong), len(imports), ", ".join(name for name, _ in wrong)),
        "Rebuild nvidia-fs against the running driver's tree and its Module.symvers: provision the host again",
        _differences(wrong, driver),
    )


def _no_imports(module: ModuleFile) -> Answer:
    version = tuple(map(int, re.findall(r"\d{1,18}", module.version)[:3]))
    if version and version <= LAST_WITH_SYMBOL_GET:
        return passed("imports none: nvidia-fs up to 2.17.4 looks the driver's symbols up when they are needed")
    return failed(f"it imports no {P2P}* symbol at all", "Rebuild nvidia-fs: provision the host again")


def _differences(wrong: List[Tuple[str, Optional[int]]], driver: ModuleFile) -> List[str]:
    exports = {name: f"exports {_crc(crc)}" for name, crc in driver.exports.items()}
    return [
        f"{name}: nvidia-fs needs {_crc(crc)}, the driver {exports.get(name, 'does not export it')}"
        for name, crc in wrong
    ]


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
    running, flavour = require(facts.driver.version), require(facts.driver.flavour)
    built = "built against nvidia {} ({})".format(record["driver"], record.get("flavour", "?"))
    evidence = [f"gdsdeploy_{key}={value}" for key, value in sorted(record.items())]
    if (record["driver"], record.get("flavour")) != (running, flavour):
        runs = f"nvidia {running} ({flavour}) runs" if running else "no driver runs"
        return failed(f"{built}; {runs}", REBUILD, evidence)
    tree = expectation.driver_tree
    digest = require(facts.driver.tree_digest(tree))
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
    present, count = require(facts.nvidia_fs.devices), require(facts.nvidia_fs.device_count)
    hint = "Let udev make them: udevadm trigger; or load nvidia-fs again: modprobe -r nvidia-fs; modprobe nvidia-fs"
    if not count:
        return failed("nvidia-fs announces no devices", hint)
    missing = [number for number in range(count) if number not in present]
    if not missing:
        return passed(f"/dev/nvidia-fs0 to {count - 1}")
    return failed(f"{count - len(missing)} of {count} exist; /dev/nvidia-fs{missing[0]} is missing", hint)
