"""Whether the kernel enforces signatures of modules, and has the keys of those that it has to load."""

from __future__ import annotations

from typing import List, Tuple

from ..facts import HostFacts, UndecidedError, known
from ..facts.audits import KernelAudit
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

#: Findings of the audit that are about signatures; see docs/audit.md.
_REFUSED = ("unsigned", "signature-malformed", "signature-wrong", "signature-key")
_UNDECIDED = ("signature-key-unknown", "secure-boot-unknown")
_HINT = "Sign the modules with an enrolled key: docs/secure-boot.md"


@check(
    "secure-boot.signatures",
    "every module of the stack has a signature that its kernel takes",
    expects="signed with an enrolled key, where the kernel asks for signatures",
    prevents="modules that Secure Boot refuses after the reboot into a kernel that they were built for unsigned",
    of_running=True,
)
def signatures(facts: HostFacts, expectation: Expectation) -> Answer:
    secure_boot = known(facts.kernel.secure_boot)
    kernels = (known(facts.audits.running), known(facts.audits.next))
    said = [line for kernel in kernels for line in _said(kernel, expectation, _REFUSED)]
    if said:
        return failed(said[0][0], said[0][1] or _HINT, [text for text, _ in said])
    unclear = [line for kernel in kernels for line in _said(kernel, expectation, _UNDECIDED)]
    if unclear:
        raise UndecidedError(unclear[0][0])
    locked = facts.kernel.lockdown
    words = "Secure Boot is {}".format("on" if secure_boot else "off")
    if isinstance(locked, str) and locked != "none":
        words += f", the kernel is locked down ({locked})"
    return passed(f"{words}; no module of the stack would be refused for its signature")


def _said(audit: KernelAudit, expectation: Expectation, wanted: Tuple[str, ...]) -> List[Tuple[str, str]]:
    """Message and hint of each such finding that is worse than a note."""
    return [
        (f"{item.module} on kernel {audit.release}: {found.message}", found.hint)
        for item in audit.modules
        if item.module in expectation.modules()
        for found in item.findings
        if found.id in wanted and found.severity != "note"
    ]
