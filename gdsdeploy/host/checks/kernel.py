"""The kernel that runs: its release, arguments, boot and Secure Boot."""

from __future__ import annotations

from typing import List, Mapping

from ..boot import arguments as words_of_kernel
from ..facts import HostFacts, UndecidedError
from ..facts.host_facts import judge, stack
from ..facts.kernel import configured, shown_parameters
from ..facts.unknown import if_known
from ..kmod.flavour import flavour_of
from ..kmod.module import NOTE
from ..model.expectation import Expectation
from ..paths import parameter_path
from ..secure_boot.firmware import WORDS
from ..subjects.register import Answer, check, failed, not_applicable, passed, unknown
from .modules import packaged_words

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
    words = facts.kernel.command_line
    names = {words_of_kernel.name(word) for word in expectation.boot_arguments}
    lines = [
        "/proc/cmdline: {}".format(" ".join(w for w in words if words_of_kernel.name(w) in names) or "none of them")
    ]
    missing = words_of_kernel.unmet(words, expectation.boot_arguments)
    if missing:
        text = "this boot is without {}".format(", ".join(missing))
        entries = if_known(lambda: configured(facts.document, expectation.kernel_release), None)
        if entries is not None and not any(words_of_kernel.unmet(entry, missing) for entry in entries):
            return failed(f"reboot pending: {text}, which the next boot has", _PENDING, lines, expected=values)
        return failed(text, _AGAIN, lines, expected=values)
    shown = shown_parameters(facts.document, expected)
    lines += [f"{parameter_path(key)}: {value}" for key, value in shown.items() if value is not None]
    wrong = words_of_kernel.differing(shown, expected)
    if wrong:
        text = ", ".join(f"{key} is {shown[key]}" for key in wrong)
        return failed(text, _hint_of_argument(facts, wrong[0], expected[wrong[0]]), lines, expected=values)
    hidden = _hidden(facts, shown)
    if hidden:
        words_hidden = "the kernel doesn't show {}".format(", ".join(hidden))
        return unknown(words_hidden, "Check the names with modinfo --parameters", expected=values)
    return passed("all of them", lines, expected=values)


def _hint_of_argument(facts: HostFacts, key: str, value: str) -> str:
    module = key.partition(".")[0]
    if module not in facts.kernel.modules:
        return f'It is built into the kernel: write boot: {{arguments: {{{key}: "{value}"}}}} in the profile'
    search = f"grep -r {module} /etc/modprobe.d /usr/lib/modprobe.d /proc/cmdline"
    return f"Reboot the host if it was provisioned since its boot. Otherwise look for another value: {search}"


def _hidden(facts: HostFacts, shown: Mapping[str, object]) -> List[str]:
    """Parameters of loaded modules that sysfs doesn't have."""
    modules = facts.kernel.modules
    hidden = [key for key, value in shown.items() if value is None and key.partition(".")[0] in modules]
    if _MULTIPATH in hidden and facts.kernel.option("NVME_MULTIPATH") == "n":
        hidden.remove(_MULTIPATH)
    return hidden


UNIT = "systemd-modules-load.service"
PEERMEM, PEERMEM_UNIT = "nvidia_peermem", "gds-peermem.service"


@check(
    "boot.autoload",
    "the modules are loaded at boot, the driver before what links against it",
    expects="nvidia first, then the rest of the stack, in modules-load.d",
    prevents="a host that works until its first reboot because nothing loads nvidia-fs",
    of_provision=True,
)
def autoload(facts: HostFacts, expectation: Expectation) -> Answer:
    # nvidia-peermem needs the RDMA core first, so a unit loads it.
    names = [name for name in expectation.modules() if name != PEERMEM]
    expected = " before ".join(names) + " in modules-load.d"
    expected += f", nvidia-peermem by {PEERMEM_UNIT}" if expectation.rdma == "peermem" else ""
    hint = "Provision the host again: it writes /etc/modules-load.d/gdsdeploy.conf"
    listed, forbidden = facts.boot.autoloaded, facts.boot.forbidden
    missing = [name for name in names if name not in listed]
    if missing:
        return failed("modules-load.d lacks {}".format(", ".join(missing)), hint, expected=expected)
    order = [name for name in listed if name in names]
    if order[0] != "nvidia":
        return failed("the order is {}".format(", ".join(order)), hint, expected=expected)
    denied = [name for name in names if name in forbidden]
    if denied:
        remove = f"Remove it: grep -r {denied[0]} /etc/modprobe.d /proc/cmdline"
        where = "modprobe.d or the kernel's command line forbids {}".format(", ".join(denied))
        return failed(where, remove, expected=expected)
    unit = _unit(facts, UNIT)
    if expectation.own_kernel and unit.get("ActiveState") == "failed":
        return failed(f"{UNIT} failed at this boot", f"Read why: systemctl status {UNIT}", expected=expected)
    # In modules-load.d nvidia-peermem comes too early for OFED, but it comes.
    needs_unit = expectation.rdma == "peermem" and PEERMEM not in listed
    if needs_unit and _unit(facts, PEERMEM_UNIT).get("UnitFileState") != "enabled":
        return failed(f"nothing loads nvidia-peermem: {PEERMEM_UNIT} is not enabled", hint, expected=expected)
    return passed(", ".join(order), expected=expected)


