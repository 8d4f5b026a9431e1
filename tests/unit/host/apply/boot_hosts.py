"""Hosts below a folder with a boot loader: GRUB of Debian and Ubuntu, entries of RHEL 8 to 10, and systemd-boot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.host.process import Output

RELEASE, OLDER = "6.12.94-1", "6.12.90-1"
TOKEN = "0123456789abcdef0123456789abcdef"
BOOT_ID = "11111111-2222-3333-4444-555555555555"


def put(root: Path, path: str, text: str | bytes) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def running(root: Path, words: str = "") -> None:
    """The command line of the kernel that runs."""
    (root / "var/lib/gdsdeploy").mkdir(parents=True, exist_ok=True)
    put(root, "/proc/cmdline", f"BOOT_IMAGE=/vmlinuz root=UUID=0f3c ro {words}".strip() + "\n")
    put(root, "/proc/sys/kernel/random/boot_id", BOOT_ID + "\n")


def grub(root: Path) -> Path:
    """Debian or Ubuntu."""
    running(root)
    put(root, "/usr/sbin/update-grub", "")
    put(root, "/etc/default/grub", 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\n')
    UpdateGrub(root)(["update-grub"], 1.0)
    return root


def rhel(root: Path, options: str = "root=UUID=0f3c ro crashkernel=1G-4G:192M rhgb quiet ") -> Path:
    """RHEL 9 or 10; of RHEL 8 with ``$kernelopts $tuned_params``."""
    running(root)
    put(root, "/boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry={TOKEN}-{RELEASE}\n".ljust(1024, "#"))
    put(root, "/boot/grub2/grub.cfg", "insmod blscfg\nblscfg\n")
    for release in (RELEASE, OLDER):
        put(root, f"/boot/loader/entries/{TOKEN}-{release}.conf", entry(release, options))
    put(root, f"/boot/loader/entries/{TOKEN}-0-rescue.conf", entry("0-rescue", options))
    put(root, "/etc/kernel/cmdline", "root=UUID=0f3c ro crashkernel=1G-4G:192M rhgb quiet")
    return root


def systemd_boot(root: Path, partition: str = "/efi") -> Path:
    running(root)
    put(root, f"{partition}/loader/loader.conf", "timeout 3\n")
    for release, tries in ((RELEASE, "+3"), (OLDER, "")):
        path = f"{partition}/loader/entries/{TOKEN}-{release}{tries}.conf"
        put(root, path, entry(release, "root=UUID=0f3c rw").replace("\n", "\r\n"))
    put(root, f"{partition}/loader/entries/windows.conf", "title Windows\nefi /EFI/Microsoft/bootmgfw.efi\n")
    put(root, "/etc/kernel/cmdline", "# of this host\nroot=UUID=0f3c rw\n\n")
    return root


def entry(release: str, options: str) -> str:
    return (
        f"title Linux ({release})\nversion {release}\nlinux /vmlinuz-{release}\ninitrd /initramfs-{release}.img\n"
        f"options {options}\ngrub_users $grub_users\ngrub_class kernel\n"
    )


class UpdateGrub:
    """Stands for host/process.py: makes grub.cfg of /etc/default/grub and its drop-ins, as update-grub does."""

    def __init__(self, root: Path, status: int = 0) -> None:
        self.root = root
        self.status = status
        self.calls: list[list[str]] = []
        #: words that it leaves out, as a file would that sets the variable as a whole
        self.drops: list[str] = []
        #: entries of other scripts than 10_linux, and the default
        self.others, self.default = "", "0"

    def __call__(self, argv: Sequence[str], _: float, **__: Any) -> Output:
        self.calls.append(list(argv))
        if argv[0] == "update-grub" and self.status == 0:
            self._write()
        return Output(self.status, "", "no space" if self.status else "")

    def _write(self) -> None:
        folder = self.root / "etc/default/grub.d"
        texts = [(self.root / "etc/default/grub").read_text(), *(p.read_text() for p in sorted(folder.glob("*.cfg")))]
        values = {"GRUB_CMDLINE_LINUX": "", "GRUB_CMDLINE_LINUX_DEFAULT": ""}
        for key, value in re.findall(r'^(GRUB_CMDLINE_LINUX\w*)="(.*)"$', "\n".join(texts), re.MULTILINE):
            values[key] = value.replace(f"${key}", values[key])
        words = [word for word in values["GRUB_CMDLINE_LINUX"].split() if word not in self.drops]
        always, normal = " ".join(words), values["GRUB_CMDLINE_LINUX_DEFAULT"]
        lines = [f'set default="{self.default}"', *self.others.splitlines()]
        for release in (RELEASE, OLDER):
            lines += [
                f"menuentry 'Linux {release}' --id 'gnulinux-{release}' {{",
                f"\tlinux\t/boot/vmlinuz-{release} root=UUID=0f3c ro {always} {normal}",
                "}",
                f"menuentry 'Linux {release} (recovery)' --id 'gnulinux-{release}-recovery-1' {{",
                f"\tlinux\t/boot/vmlinuz-{release} root=UUID=0f3c ro single {always}",
                "}",
            ]
        put(self.root, "/boot/grub/grub.cfg", "\n".join(lines) + "\n")
