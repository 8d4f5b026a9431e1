"""Faults that only the kernel's log or the running set as a whole shows."""

from __future__ import annotations

from tests.unit.host.checks.changes import Change, Document
from tests.unit.host.checks.faults_stack import XIDS, kernel_log

PAGE_TABLE = (
    "[ 91.1] nvidia-fs:nvfs_pin_gpu_pages:1383 Incompatible page table version 0x00020000\n"
    "[ 91.2] kernel BUG at /var/lib/dkms/nvidia-fs/2.26.6/build/nvfs-stat.c:407!"
)


def wrapped(document: Document) -> None:
    """The ring of dmesg has dropped the kernel's first messages."""
    run = document["commands"]["dmesg"]
    run["stdout"] = "".join(line for line in run["stdout"].splitlines(keepends=True) if "Linux version" not in line)


def only_in_the_journal(document: Document) -> None:
    """An old fault: the ring has wrapped since."""
    kernel_log(XIDS[79])(document)
    document["commands"]["dmesg"]["stdout"] = ""


def without_journal(change: Change) -> Change:
    def both(document: Document) -> None:
        change(document)
        document["commands"]["journal"].update(status=127, stdout="", stderr="journalctl: No such file or directory\n")

    return both


def wrapped_with_fault(document: Document) -> None:
    kernel_log(XIDS[79])(document)
    wrapped(document)


def forbidden_doca(document: Document) -> None:
    document["commands"]["dpkg-query"]["stdout"] += "doca-ofed\t3.3.0-1\tamd64\tii \n"


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "an old Xid that dmesg has dropped": (only_in_the_journal, {"driver.errors"}),
    "an Xid in a ring that wrapped, without a journal": (without_journal(wrapped_with_fault), {"driver.errors"}),
    "an Xid with an unknown number": (
        kernel_log("[ 90.4] NVRM: Xid (PCI:0000:3b:00): 999, pid=1, name=x, New"),
        {"driver.errors"},
    ),
    "nvidia-fs of another page table": (kernel_log(PAGE_TABLE), {"nvidia-fs.errors"}),
    "a DOCA that doesn't fit the kernel": (forbidden_doca, {"stack.compatible"}),
    "the IOMMU splits GPU memory": (
        kernel_log("[ 91.3] nvidia-fs:nvfs_get_dma_address:455 DMA Address chunks 4 != GPU Physical address chunks 2"),
        {"nvidia-fs.errors"},
    ),
}
