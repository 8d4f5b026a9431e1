"""The module files of the running kernel and of the one that boots next, by the audit that every build passes."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, known
from ..facts.audits import AuditFinding, KernelAudit, ModuleAudit
from ..kmod.findings import ERROR, NOTE, UNKNOWN
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

HINT = "Provision the host again: it builds or brings the modules of the lock for this kernel"


@check(
    "modules.running",
    "the running kernel's module files would load, and are those of the lock",
    expects="modules that pass the audit on the running kernel",
    prevents="files that the kernel refuses when they are loaded again: silent compat mode after a reload",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(known(facts.audits.running), expectation)


@check(
    "modules.next-boot",
    "the modules that the next boot will load pass the same audit",
    expects="modules that pass the audit on the kernel that boots next",
    prevents="a host that is healthy until it reboots into a kernel without its modules",
)
def next_boot(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(known(facts.audits.next), expectation)


def _judge(audit: KernelAudit, expectation: Expectation) -> Answer:
    there = {item.module: item for item in audit.modules}
    wanted = expectation.modules()
    chosen = [there[name] for name in wanted if name in there]
    evidence = [_line(item, found) for item in chosen for found in item.findings if found.severity != NOTE]
    missing = [name for name in wanted if name not in there]
    if missing:
        return failed("kernel {} has no module {}".format(audit.release, ", ".join(missing)), HINT, evidence)
    for item in chosen:
        for found in item.findings:
            if found.outcome == ERROR:
                what = f"{item.module} on kernel {audit.release}: {found.message}"
                return failed(what, found.hint or HINT, evidence)
    for item in chosen:
        if item.ok is not True:
            raise UndecidedError(f"{item.module} on kernel {audit.release}: {_why(item)}")
    return passed("{} on kernel {}".format(", ".join(wanted), audit.release), evidence)


def _why(item: ModuleAudit) -> str:
    return next((found.message for found in item.findings if found.outcome == UNKNOWN), "the audit does not say")


def _line(item: ModuleAudit, found: AuditFinding) -> str:
    return f"{item.module}: {found.severity} [{found.id}] {found.message}"
