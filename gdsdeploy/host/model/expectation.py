"""The expected state of a host: rendered on the controller from fleet and lock, kept on the host for its gate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List

from ..io import jsontext
from ..kmod.packaged_file import PackagedFile
from .compat import Rule, require_conditions

VERSION = 1
#: Kinds of devices → what narrows their count, with its type.
HARDWARE: Dict[str, Dict[str, type]] = {
    "gpus": {"model": str},
    "nics": {"driver": str, "link": int},
    "nvme": {"model": str},
}


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
    #: [{"mount": "/mnt/nvme", "path": "direct|nvidia-fs|p2pdma|compat"}]; "scratch": "no" where no file may be made;
    #: "load": {"read": bytes a second, "seconds"} where it has to deliver that much when it is tried under load
    storage: List[Dict[str, Any]] = field(default_factory=list)
    #: {"nvme" and "nic": the farthest that the nearest one of a GPU may be, "golden": a golden topology}; each may lack
    topology: Dict[str, Any] = field(default_factory=dict)
    #: {"gpus", "nics" and "nvme": {"count", and what narrows it: "model"; of nics "driver" and "link" in Gbit/s}}; each
    #: may lack
    hardware: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    #: addresses of the lock's repositories, and of its mirrors
    repositories: List[str] = field(default_factory=list)
    #: digest of the lock it came from
    lock_digest: str = ""
    #: the fleet that the lock is for, and its place in the order of that fleet's locks; empty and 0 in old locks
    fleet_id: str = ""
    lock_serial: int = 0
    #: whether this host chooses the kernel that it runs; if not, the lock's is the one that its modules are for
    own_kernel: bool = True
    #: arguments that the kernel has to be booted with
    boot_arguments: List[str] = field(default_factory=list)
    #: MODULE.PARAMETER → value that a loaded module has to have
    module_parameters: Dict[str, str] = field(default_factory=dict)
    #: modules that locked packages bring, for the locked kernel; empty where the modules are built
    packaged: List[PackagedFile] = field(default_factory=list)
    #: addresses of the hosts in this host's IMEX domain; empty: it is in none
    imex_nodes: List[str] = field(default_factory=list)
    #: the fleet's own rules, by which what runs is judged, too
    rules: List[Rule] = field(default_factory=list)
    version: int = VERSION

    def modules(self) -> List[str]:
        """In-kernel names of the modules that a kernel needs for this stack, in the order of loading."""
        names = ["nvidia"]
        if self.rdma == "peermem":
            names.append("nvidia_peermem")
        if self.nvidia_fs_version:
            names.append("nvidia_fs")
        return names

    def to_json(self) -> str:
        return json.dumps(vars(self), default=asdict, indent=2, sort_keys=True) + "\n"


class NeedsExpectationError(Exception):
    """A check asked what is expected of a host, and nothing is."""


class NoExpectation(Expectation):
    """In place of an expectation, where nothing says what a host should be: to read what it has to have raises."""

    host = profile = ""

    def __init__(self) -> None:
        """Without fields; those that an expectation may leave out are left out."""

    def __getattr__(self, name: str) -> Any:
        """Raises NeedsExpectationError, and AttributeError for what no expectation has."""
        raise NeedsExpectationError(name) if name in Expectation.__dataclass_fields__ else AttributeError(name)


def from_json(text: str) -> Expectation:
    """Read an expectation; raises ValueError that says what is wrong with it."""
    from . import schema

    value: Any = jsontext.loads(text)
    if not isinstance(value, dict):
        raise ValueError("an expectation is a JSON object")
    if value.get("version") != VERSION:
        raise ValueError(f"this expectation has version {value.get('version')!r}; this program reads {VERSION}")
    expectation = schema.read(Expectation, value, "expectation")
    for mount in expectation.storage:
        texts = [mount.get(key, "") for key in ("mount", "path", "scratch")]
        load = mount.get("load") or {"read": 0, "seconds": 0}
        is_load = isinstance(load, dict) and all(type(load.get(key)) in (int, float) for key in ("read", "seconds"))
        if not all(isinstance(text, str) for text in texts) or not mount.get("mount") or not is_load:
            raise ValueError(f"expectation.storage: not a mount: {str(mount)[:80]}")
    for rule in expectation.rules:
        for conditions in (rule.when, rule.needs, rule.refuses, rule.warns, rule.doubts):
            require_conditions(conditions)
    for kind, devices in expectation.hardware.items():
        types = {"count": int, **HARDWARE.get(kind, {})}
        typed = all(type(value) is types.get(key) for key, value in devices.items())
        if kind not in HARDWARE or "count" not in devices or not typed:
            raise ValueError(f"expectation.hardware.{kind[:20]}: not a count of devices: {str(devices)[:80]}")
    return expectation
