"""Whether the kernel enforces module signatures, and has the keys of the stack's modules."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, require
from ..kmod.findings import NOTE
from ..model.expectation import Expectation
from ..secure_boot.firmware import WORDS
from .modules import packaged_words
from .registry import Answer, check, failed, passed, subject

subject("secure-boot", after="modules")

#: Findings of the audit that are about signatures; see docs/audit.md.
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
    state = require(facts.kernel.secure_boot_state)
    kernels = (require(facts.audits.running), require(facts.audits.next))
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
    lockdown = facts.kernel.lockdown
    words = WORDS[state]
    if isinstance(lockdown, str) and lockdown != "none":
        words += f", the kernel is locked down ({lockdown})"
    packaged = [
        f"{module.module} on kernel {kernel.release}: {packaged_words(module)}"
        for kernel in dict.fromkeys(kernels)
        for module in kernel.modules
        if module.package
    ]
    words += "; the kernel would refuse no module of the stack for its signature"
    return passed("; ".join([words, *packaged[:1]]), packaged)
