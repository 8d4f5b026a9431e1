"""The NVIDIA driver, nouveau in its place, and the checks that every loaded module shares."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from ..facts import HostFacts, UndecidedError, require
from ..facts.modules import ModuleFacts, ModuleFile
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, subject

subject("driver", after="topology")
subject("nouveau", after="driver")


def messages(facts: HostFacts, *words: str) -> Tuple[str, ...]:
    """The last kernel messages with one of ``words``, as evidence only."""
    lines = facts.kernel.messages if isinstance(facts.kernel.messages, tuple) else ()
    return tuple(line for line in lines if any(word in line for word in words))[-6:]


def its_file(module: ModuleFacts) -> ModuleFile:
    """The file of a module, if it is known to be the loaded one; raises UndecidedError otherwise."""
    file = require(module.file)
    if file is None:
        raise UndecidedError(f"modprobe finds no file for {module.name}")
    if require(module.loaded) and not require(module.is_its_file()):
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
    file = require(module.file)
    if not require(module.loaded):
        where = "it has no file either" if file is None else f"its file is {file.path}"
        return failed(f"{module.name} is not loaded; {where}", "See the check for its loaded version")
    if file is None:
        hint = "Install the module for this kernel: provision the host again"
        return failed(f"loaded, but modprobe finds no file for kernel {require(facts.kernel.release)}", hint)
    if require(module.is_its_file()):
        return passed(file.path)
    return failed(
        f"{file.path} is another build than the loaded one",
        "Reboot the host; if that doesn't help, the initramfs has an old copy: rebuild it for this kernel",
        [f"loaded: version {module.version} build id {module.build_id}",
         f"file:   version {file.version} build id {file.build_id}"],
    )  # fmt: skip


def _judge_kernel(facts: HostFacts, module: ModuleFacts) -> Answer:
    file, release = require(module.file), require(facts.kernel.release)
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
    version = require(facts.driver.version)
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
    loaded = require(facts.driver.flavour)
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
    if expectation.own_kernel and "nouveau" in require(facts.kernel.modules):
        return failed("nouveau is loaded", hint, messages(facts, "nouveau"))
    if "nouveau" in require(facts.boot.forbidden):
        return passed("not loaded, and forbidden in modprobe.d or on the kernel's command line")
    return failed("not loaded, but nothing keeps it out", hint)
