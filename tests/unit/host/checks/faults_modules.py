"""Faults of module files: what the audit says of the running kernel, and of the one that boots next."""

from __future__ import annotations

from tests.unit.host.checks.changes import Change, Document

NEXT = "6.12.107+deb13-amd64"


def audited(which: str, module: str, ident: str, message: str, hint: str = "") -> Change:
    """The audit of the running or the next kernel found an error in one module."""

    def change(document: Document) -> None:
        release = NEXT if which == "next" else document["host"]["uname"]["release"]
        finding = {"id": ident, "severity": "error", "message": message, "hint": hint}
        good = [result for result in document["audits"]["running"]["results"] if result["module"] != module]
        bad = {"module": module, "file": "", "ok": False, "findings": [finding]}
        document["audits"][which] = {"release": release, "results": [*good, bad]}

    return change


def next_without_nvidia_fs(document: Document) -> None:
    others = [result for result in document["audits"]["running"]["results"] if result["module"] != "nvidia_fs"]
    document["audits"]["next"] = {"release": NEXT, "results": others}


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "nvidia-fs on disk is of another driver's symbols": (
        audited(
            "running",
            "nvidia_fs",
            "symbol-crc",
            "was built against other versions of nvidia.ko's symbols: nvidia_p2p_get_pages (0x1, exported 0x2)",
            "rebuild it against this kernel and this driver",
        ),
        {"modules.running"},
    ),
    "the next boot's kernel has no driver": (
        audited("next", "nvidia", "missing", f"kernel {NEXT} has no module nvidia", "build it for this kernel"),
        {"modules.next-boot"},
    ),
    "the next boot's kernel has no nvidia-fs": (next_without_nvidia_fs, {"modules.next-boot"}),
    "nvidia-fs is unsigned for the next boot, under Secure Boot": (
        audited("next", "nvidia_fs", "unsigned", "is unsigned, and Secure Boot is on", "sign it"),
        {"modules.next-boot", "secure-boot.signatures"},
    ),
    "the key of the driver is not enrolled": (
        audited("running", "nvidia", "signature-key", "is signed by 'x', which isn't a key of this kernel", "enrol it"),
        {"modules.running", "secure-boot.signatures"},
    ),
    "nvidia-fs was changed after it was signed": (
        audited("running", "nvidia_fs", "signature-wrong", "was changed after it was signed", "install it again"),
        {"modules.running", "secure-boot.signatures"},
    ),
}
