"""Failures that compat.yml knows, and the version without them: said beside the compiler's own words.

The rules come with the zipapp as ``known.json``: those of compat.yml that are about what a host builds.  Run from a
checkout there is no such file, and nothing is known.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..kernel import Kernel
from ..rootdir import read_text
from .job import Job

FILE = "known.json"
#: Subjects whose values are versions; conditions on anything else compare words.
_VERSIONS = ("driver", "kernel", "nvidia_fs")
_TERM = re.compile(r"^(<=|>=|==|!=|<|>|=)?\s*([0-9][0-9A-Za-z.+~:_-]*)$")


class Match(NamedTuple):
    """A rule that says that this combination does not build."""

    ident: str
    says: str
    #: what to take instead, such as ``nvidia-fs 2.25.7``; may be empty
    fixed: str
    source: str

    def words(self) -> str:
        fixed = "; fixed in {}".format(self.fixed) if self.fixed else ""
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
    if not all(_any(subject, texts, combination) for subject, texts in rule["when"].items()):
        return False
    if rule["needs"]:
        return not all(_any(subject, texts, combination) for subject, texts in rule["needs"].items())
    return all(_any(subject, texts, combination) for subject, texts in rule["refuses"].items())


def kernel_version(kernel: Kernel) -> str:
    """Upstream's version, such as 6.1.176 for Debian's release 6.1.0-50-amd64; by the headers, else by the release."""
    header = "/lib/modules/{}/build/include/generated/uapi/linux/version.h".format(kernel.release)
    match = re.search(r"LINUX_VERSION_CODE (\d+)", read_text(kernel.root, header))
    if match is None:
        found = re.match(r"\d+(?:\.\d+)*", kernel.release)
        return found.group(0) if found else ""
    code = int(match.group(1))
    return "{}.{}.{}".format(code >> 16, code >> 8 & 0xFF, code & 0xFF)


def admits(expression: str, version: str) -> bool:
    """Whether ``version`` fits an expression of compat.yml (gdsdeploy/versions.py has the grammar)."""
    return all(_admits(term.strip(), version) for term in expression.split(","))


def _admits(term: str, version: str) -> bool:
    match = _TERM.match(term)
    assert match is not None, term
    sign, wanted = match.group(1) or "", match.group(2)
    if sign in ("", "!="):
        within = version == wanted or version.startswith(tuple(wanted + mark for mark in ".-+~"))
        return within is (sign == "")
    if sign in ("=", "=="):
        return version == wanted
    have, bound = _key(version), _key(wanted)
    return {"<": have < bound, "<=": have <= bound, ">": have > bound, ">=": have >= bound}[sign]


def _key(version: str) -> List[int]:
    return [int(item) for item in re.findall(r"\d+", version)]


def _any(subject: str, texts: Sequence[str], combination: Mapping[str, str]) -> bool:
    value = combination.get(subject, "")
    if not value:
        return True
    if subject in _VERSIONS:
        return any(admits(text, value) for text in texts)
    return any(value != text[2:] if text.startswith("!=") else value == text for text in texts)


def _origin(source: str) -> str:
    """``debian`` for a source as Debian patches it, known by the name that it gives the driver in DKMS."""
    return "debian" if 'BUILD_DEPENDS[0]="nvidia-current' in read_text(source, "dkms.conf") else "nvidia"
