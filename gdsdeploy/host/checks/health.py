"""Damage of the kernel since the boot, and the state of DKMS."""

from __future__ import annotations

import re

from ..facts import HostFacts, require
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed

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
#: Of ``dkms status``: ``nvidia-fs/2.19.7, 6.12.94+deb13-amd64, x86_64: installed (…)``.
DKMS = re.compile(r"^(?P<name>nvidia[\w.+-]*)/(?P<version>[^,]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.*)$")


@check(
    "kernel.taints",
    "the kernel has not been damaged since it booted",
    expects="no oops, no machine check, nothing loaded by force",
    prevents="jobs on a host whose kernel has already failed once",
    of_running=True,
)
def taints(facts: HostFacts, _expectation: Expectation) -> Answer:
    value = require(facts.kernel.tainted)
    wrong = [words for bit, words in DAMAGE.items() if value >> bit & 1]
    if wrong:
        hint = "Read the cause (journalctl -k -b), then reboot; after a machine check, have the hardware tested"
        return failed("; ".join(wrong), hint, [f"/proc/sys/kernel/tainted is {value}"])
    remarks = [words for bit, words in REMARKABLE.items() if value >> bit & 1]
    return passed("; ".join(remarks) or ("tainted by modules outside its tree only" if value else "not tainted"))


@check(
    "packages.dkms",
    "DKMS has installed the stack's modules for the locked kernel, as it built them",
    expects="every nvidia module of DKMS installed for {kernel_release}",
    prevents="a kernel that boots without its modules because a build failed, was interrupted, or was replaced by hand",
)
def dkms(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.packaged:
        return not_applicable("packages bring the modules: modules.next-boot names what has precedence over theirs")
    if "dkms" not in require(facts.packages.installed):
        return not_applicable("DKMS is not installed: the modules are received")
    lines, release = require(facts.packages.dkms), expectation.kernel_release
    rows = [match.group(0, "name", "kernel", "state") for match in map(DKMS.match, lines) if match]
    if not rows:
        return not_applicable("DKMS has no modules of this stack")
    bad = [line for line, _, _, state in rows if "Diff between" in state or "broken" in state]
    names = sorted({name for _, name, _, _ in rows})
    installed = {name for _, name, kernel, state in rows if kernel == release and "installed" in state}
    missing = [name for name in names if name not in installed]
    idle = facts.packages.dkms_idle if isinstance(facts.packages.dkms_idle, tuple) else ()
    bad += [f"{name} is not installed for {release}" for name in missing if name not in idle]
    if not bad and missing == names:
        return not_applicable("DKMS has a recipe that builds nothing: the modules are received")
    if bad:
        hint = f"Provision the host again; by hand: dkms install NAME/VERSION -k {release}"
        return failed("; ".join(bad), hint, lines)
    others = len({kernel for _, _, kernel, _ in rows if kernel} - {release})
    also = f", and for {others} other kernel{'s' if others > 1 else ''}" if others else ""
    return passed("{} for {}{}".format(", ".join(name for name in names if name in installed), release, also), lines)