def _unit(facts: HostFacts, name: str) -> Mapping[str, str]:
    """The properties of a unit; raises UndecidedError where systemd doesn't know it."""
    units = facts.boot.units
    if name not in units:
        raise UndecidedError(f"systemd doesn't know {name}")
    return units[name]


#: Bits of /proc/sys/kernel/tainted that mean damage (Documentation/admin-guide/tainted-kernels.rst).
DAMAGE = {
    1: "a module was loaded by force",
    3: "a module was unloaded by force",
    4: "the processor reported a machine check",
    5: "a bad page was met",
    7: "the kernel had an oops",
    14: "a soft lockup happened",
}
#: Bits that the finding mentions.  Every driver outside the kernel's tree taints it.
REMARKABLE = {
    0: "a proprietary module is loaded",
    9: "the kernel warned",
    13: "an unsigned module is loaded",
    15: "the kernel was live-patched",
}


@check(
    "kernel.taints",
    "the kernel has not been damaged since it booted",
    expects="no oops, no machine check, nothing loaded by force",
    prevents="jobs on a host whose kernel has already failed once",
    of_running=True,
)
def taints(facts: HostFacts, _expectation: Expectation) -> Answer:
    value = facts.kernel.tainted
    wrong = [words for bit, words in DAMAGE.items() if value >> bit & 1]
    if wrong:
        hint = "Read the cause (journalctl -k -b), then reboot; after a machine check, have the hardware tested"
        return failed("; ".join(wrong), hint, [f"/proc/sys/kernel/tainted is {value}"])
    remarks = [words for bit, words in REMARKABLE.items() if value >> bit & 1]
    return passed("; ".join(remarks) or ("tainted by modules outside its tree only" if value else "not tainted"))


@check(
    "kernel.running",
    "the running kernel is the locked one",
    expects="{kernel_release}",
    prevents="modules that are missing or have another version because the host booted another installed kernel",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    release = facts.kernel.release
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
    default = facts.boot.default_kernel
    if default == expectation.kernel_release:
        return passed(default)
    if default is None:
        return not_applicable("no supported boot loader, as in a guest whose kernel comes from outside")
    return failed(default, "Provision the host again, or set the default with grub-set-default and run update-grub")


#: Findings of the audit that are about signatures.
_REFUSED = (
    "unsigned", "signature-malformed", "signature-wrong", "signature-key", "signature-key-pending",
    "signature-key-revoked",
)  # fmt: skip
_UNDECIDED = ("signature-key-unknown", "secure-boot-unknown", "enforcement-unknown")
_HINT = "Sign the modules with an enrolled key: docs/secure-boot.md"


@check(
    "secure-boot.signatures",
    "every module of the stack has a signature that its kernel accepts",
    expects="signed with an enrolled key, where the kernel asks for signatures",
    prevents="modules that Secure Boot refuses after the reboot into a kernel that they were built for unsigned",
    of_running=True,
)
def signatures(facts: HostFacts, expectation: Expectation) -> Answer:
    state = facts.kernel.secure_boot_state
    kernels = (facts.audits.running, facts.audits.next)
    findings = [
        (finding, f"{module.module} on kernel {kernel.release}: {finding.message}")
        for kernel in kernels
        for module in kernel.modules
        for finding in module.findings
        if module.module in expectation.modules() and finding.severity != NOTE
    ]
    refused = [(finding, message) for finding, message in findings if finding.id in _REFUSED]
    if refused:
        return failed(refused[0][1], refused[0][0].hint or _HINT, [message for _, message in refused])
    for finding, message in findings:
        if finding.id in _UNDECIDED:
            raise UndecidedError(message)
    words, lockdown = WORDS[state], if_known(lambda: facts.kernel.lockdown, "none")
    if lockdown != "none":
        words += f", the kernel is locked down ({lockdown})"
    packaged = [
        f"{module.module} on kernel {kernel.release}: {packaged_words(module)}"
        for kernel in dict.fromkeys(kernels)
        for module in kernel.modules
        if module.package
    ]
    words += "; the kernel would refuse no module of the stack for its signature"
    return passed("; ".join([words, *packaged[:1]]), packaged)


@check(
    "stack.compatible",
    "no compatibility rule forbids what runs together",
    expects="kernel, driver, nvidia-fs, DOCA and libcufile that the rules of compat.yml allow together",
    prevents="a host that drifted into a combination that fails at the first transfer or the next build",
    of_running=True,
)
def compatible(facts: HostFacts, expectation: Expectation) -> Answer:
    verdict = judge(facts, expectation.mode, expectation.rdma, expectation.rules)
    runs = ", ".join(f"{part} {version}" for part, version in stack(facts))
    if verdict.forbidden:
        rules = [verdict.rules[name] for name in verdict.forbidden]
        fixes = "; ".join(dict.fromkeys(rule.fixed for rule in rules if rule.fixed))
        hint = "Provision the host again" + (f"; the rules name what fits: {fixes}" if fixes else "")
        words = "; ".join(f"[{name}] {words}" for name, words in verdict.forbidden.items())
        return failed(words, hint, [f"{rule.id}: {rule.known}: {rule.source}" for rule in rules])
    if verdict.undecided:
        raise UndecidedError("; ".join(f"[{name}] {reason}" for name, reason in verdict.undecided.items()))
    warnings = [f"{name}: {words}" for name, words in verdict.warnings.items()]
    note = f"; rules with a warning: {', '.join(verdict.warnings)}" if warnings else ""
    return passed(runs + note, warnings)
