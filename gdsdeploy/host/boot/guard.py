"""The kernel guard: no kernel becomes the boot default until the locked modules are built and audited for it.

A kernel is *admitted* when it has every expected module and all pass provision's audit.  The guard never changes a
default that starts an admitted kernel; it only restores one.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ..audit.audit import audit_expected, objections
from ..errors import HostError
from ..kmod import driver as drivers
from ..kmod.kernel import Kernel
from ..model.expectation import Expectation
from ..rootdir import inside, list_folder
from .loader import loader

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
    """The response to an event.  ``keep`` is the kernel to make the default; empty: leave the default as it is."""

    keep: str
    says: str
    #: whether a person has to act, or the next boot comes up without the stack
    alarm: bool = False


def judge(release: str, expectation: Expectation, root: str = "/") -> Verdict:
    """Audit the modules of one installed kernel against the expectation; their problems raise nothing."""
    try:
        kernel = Kernel(release, root)
        missing = [name for name in expectation.modules() if drivers.find(kernel, name) is None]
        if missing:
            return Verdict(release, False, [f"it has no module {' and no module '.join(missing)}"])
        reasons = objections(audit_expected(kernel, expectation))
    except HostError as error:
        reasons = [error.message]
    return Verdict(release, not reasons, reasons)


def installed_releases(root: str = "/") -> List[str]:
    """Releases of the kernels that could boot: an image in /boot or beside their modules."""
    names = list_folder(root, "/boot")
    images = {name.partition("-")[2] for name in names if re.match(r"(vmlinuz|vmlinux|linux)-", name)}
    return [
        release
        for release in list_folder(root, "/lib/modules")
        if release in images or os.path.exists(inside(root, f"/lib/modules/{release}/vmlinuz"))
    ]


def decide(event: str, release: str, expectation: Expectation, default: str, verdicts: Sequence[Verdict]) -> Answer:
    """What to do after the kernel ``release`` was installed or removed; pure.

    default: what boots by default now.  verdicts: the best to fall back on first; the default's may be left out where
    it is the locked kernel, whose modules provision has audited.
    """
    locked = expectation.kernel_release
    by_release = {verdict.release: verdict for verdict in verdicts}
    good = [verdict.release for verdict in verdicts if verdict.admitted]
    current = by_release.get(default)
    safe = (default == locked and current is None) or (current is not None and current.admitted)
    if event == INSTALLED and release == locked:
        return _locked_kernel(locked, default, by_release.get(locked), good)
    happened = _event(event, release, locked, by_release.get(release))
    if safe:
        return Answer("", f"{happened}{default} stays the boot default")
    if good:
        keep = locked if locked in good else good[0]
        reason = f"{default} is not admitted" if default else "the current default is unknown"
        return Answer(keep, f"{happened}{keep} becomes the boot default again, because {reason}")
    text = f"{happened}no installed kernel has the locked modules: the next boot ({default or 'unknown'}) comes up"
    return Answer("", f"{text} without GPUDirect Storage; provision this host before it reboots", alarm=True)


def status(expectation: Expectation, root: str = "/") -> Dict[str, Any]:
    """Which kernels are admitted, which boots, and why not: what ``guard status --json`` prints."""
    kernels = [judge(release, expectation, root) for release in installed_releases(root)]
    try:
        boots = loader(root).kernels()
        problem = ""
    except HostError as error:
        boots, problem = {"default": "", "next": ""}, error.message
    admitted = [verdict.release for verdict in kernels if verdict.admitted]
    return {
        "locked": expectation.kernel_release,
        "default": boots["default"],
        "next": boots["next"],
        "running": os.uname().release,
        "kernels": [asdict(verdict) for verdict in kernels],
        "ok": boots["default"] in admitted and boots["next"] in admitted,
        "problem": problem,
    }


def respond(event: str, release: str, expectation: Expectation, root: str = "/") -> Answer:
    """Judge as few kernels as the event needs, decide, and restore the default if necessary.

    Raises HostError if the boot loader's configuration can't be read or changed.
    """
    default = loader(root).kernels()["default"]
    locked = expectation.kernel_release
    # Provision audited the locked kernel, and its audit takes long on a slow machine.
    first = [name for name in dict.fromkeys((release, default)) if name and (name != locked or name == release)]
    verdicts = [judge(name, expectation, root) for name in first if name in installed_releases(root)]
    answer = decide(event, release, expectation, default, verdicts)
    if answer.alarm:
        rest = [name for name in _by_merit(installed_releases(root), locked) if name not in first]
        verdicts += [judge(name, expectation, root) for name in rest]
        answer = decide(event, release, expectation, default, verdicts)
    if answer.keep:
        loader(root).default(answer.keep)
    return answer


def _event(event: str, release: str, locked: str, verdict: Optional[Verdict]) -> str:
    if event == REMOVED:
        return f"{'the locked ' if release == locked else ''}kernel {release} was removed; "
    if verdict is None:
        return ""
    if verdict.admitted:
        return f"kernel {release} has good modules, but the lock names {locked} (lock and provision again to move); "
    return f"kernel {release} is not admitted ({verdict.why()}); "


def _locked_kernel(locked: str, default: str, verdict: Optional[Verdict], good: Sequence[str]) -> Answer:
    if verdict is not None and verdict.admitted:
        if default == locked:
            return Answer("", f"the locked kernel {locked} is the boot default, and its modules are good")
        return Answer(locked, f"the locked kernel {locked} has good modules and becomes the boot default")
    why = verdict.why() if verdict is not None else "it could not be audited"
    if default == locked and good:
        text = f"the locked kernel {locked} has no good modules ({why}); {good[0]} becomes the boot default"
        return Answer(good[0], f"{text}; provision this host again", alarm=True)
    boots = default or "what the boot loader chooses"
    text = f"the locked kernel {locked} waits for its modules ({why}); until then {boots} boots by default"
    return Answer("", text, alarm=default == locked)


def _by_merit(releases: List[str], locked: str) -> List[str]:
    """The locked kernel first, then the running one, then the newest."""
    numbers = {name: [int(part) for part in re.findall(r"\d+", name)] for name in releases}
    running = os.uname().release
    return sorted(releases, key=lambda name: (name == locked, name == running, numbers[name]), reverse=True)
