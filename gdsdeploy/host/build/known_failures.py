"""Rules of compat.yml that explain a failed build."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping

from ..kmod.kernel import Kernel
from ..model import compat
from ..model.compat import Conditions, Rule
from ..rootdir import read_text
from .kbuild import BuildRequest

#: What a build knows of the stack.
SUBJECTS = frozenset({"driver", "flavour", "kernel", "arch", "nvidia_fs", "nvidia_fs_origin"})
#: What it doesn't know; a condition on these counts as true, so the rule is named where it may explain the failure.
PACKAGES = frozenset({"driver_package", "driver_origin", "nvidia_fs_package", "kernel_package"})


def matches(request: BuildRequest, nvidia_fs: str, source: str) -> List[Rule]:
    """The rules that explain why the driver (or the version ``nvidia_fs``, if given) doesn't build."""
    combination: Dict[str, str] = {
        "driver": request.tree.version,
        "flavour": request.tree.flavour,
        "kernel": kernel_version(request.kernel),
        "arch": os.uname().machine,
    }
    if nvidia_fs:
        combination["nvidia_fs"] = nvidia_fs
        combination["nvidia_fs_origin"] = _origin(source)
    return refusing("nvidia-fs" if nvidia_fs else "driver", combination)


def refusing(about: str, combination: Mapping[str, str]) -> List[Rule]:
    """The rules about builds of ``about`` (``driver`` or ``nvidia-fs``) that refuse ``combination``."""
    return [rule for rule in compat.shipped() if subject(rule) == about and broken(rule, combination)]


def subject(rule: Rule) -> str:
    """What a rule may explain a failed build of: ``driver``, ``nvidia-fs``, or nothing."""
    if rule.warns or not rule.looks_at <= SUBJECTS | PACKAGES:
        return ""
    if "nvidia_fs" in rule.looks_at:
        return "nvidia-fs"
    return "driver" if {"driver", "kernel"} <= rule.looks_at else ""


def broken(rule: Rule, combination: Mapping[str, str]) -> bool:
    """Whether ``rule`` is about ``combination`` and refuses it; conditions about unknown parts count as true."""
    if not _all(rule.when, combination):
        return False
    return not _all(rule.needs, combination) if rule.needs else _all(rule.refuses, combination)


def words(rule: Rule) -> str:
    """``known as ID: what it says; fixed in VERSION``, for the hint of an error."""
    fixed = f"; fixed in {rule.fixed}" if rule.fixed else ""
    return f"known as {rule.id}: {rule.says.rstrip('.')}{fixed}"


def kernel_version(kernel: Kernel) -> str:
    """Upstream's version, such as 6.1.176 for Debian's release 6.1.0-50-amd64; by the headers, else by the release."""
    header = f"/lib/modules/{kernel.release}/build/include/generated/uapi/linux/version.h"
    match = re.search(r"LINUX_VERSION_CODE (\d+)", read_text(kernel.root, header))
    if match is None:
        match = re.match(r"\d+(?:\.\d+)*", kernel.release)
        return match.group(0) if match else ""
    code = int(match.group(1))
    return f"{code >> 16}.{code >> 8 & 0xFF}.{code & 0xFF}"


def _all(conditions: Conditions, combination: Mapping[str, str]) -> bool:
    return all(
        not combination.get(subject) or compat.holds(subject, texts, combination[subject])
        for subject, texts in conditions.items()
    )


def _origin(source: str) -> str:
    """``debian`` for a source that Debian patched, which names Debian's driver in DKMS."""
    return "debian" if 'BUILD_DEPENDS[0]="nvidia-current' in read_text(source, "dkms.conf") else "nvidia"
