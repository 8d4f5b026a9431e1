"""Where this host's boot loader has the arguments of its kernels.

Debian and Ubuntu: ``update-grub`` puts GRUB_CMDLINE_LINUX into every entry of grub.cfg.  The RHEL family and
systemd-boot: each entry of the Boot Loader Specification has lines ``options``, which neither grub2-mkconfig nor an
upgrade changes; kernel-install reads /etc/kernel/cmdline for the entries of later kernels.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Tuple

from ..rootdir import inside, list_folder, read_text
from . import bls, sdboot
from .grub import GRUB_CFG

GRUB, ENTRIES, UNKNOWN = "grub", "entries", ""
COMMAND_LINE = "/etc/kernel/cmdline"
_GRUB2 = ("/boot/grub2/grub.cfg", "/etc/grub2.cfg", "/etc/grub2-efi.cfg")
_PROGRAMS = ("/usr/sbin/update-grub", "/sbin/update-grub")
_LINE = re.compile(r"^\s*linux(?:16|efi)?\s+(\S+)[ \t]*(.*)$", re.MULTILINE)
_IMAGE = re.compile(r"(?:vmlinuz|vmlinux|linux|kernel|Image)-(\S+)")


@dataclass(frozen=True)
class Loader:
    """``kind``: GRUB, ENTRIES, or UNKNOWN with the reason in ``problem``.

    ``places``: with ENTRIES, the files that have arguments.
    """

    kind: str
    places: Tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""


def loader(root: str = "/") -> Loader:
    """How this host's kernels get their arguments."""
    if sdboot.present(root):
        return _systemd_boot(root)
    if bls.present(root):
        texts = [read_text(root, path) for path in _GRUB2]
        if any("blscfg" in text for text in texts):
            return _entries(root, bls.ENTRIES)
        problem = f"no grub.cfg reads {bls.ENTRIES} (blscfg), so arguments there would have no effect"
        return Loader(UNKNOWN, (), problem, "switch GRUB to these entries: grub2-switch-to-blscfg")
    if read_text(root, GRUB_CFG):
        if any(os.path.exists(inside(root, program)) for program in _PROGRAMS):
            return Loader(GRUB)
        return Loader(UNKNOWN, (), f"{GRUB_CFG} is there, but no update-grub", "install grub2-common")
    return _systemd_boot(root)


def _systemd_boot(root: str) -> Loader:
    for partition in sdboot.PARTITIONS:
        images = [name for name in list_folder(root, f"{partition}/EFI/Linux") if name.lower().endswith(".efi")]
        if images:
            problem = f"{partition}/EFI/Linux/{images[0]} is a unified kernel image, which has its arguments inside"
            return Loader(UNKNOWN, (), problem, "build it with these arguments, and leave boot out of the profile")
    for partition in sdboot.PARTITIONS:
        folder = f"{partition}/loader/entries"
        if _kernels(root, folder) and read_text(root, f"{partition}/loader/loader.conf"):
            return _entries(root, folder)
    problem = "no boot loader is recognised: no /boot/grub/grub.cfg with update-grub, no /boot/grub2/grubenv with"
    problem += " /boot/loader/entries, no loader/loader.conf of systemd-boot with entries"
    return Loader(UNKNOWN, (), problem, "set the arguments yourself, and leave boot out of the profile")


def _entries(root: str, folder: str) -> Loader:
    places = _kernels(root, folder)
    if read_text(root, COMMAND_LINE).strip():
        places.append(COMMAND_LINE)
    return Loader(ENTRIES, tuple(places))


def _kernels(root: str, folder: str) -> List[str]:
    """Entries that start a Linux kernel other than the rescue image."""
    names = [name for name in list_folder(root, folder) if name.endswith(".conf") and "-0-rescue" not in name]
    paths = [f"{folder}/{name}" for name in names]
    return [path for path in paths if re.search(r"^linux[ \t]", read_text(root, path), re.MULTILINE)]


def grub_lines(config: str, release: str) -> List[List[str]]:
    """The arguments of each entry of a grub.cfg that starts kernel ``release``; without such, of every kernel's.

    Entries for recovery are left out.
    """
    rows = [(_IMAGE.match(os.path.basename(image)), rest.split()) for image, rest in _LINE.findall(config)]
    lines = [(match.group(1), words) for match, words in rows if match and not {"single", "recovery"} & set(words)]
    return [words for kernel, words in lines if kernel == release] or [words for _, words in lines]
