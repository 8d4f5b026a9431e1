"""The kernel guard: no kernel becomes the boot default until the locked modules are built and audited for it.

A kernel is *admitted* when every module that the expectation asks for is there and passes the same audit that
provision holds it to.  The guard never changes a default that starts an admitted kernel; it only brings one back.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ..audit.expected import audited, objections
from ..errors import HostError
from ..kmod import driver as drivers
from ..kmod.kernel import Kernel
from ..model.expectation import Expectation
from ..rootdir import inside, list_folder
from . import grub

INSTALLED, REMOVED = "install", "remove"


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel may be the default."""

    release: str
    admitted: bool
    #: why not; empty when it is admitted
    reasons: List[str] = field(default_factory=list)

    def why(self) -> str:
        return "; ".join(self.reasons)


@dataclass(frozen=True)
class Answer:
    """What an event calls for.  ``keep`` is the kernel to make the default; empty: leave the default as it is."""

    keep: str
    says: str
    #: whether somebody has to act, or the next boot lacks the stack
    alarm: bool = False


def judge(release: str, expectation: Expectation, root: str = "/") -> Verdict:
    """Audit the modules of one installed kernel against the expectation; never raises for what is wrong with them."""
    try:
        kernel = Kernel(release, root)
        missing = [name for name in expectation.modules() if drivers.find(kernel, name) is None]
        if missing:
            return Verdict(release, False, ["it has no module {}".format(" and no module ".join(missing))])
        reasons = objections(audited(kernel, expectation))
    except HostError as error:
        reasons = [error.message]
    return Verdict(release, not reasons, reasons)


def installed(root: str = "/") -> List[str]:
    """Releases of the kernels that could boot: an image in /boot or beside their modules."""
    images = {
        name.partition("-")[2] for name in list_folder(root, "/boot") if re.match(r"(vmlinuz|vmlinux|linux)-", name)
    }
    return [
        release
        for release in list_folder(root, "/lib/modules")
        if release in images or os.path.exists(inside(root, f"/lib/modules/{release}/vmlinuz"))
    ]


def decide(event: str, release: str, expectation: Expectation, default: str, verdicts: Sequence[Verdict]) -> Answer:
    """What to do after the kernel ``release`` was installed or removed; pure.

    default: what boots by default now.  verdicts: those that could be told, the best to fall back on first; the one of
    ``default`` may be left out where it is the locked kernel's, whose modules provision has audited.
    """
    locked = expectation.kernel_release
    known = {item.release: item for item in verdicts}
    good = [item.release for item in verdicts if item.admitted]
    current = known.get(default)
    safe = (default == locked and current is None) or (current is not None and current.admitted)
    if event == INSTALLED and release == locked:
        return _locked_kernel(locked, default, known.get(locked), good)
    said = _event(event, release, locked, known.get(release))
    if safe:
        return Answer("", f"{said}{default} stays the boot default")
    if good:
        keep = locked if locked in good else good[0]
        was = f"{default} is not" if default else "the default cannot be told"
        return Answer(keep, f"{said}{keep} becomes the boot default again, because {was} admitted")
    words = "{}no installed kernel has the locked modules: the next boot ({}) comes up without GPUDirect Storage; {}"
    return Answer("", words.format(said, default or "unknown", "provision this host before it reboots"), alarm=True)


def status(expectation: Expectation, root: str = "/") -> Dict[str, Any]:
    """Which kernels are admitted, which boots, and why not: what ``guard status --json`` prints."""
    kernels = [judge(release, expectation, root) for release in installed(root)]
    try:
        boots: Dict[str, str] = grub.default_kernel(root)
        problem = ""
    except HostError as error:
        boots, problem = {"default": "", "next": ""}, error.message
    admitted = [item.release for item in kernels if item.admitted]
    return {
        "locked": expectation.kernel_release,
        "default": boots["default"],
        "next": boots["next"],
        "running": os.uname().release,
        "kernels": [asdict(item) for item in kernels],
        "ok": boots["default"] in admitted and boots["next"] in admitted,
        "problem": problem,
    }


def respond(event: str, release: str, expectation: Expectation, root: str = "/") -> Answer:
    """Judge as little as the event needs, decide, and bring the default back if it has to be.

    Raises HostError when the boot loader's configuration cannot be read or changed.
    """
    default = grub.default_kernel(root)["default"]
    locked = expectation.kernel_release
    # The locked kernel is taken at provision's word while it is the default: its audit takes long on a slow machine.
    asked = [item for item in dict.fromkeys((release, default)) if item and (item != locked or item == release)]
    verdicts = [judge(item, expectation, root) for item in asked if item in installed(root)]
    answer = decide(event, release, expectation, default, verdicts)
    if answer.alarm:
        rest = [item for item in _by_merit(installed(root), locked) if item not in asked]
        verdicts += [judge(item, expectation, root) for item in rest]
        answer = decide(event, release, expectation, default, verdicts)
    if answer.keep:
        grub.set_default(answer.keep, root=root)
    return answer


def _event(event: str, release: str, locked: str, verdict: Optional[Verdict]) -> str:
    if event == REMOVED:
        what = "the locked kernel {} was removed" if release == locked else "kernel {} was removed"
        return what.format(release) + "; "
    if verdict is None:
        return ""
    if verdict.admitted:
        words = "kernel {} has good modules, but the lock names {} (lock and provision again to move); "
        return words.format(release, locked)
    return f"kernel {release} is not admitted ({verdict.why()}); "


def _locked_kernel(locked: str, default: str, verdict: Optional[Verdict], good: Sequence[str]) -> Answer:
    if verdict is not None and verdict.admitted:
        if default == locked:
            return Answer("", f"the locked kernel {locked} is the boot default, and its modules are good")
        return Answer(locked, f"the locked kernel {locked} has good modules and becomes the boot default")
    why = verdict.why() if verdict is not None else "it could not be audited"
    if default == locked and good:
        words = "the locked kernel {} lacks good modules ({}); {} becomes the boot default; provision this host again"
        return Answer(good[0], words.format(locked, why, good[0]), alarm=True)
    words = "the locked kernel {} waits for its modules ({}); until then {} boots by default"
    return Answer("", words.format(locked, why, default or "what the boot loader chooses"), alarm=default == locked)


def _by_merit(releases: List[str], locked: str) -> List[str]:
    """The locked kernel first, then the running one, then the newest."""
    numbers = {item: [int(part) for part in re.findall(r"\d+", item)] for item in releases}
    running = os.uname().release
    return sorted(releases, key=lambda item: (item == locked, item == running, numbers[item]), reverse=True)
