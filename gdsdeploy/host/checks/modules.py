"""The audit of the module files of the running kernel and of the one that boots next."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, require
from ..facts.audits import KernelAudit, ModuleAudit
from ..kmod.findings import ERROR, NOTE, UNKNOWN
from ..model.expectation import Expectation
from ..secure_boot.signature import KEYRINGS
from .registry import Answer, check, failed, passed, subject

subject("modules", after="rdma")

HINT = "Provision the host again: it builds or brings the modules of the lock for this kernel"


@check(
    "modules.running",
    "the running kernel's module files can be loaded, and are those of the lock",
    expects="modules that pass the audit on the running kernel",
    prevents="files that the kernel refuses when they are loaded again: silent compat mode after a reload",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(require(facts.audits.running), expectation)


@check(
    "modules.next-boot",
    "the modules that the next boot will load pass the same audit",
    expects="modules that pass the audit on the kernel that boots next",
    prevents="a host that is healthy until it reboots into a kernel without its modules",
)
def next_boot(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(require(facts.audits.next), expectation)


def _judge(audit: KernelAudit, expectation: Expectation) -> Answer:
    names, by_name = expectation.modules(), {module.module: module for module in audit.modules}
    modules = [by_name[name] for name in names if name in by_name]
    findings = [(module.module, finding) for module in modules for finding in module.findings]
    evidence = [
        f"{name}: {finding.severity} [{finding.id}] {finding.message}"
        for name, finding in findings
        if finding.severity != NOTE
    ]
    missing = [name for name in names if name not in by_name]
    if missing:
        return failed("kernel {} has no module {}".format(audit.release, ", ".join(missing)), HINT, evidence)
    for name, finding in findings:
        if finding.outcome == ERROR:
            return failed(f"{name} on kernel {audit.release}: {finding.message}", finding.hint or HINT, evidence)
    for module in modules:
        if module.ok is not True:
            undecided = [(finding.message, finding.hint) for finding in module.findings if finding.outcome == UNKNOWN]
            reason, hint = undecided[0] if undecided else ("the audit has no result", "")
            raise UndecidedError(f"{module.module} on kernel {audit.release}: {reason}", hint)
    packaged = [f"{module.module}: {packaged_words(module)}" for module in modules if module.package]
    words = "; ".join(["{} on kernel {}".format(", ".join(names), audit.release), *packaged])
    return passed(words, evidence)


def packaged_words(module: ModuleAudit) -> str:
    """Which package brings a module, and who signed it."""
    signed = (
        f"signed by {module.signer}, {KEYRINGS.get(module.keyring, module.keyring)}" if module.signer else "unsigned"
    )
    return f"packaged by {module.package}, {signed}"
