"""What a host is expected to be: rendered on the controller from fleet and lock, kept on the host for its own gate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Dict, List

#: Where provision leaves the expectation on a host.
PATH = "/etc/gdsdeploy/expectation.json"
VERSION = 1


@dataclass(frozen=True)
class Expectation:
    """All versions are upstream's as the running host shows them, except in ``packages`` (the package manager's)."""

    host: str
    profile: str
    #: e.g. ``debian-13``
    os: str
    #: as ``uname -m``
    arch: str
    #: as ``uname -r``
    kernel_release: str
    driver_version: str
    #: ``open`` or ``proprietary``
    driver_flavour: str
    #: Source tree the modules have to be built against, e.g. /usr/src/nvidia-current-open-550.163.01
    driver_tree: str
    #: ``nvidia-fs``, ``p2pdma`` or ``compat``
    mode: str
    #: ``none``, ``peermem`` or ``dmabuf``
    rdma: str
    #: Empty when the mode needs no nvidia-fs.
    nvidia_fs_version: str
    libcufile_version: str
    cufile_path: str
    cufile_sha256: str
    #: package name → exact version that the lock has for this host
    packages: Dict[str, str] = field(default_factory=dict)
    #: [{"mount": "/mnt/nvme", "path": "direct|nvidia-fs|p2pdma|compat"}]
    storage: List[Dict[str, str]] = field(default_factory=list)
    #: digest of the lock it came from
    lock_digest: str = ""
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> Expectation:
    """Read an expectation; raises ValueError that says what is wrong with it."""
    value: Any = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("an expectation is a JSON object")
    known = {item.name for item in fields(Expectation)}
    if value.get("version") != VERSION:
        raise ValueError(
            "this expectation has version {!r}; this program reads {}".format(value.get("version"), VERSION)
        )
    surplus = sorted(set(value) - known)
    if surplus:
        raise ValueError("unknown keys: {}".format(", ".join(surplus)))
    try:
        return Expectation(**value)
    except TypeError as error:
        raise ValueError(str(error)) from None
