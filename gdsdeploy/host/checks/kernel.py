"""The running kernel and the one that the next boot starts."""

from __future__ import annotations

from ..facts import HostFacts, require
from ..kmod.flavour import flavour_of
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed, subject

subject("kernel", after="container")


@check(
    "kernel.running",
    "the running kernel is the locked one",
    expects="{kernel_release}",
    prevents="modules that are missing or have another version because the host booted another installed kernel",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    release = require(facts.kernel.release)
    if release == expectation.kernel_release:
        return passed(release)
    runs, locked = flavour_of(release), flavour_of(expectation.kernel_release)
    if runs and locked and runs.vendor == locked.vendor and runs.name != locked.name:
        keep = f"write `kernel: {{flavour: {runs.name}}}` in profile {expectation.profile}, then gdsdeploy lock"
        return failed(
            f"{release}, of another flavour ({runs.name}, not {locked.name})",
            f"To keep this flavour, {keep}; to change it, provision the host",
        )
    return failed(release, "Provision the host again: it sets the default kernel and reboots; then validate")


@check(
    "kernel.boot-default",
    "the boot loader's default is the locked kernel",
    expects="{kernel_release}",
    prevents="a host that passes today and comes back from its next reboot with another kernel",
    of_running=True,
)
def boot_default(facts: HostFacts, expectation: Expectation) -> Answer:
    default = require(facts.boot.default_kernel)
    if default == expectation.kernel_release:
        return passed(default)
    if default is None:
        return not_applicable("no supported boot loader, as in a guest whose kernel comes from outside")
    return failed(default, "Provision the host again, or set the default with grub-set-default and run update-grub")
