"""Failures that compat.yml knows, and the version without them: said beside the compiler's own words.

The rules come with the zipapp as ``known_failures.json``: those of compat.yml that are about what a host builds.  A
checkout has no such file, and so no known failures.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..kmod.kernel import Kernel
from ..model import version_rules
from ..rootdir import read_text
from .context import Job

FILE = "known_failures.json"


class Match(NamedTuple):
    """A rule that says that this combination does not build."""

    ident: str
    says: str
    #: what to take instead, such as ``nvidia-fs 2.25.7``; may be empty
    fixed: str
    source: str

    def words(self) -> str:
        fixed = f"; fixed in {self.fixed}" if self.fixed else ""
        return "known as {}: {}{}".format(self.ident, self.says.rstrip("."), fixed)

    def as_dict(self) -> Dict[str, str]:
        return {"id": self.ident, "says": self.says, "fixed": self.fixed, "source": self.source}


def matches(job: Job, nvidia_fs: str, source: str) -> List[Match]:
    """The rules that explain why the driver, or with a version of ``nvidia_fs`` that one, does not build."""
    machine = os.uname().machine
    combination: Dict[str, str] = {
        "driver": job.tree.version,
        "flavour": job.tree.flavour,
        "kernel": kernel_version(job.kernel),
        "arch": machine,
    }
    if nvidia_fs:
        combination["nvidia_fs"] = nvidia_fs
        combination["nvidia_fs_origin"] = _origin(source)
    about = "nvidia-fs" if nvidia_fs else "driver"
    return [
        Match(rule["id"], rule["says"], rule["fixed"], rule["source"])
        for rule in rules()
        if rule["about"] == about and broken(rule, combination)
    ]


def rules() -> List[Dict[str, Any]]:
    """What the zipapp has; empty in a checkout."""
    try:
        data: Optional[bytes] = pkgutil.get_data(__package__ or "", FILE)
    except OSError:
        return []
    found: List[Dict[str, Any]] = json.loads((data or b"[]").decode("utf-8"))
    return found


def broken(rule: Mapping[str, Any], combination: Mapping[str, str]) -> bool:
    """Whether ``rule`` speaks about ``combination`` and refuses it; what is not known of it is taken to hold."""
    if not _all(rule["when"], combination):
        return False
    return not _all(rule["needs"], combination) if rule["needs"] else _all(rule["refuses"], combination)


def kernel_version(kernel: Kernel) -> str:
    """Upstream's version, such as 6.1.176 for Debian's release 6.1.0-50-amd64; by the headers, else by the release."""
    header = f"/lib/modules/{kernel.release}/build/include/generated/uapi/linux/version.h"
    match = re.search(r"LINUX_VERSION_CODE (\d+)", read_text(kernel.root, header))
    if match is None:
        found = re.match(r"\d+(?:\.\d+)*", kernel.release)
        return found.group(0) if found else ""
    code = int(match.group(1))
    return f"{code >> 16}.{code >> 8 & 0xFF}.{code & 0xFF}"


def _all(conditions: Mapping[str, Sequence[str]], combination: Mapping[str, str]) -> bool:
    """Whether each condition holds; one about what is not known is taken to hold."""
    values = ((subject, texts, combination.get(subject, "")) for subject, texts in conditions.items())
    return all(not value or version_rules.holds(subject, texts, value) for subject, texts, value in values)


def _origin(source: str) -> str:
    """``debian`` for a source as Debian patches it, known by the name that it gives the driver in DKMS."""
    return "debian" if 'BUILD_DEPENDS[0]="nvidia-current' in read_text(source, "dkms.conf") else "nvidia"
