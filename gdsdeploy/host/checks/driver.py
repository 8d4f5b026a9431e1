"""The NVIDIA driver, and nouveau in its place."""

from __future__ import annotations

from typing import Tuple

from ..facts import HostFacts, UndecidedError, known
from ..facts.modules import ModuleFacts, ModuleFile
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed


def messages(facts: HostFacts, *words: str) -> Tuple[str, ...]:
    """The last kernel messages with one of ``words``, as evidence only."""
    found = facts.kernel.messages if isinstance(facts.kernel.messages, tuple) else ()
    return tuple(line for line in found if any(word in line for word in words))[-6:]


def its_file(module: ModuleFacts) -> ModuleFile:
    """The file of a module, once it is known to be what is loaded; raises UndecidedError otherwise."""
    file = known(module.file)
    if file is None:
        raise UndecidedError(f"modprobe finds no file for {module.name}")
    if known(module.loaded) and not known(module.is_its_file()):
        raise UndecidedError(f"the loaded {module.name} is not the file {file.path}, which is all that can be read")
    return file


def judge_file(facts: HostFacts, module: ModuleFacts) -> Answer:
    """Whether a reboot would load the same module again."""
    file = known(module.file)
    if not known(module.loaded):
        where = "no file of it either" if file is None else f"its file is {file.path}"
        return failed(f"{module.name} is not loaded; {where}", "See the check for its loaded version")
    if file is None:
        hint = "Install the module for this kernel: provision the host again"
        return failed(f"loaded, but modprobe finds no file for kernel {known(facts.kernel.release)}", hint)
    if known(module.is_its_file()):
        return passed(file.path)
    return failed(
        f"{file.path} is another build than the one that is loaded",
        "Reboot the host; if it stays so, an old copy sits in the initramfs: rebuild it for this kernel",
        [f"loaded: version {module.version} build id {module.build_id}",
         f"file:   version {file.version} build id {file.build_id}"],
    )  # fmt: skip


def judge_kernel(facts: HostFacts, module: ModuleFacts) -> Answer:
    """Whether the module's file was built for the running kernel."""
    file = known(module.file)
    release = known(facts.kernel.release)
    expected = f"vermagic {release}"
    hint = "Build it for this kernel: provision the host again"
    if file is None:
        return failed(f"modprobe finds no {module.name} for {release}", hint, expected=expected)
    if file.kernel == release:
        return passed(f"vermagic {file.kernel} in {file.path}", expected=expected)
    return failed(f"vermagic {file.kernel} in {file.path}", hint, expected=expected)


@check(
    "driver.loaded-version",
    "the loaded nvidia module is the locked version",
    expects="nvidia {driver_version}",
    prevents="a driver that was upgraded or downgraded under the stack, and no longer fits what was built for it",
    of_running=True,
)
def loaded_version(facts: HostFacts, expectation: Expectation) -> Answer:
    version = known(facts.driver.version)
    if version is None:
        return failed(
            "the nvidia module is not loaded",
            "Load it and read what the kernel says: modprobe nvidia; dmesg | grep -e NVRM -e nvidia",
            messages(facts, "NVRM", "nvidia"),
        )
    if version == expectation.driver_version:
        return passed("nvidia " + version)
    return failed("nvidia " + version, "Provision the host again and let it reboot; then validate")


@check(
    "driver.flavour",
    "the loaded nvidia module is of the locked flavour",
    expects="{driver_flavour}",
    prevents="the proprietary module under an nvidia-fs that links against GPL-only symbols of the open one",
    of_running=True,
)
def flavour(facts: HostFacts, expectation: Expectation) -> Answer:
    found = known(facts.driver.flavour)
    if found is None:
        return failed("the nvidia module is not loaded", "See the check driver.loaded-version")
    if found == expectation.driver_flavour:
        return passed(found)
    hint = f"Remove the packages of the {found} flavour, provision again and reboot"
    return failed(found, hint)


@check(
    "driver.loaded-file",
    "the loaded nvidia module is the file that modprobe would load",
    expects="the same build in memory and on disk",
    prevents="a module that was replaced on disk, or in the initramfs, and differs after the next reboot",
    of_running=True,
)
def loaded_file(facts: HostFacts, _expectation: Expectation) -> Answer:
    return judge_file(facts, facts.driver.module)


@check(
    "driver.built-for-kernel",
    "the nvidia module was built for the running kernel",
    expects="vermagic {kernel_release}",
    prevents="a host that comes up without its driver after a kernel upgrade",
    of_running=True,
)
def built_for_kernel(facts: HostFacts, _expectation: Expectation) -> Answer:
    return judge_kernel(facts, facts.driver.module)


@check(
    "nouveau.absent",
    "nouveau is not loaded and cannot be loaded at boot",
    expects="not loaded, and kept out",
    prevents="nouveau taking the GPUs before nvidia can",
)
def nouveau(facts: HostFacts, expectation: Expectation) -> Answer:
    hint = "Provision again: it forbids nouveau in /etc/modprobe.d and rebuilds the initramfs; then reboot"
    if expectation.own_kernel and "nouveau" in known(facts.kernel.modules):
        return failed("nouveau is loaded", hint, messages(facts, "nouveau"))
    if "nouveau" in known(facts.boot.forbidden):
        return passed("not loaded, and forbidden in modprobe.d or on the kernel's command line")
    return failed("not loaded, but nothing keeps it out", hint)
