"""Whether this boot has the kernel arguments and module parameters that the profile sets."""

from __future__ import annotations

from typing import List, Mapping

from ..boot import arguments as words_of_kernel
from ..facts import HostFacts, Unknown, require
from ..facts.arguments import configured, shown_parameters
from ..model.expectation import Expectation
from ..paths import parameter_path
from .registry import Answer, check, failed, not_applicable, passed, unknown

_AGAIN = "Provision the host again: it sets them in the boot loader and in modprobe.d, and reboots"
_PENDING = "Reboot the host: the boot loader has them for the next boot"
#: Without this option nvme_core has no parameter of this name, and no multipath.
_MULTIPATH = "nvme_core.multipath"


@check(
    "boot.arguments",
    "this boot has the kernel arguments and module parameters of the profile",
    expects="those of boot in the fleet file, and of mode p2pdma",
    prevents="an IOMMU or NVMe multipath that is on again, because another program wrote the boot loader's arguments",
    of_running=True,
)
def arguments(facts: HostFacts, expectation: Expectation) -> Answer:
    expected = expectation.module_parameters
    if not expectation.boot_arguments and not expected:
        return not_applicable("the profile sets no kernel arguments and no parameters of modules")
    values = ", ".join([*expectation.boot_arguments, *(f"{key}={value}" for key, value in sorted(expected.items()))])
    words = require(facts.kernel.command_line)
    names = {words_of_kernel.name(word) for word in expectation.boot_arguments}
    lines = [
        "/proc/cmdline: {}".format(" ".join(w for w in words if words_of_kernel.name(w) in names) or "none of them")
    ]
    missing = words_of_kernel.unmet(words, expectation.boot_arguments)
    if missing:
        text = "this boot is without {}".format(", ".join(missing))
        entries = configured(facts.document, expectation.kernel_release)
        if not isinstance(entries, Unknown) and not any(words_of_kernel.unmet(entry, missing) for entry in entries):
            return failed(f"reboot pending: {text}, which the next boot has", _PENDING, lines, expected=values)
        return failed(text, _AGAIN, lines, expected=values)
    shown = {key: require(value) for key, value in shown_parameters(facts.document, expected).items()}
    lines += [f"{parameter_path(key)}: {value}" for key, value in shown.items() if value is not None]
    wrong = words_of_kernel.differing(shown, expected)
    if wrong:
        text = ", ".join(f"{key} is {shown[key]}" for key in wrong)
        return failed(text, _hint(facts, wrong[0], expected[wrong[0]]), lines, expected=values)
    hidden = _hidden(facts, shown)
    if hidden:
        words_hidden = "the kernel doesn't show {}".format(", ".join(hidden))
        return unknown(words_hidden, "Check the names with modinfo --parameters", expected=values)
    return passed("all of them", lines, expected=values)


def _hint(facts: HostFacts, key: str, value: str) -> str:
    module = key.partition(".")[0]
    if module not in require(facts.kernel.modules):
        return f'It is built into the kernel: write boot: {{arguments: {{{key}: "{value}"}}}} in the profile'
    search = f"grep -r {module} /etc/modprobe.d /usr/lib/modprobe.d /proc/cmdline"
    return f"Reboot the host if it was provisioned since its boot. Otherwise look for another value: {search}"


def _hidden(facts: HostFacts, shown: Mapping[str, object]) -> List[str]:
    """Parameters of loaded modules that sysfs doesn't have."""
    modules = require(facts.kernel.modules)
    hidden = [key for key, value in shown.items() if value is None and key.partition(".")[0] in modules]
    if _MULTIPATH in hidden and require(facts.kernel.option("NVME_MULTIPATH")) == "n":
        hidden.remove(_MULTIPATH)
    return hidden
