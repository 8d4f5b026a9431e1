"""What went wrong since the boot, and what DKMS holds."""

from __future__ import annotations

import re
from typing import List

from ..facts import HostFacts, known
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

#: Bits of /proc/sys/kernel/tainted that mean damage (Documentation/admin-guide/tainted-kernels.rst).
DAMAGE = {
    1: "a module was loaded by force",
    3: "a module was unloaded by force",
    4: "the processor reported a machine check",
    5: "a bad page was met",
    7: "the kernel had an oops",
    14: "a soft lockup happened",
}
#: Bits that are worth a word.  A driver outside the kernel's tree taints it by being there.
REMARKABLE = {
    0: "a proprietary module is loaded",
    9: "the kernel warned",
    13: "an unsigned module is loaded",
    15: "the kernel was live-patched",
}
#: Xid errors that a program causes by its own fault (NVIDIA's "Xid Errors"): engine exception, MMU fault, and the
#: resets and clean-ups that follow.
OF_PROGRAMS = (13, 31, 43, 45)
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,18})")
#: What NVRM says when it is in trouble, beside Xids.
TROUBLE = re.compile(
    r"NVRM: .*(API mismatch|RmInitAdapter failed|fallen off the bus|probe routine failed|rm_init_adapter failed"
    r"|GPU is lost|failed to (?:load|initialize))",
    re.IGNORECASE,
)
#: Of ``dkms status``: ``nvidia-fs/2.19.7, 6.12.94+deb13-amd64, x86_64: installed (…)``.
DKMS = re.compile(r"^(?P<name>nvidia[\w.+-]*)/(?P<version>[^,]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.*)$")


@check(
    "kernel.taints",
    "the kernel has not been damaged since it booted",
    expects="no oops, no machine check, nothing loaded by force",
    prevents="putting jobs on a host whose kernel has already failed once",
    of_running=True,
)
def taints(facts: HostFacts, _expectation: Expectation) -> Answer:
    value = known(facts.kernel.tainted)
    wrong = [words for bit, words in DAMAGE.items() if value >> bit & 1]
    if wrong:
        hint = "Read what happened (journalctl -k -b), then reboot; a machine check needs the hardware looked at"
        return failed("; ".join(wrong), hint, [f"/proc/sys/kernel/tainted is {value}"])
    seen = [words for bit, words in REMARKABLE.items() if value >> bit & 1]
    return passed("; ".join(seen) or ("tainted by modules outside its tree only" if value else "not tainted"))


@check(
    "driver.errors",
    "the driver has reported no fault since the boot",
    expects="no Xid error but those that programs cause, no failed initialization",
    prevents="a GPU that fell off the bus, has memory errors or never came up, behind modules that are all loaded",
    of_running=True,
)
def errors(facts: HostFacts, _expectation: Expectation) -> Answer:
    lines = known(facts.kernel.messages)
    bad: List[str] = []
    kinds: List[str] = []
    harmless: List[str] = []
    for line in lines:
        xid, trouble = XID.search(line), TROUBLE.search(line)
        if xid and int(xid.group(2)) in OF_PROGRAMS:
            harmless.append("Xid " + xid.group(2))
        elif xid or trouble:
            bad.append(line)
            kinds.append(f"Xid {xid.group(2)} on {xid.group(1)}" if xid else trouble.group(1) if trouble else "")
    if bad:
        hint = "Look the number up in NVIDIA's Xid table; drain the host, reset the GPU or reboot, and validate again"
        return failed("; ".join(sorted(set(kinds))), hint, bad)
    if harmless:
        return passed("only what programs cause: {}".format(", ".join(sorted(set(harmless)))))
    return passed("none in the kernel's messages")


@check(
    "packages.dkms",
    "DKMS has the stack's modules installed for the locked kernel, as it built them",
    expects="every nvidia module of DKMS installed for {kernel_release}",
    prevents="a kernel that boots without its modules because a build failed, was interrupted, or was replaced by hand",
)
def dkms(facts: HostFacts, expectation: Expectation) -> Answer:
    if "dkms" not in known(facts.packages.installed):
        return passed("DKMS is not installed: the modules are received")
    lines = known(facts.packages.dkms)
    found = [item for item in map(DKMS.match, lines) if item]
    if not found:
        return passed("DKMS holds nothing of this stack")
    release = expectation.kernel_release
    bad = [item.group(0) for item in found if "Diff between" in item.group("state") or "broken" in item.group("state")]
    names = sorted({item.group("name") for item in found})
    here = {
        item.group("name") for item in found if item.group("kernel") == release and "installed" in item.group("state")
    }
    bad += [f"{name} is not installed for {release}" for name in names if name not in here]
    if bad:
        hint = f"Provision the host again; by hand: dkms install NAME/VERSION -k {release}"
        return failed("; ".join(bad), hint, lines)
    others = sorted({item.group("kernel") for item in found if item.group("kernel")} - {release})
    return passed("{} for {}{}".format(", ".join(names), release, _also(others)), lines)


def _also(others: List[str]) -> str:
    return ", and for {} other kernel{}".format(len(others), "s" if len(others) > 1 else "") if others else ""
