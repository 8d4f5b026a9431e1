"""The host's audit of kernel modules: for the running kernel, and for the one that boots next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from ..kmod.findings import outcome_of
from .document import Document
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class AuditFinding:
    """``severity`` is ``error``, ``warning`` or ``note``, ``outcome`` as in kmod/findings.py."""

    id: str
    severity: str
    message: str
    hint: str
    outcome: str


@dataclass(frozen=True)
class ModuleAudit:
    """One module; ``ok`` is None where no finding is an error, but one is undecided."""

    #: in-kernel name
    module: str
    file: str
    ok: Optional[bool]
    findings: Tuple[AuditFinding, ...]
    #: NAME VERSION of the locked package that brings it, who signed it, and where the kernel has that key
    package: str = ""
    signer: str = ""
    keyring: str = ""


@dataclass(frozen=True)
class KernelAudit:
    release: str
    modules: Tuple[ModuleAudit, ...]


@dataclass(frozen=True)
class AuditFacts:
    running: Maybe[KernelAudit]
    next: Maybe[KernelAudit]


def audit_facts(document: Document) -> AuditFacts:
    return AuditFacts(_kernel(document, "running"), _kernel(document, "next"))


def _kernel(document: Document, which: str) -> Maybe[KernelAudit]:
    record = document.record("audits", which)
    if isinstance(record, Unknown):
        return record
    if record is None:
        return Unknown(f"the modules of the {which} kernel were not audited")
    release, results = record.get("release"), record.get("results")
    if not isinstance(release, str) or not isinstance(results, list):
        return Unknown(f"the record of the audit of the {which} kernel is no such record")
    return KernelAudit(release, tuple(_module(result) for result in results))


def _module(value: Any) -> ModuleAudit:
    record = value if isinstance(value, dict) else {}
    ok, findings = record.get("ok"), record.get("findings")
    entries = findings if isinstance(findings, list) else []
    return ModuleAudit(
        module=str(record.get("module", "")),
        file=str(record.get("file", "")),
        ok=ok if isinstance(ok, bool) and isinstance(findings, list) else None,
        findings=tuple(_finding(entry) for entry in entries if isinstance(entry, dict)),
        **{key: str(record.get(key, "")) for key in ("package", "signer", "keyring")},
    )


def _finding(entry: Mapping[str, Any]) -> AuditFinding:
    ident, severity, message, hint = (str(entry.get(key, "")) for key in ("id", "severity", "message", "hint"))
    return AuditFinding(ident, severity, message, hint, outcome_of(entry))
