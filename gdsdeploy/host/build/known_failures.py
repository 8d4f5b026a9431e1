"""Known failures of builds and their fixes: rules of compat.yml, in the zipapp ``known_failures.json``.

A checkout has no such file, and so no known failures.
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
from .context import BuildRequest

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
        return f"known as {self.ident}: {self.says.rstrip('.')}{fixed}"

    def as_dict(self) -> Dict[str, str]:
        return {"id": self.ident, "says": self.says, "fixed": self.fixed, "source": self.source}


def matches(request: BuildRequest, nvidia_fs: str, source: str) -> List[Match]:
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
    value: List[Dict[str, Any]] = json.loads((data or b"[]").decode("utf-8"))
    return value


def broken(rule: Mapping[str, Any], combination: Mapping[str, str]) -> bool:
    """Whether ``rule`` is about ``combination`` and refuses it; conditions about unknown parts count as true."""
    if not _all(rule["when"], combination):
        return False
    return not _all(rule["needs"], combination) if rule["needs"] else _all(rule["refuses"], combination)


def kernel_version(kernel: Kernel) -> str:
    """Upstream's version, such as 6.1.176 for Debian's release 6.1.0-50-amd64; by the headers, else by the release."""
    header = f"/lib/modules/{kernel.release}/build/include/generated/uapi/linux/version.h"
    match = re.search(r"LINUX_VERSION_CODE (\d+)", read_text(kernel.root, header))
    if match is None:
        match = re.match(r"\d+(?:\.\d+)*", kernel.release)
        return match.group(0) if match else ""
    code = int(match.group(1))
    return f"{code >> 16}.{code >> 8 & 0xFF}.{code & 0xFF}"


def _all(conditions: Mapping[str, Sequence[str]], combination: Mapping[str, str]) -> bool:
    return all(
        not combination.get(subject) or version_rules.holds(subject, texts, combination[subject])
        for subject, texts in conditions.items()
    )


def _origin(source: str) -> str:
    """``debian`` for a source that Debian patched, which names Debian's driver in DKMS."""
    return "debian" if 'BUILD_DEPENDS[0]="nvidia-current' in read_text(source, "dkms.conf") else "nvidia"
