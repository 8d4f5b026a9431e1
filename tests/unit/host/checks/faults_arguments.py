"""Faults of this boot: kernel arguments and module parameters that it doesn't have."""

from __future__ import annotations

from tests.unit.host.checks.changes import Change, Document, file

GRUB = "/boot/grub/grub.cfg"
MULTIPATH = "/sys/module/nvme_core/parameters/multipath"
ARGUMENT = "net.ifnames=0"


def not_booted_with(document: Document) -> None:
    document["files"]["/proc/cmdline"] = document["files"]["/proc/cmdline"].replace(f" {ARGUMENT}", "")


def not_configured(document: Document) -> None:
    not_booted_with(document)
    lines = document["excerpts"][GRUB]["lines"]
    document["excerpts"][GRUB]["lines"] = [line.replace(f" {ARGUMENT}", "") for line in lines]


def last_value(document: Document) -> None:
    document["files"]["/proc/cmdline"] = document["files"]["/proc/cmdline"].rstrip() + " net.ifnames=1\n"


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "the host hasn't booted since its arguments were set": (not_booted_with, {"boot.arguments"}),
    "another program took an argument out of the boot loader": (not_configured, {"boot.arguments"}),
    "another program appended the argument with another value": (last_value, {"boot.arguments"}),
    "the initramfs has another option of nvme_core": (file(MULTIPATH, "N\n"), {"boot.arguments"}),
}
