"""What a process belongs to, from the path of its control group: a job, a pod, a container, a unit."""

from __future__ import annotations

import re
from typing import Dict, NamedTuple

from ..rootdir import list_folder

#: kubelet's folder for each pod is NAMESPACE_NAME_UID.
_POD_LOGS = "/var/log/pods"
JOB, POD, CONTAINER, UNIT, NONE = "job", "pod", "container", "unit", ""
#: Kind → what its part of the path looks like; the first kind that matches counts.
_PATTERNS = (
    (JOB, re.compile(r"/job_(\d{1,12})(?=/|$)")),
    (POD, re.compile(r"/(?:kubepods[^/]*-)?pod([0-9a-f]{8}[-_0-9a-f]{24,28})(?:\.slice)?(?=/|$)")),
    (CONTAINER, re.compile(r"(?:/|docker-|libpod-|crio-|containerd-|nerdctl-)([0-9a-f]{64})(?:\.scope)?(?=/|$)")),
    (CONTAINER, re.compile(r"/lxc(?:\.payload)?[./]([\w.-]{1,64})(?=/|$)")),
    (UNIT, re.compile(r".*/([^/]+\.(?:service|scope))(?=/|$)")),
)


class Owner(NamedTuple):
    """``name``: the number of a Slurm job, a pod's UID, 12 characters of a container's id, or a unit's name."""

    kind: str
    name: str


def owner(cgroup: str) -> Owner:
    """The innermost unit, unless a job, a pod or a container is around it."""
    for kind, pattern in _PATTERNS:
        match = pattern.search(cgroup)
        if match:
            name = match.group(1)
            return Owner(kind, name[:12] if kind == CONTAINER else name.replace("_", "-") if kind == POD else name)
    return Owner(NONE, "")


def pods() -> Dict[str, str]:
    """UID of each pod of this host → ``namespace/name``, from the folders in which kubelet keeps its logs."""
    parts = [name.split("_") for name in list_folder("/", _POD_LOGS)]
    return {row[2]: f"{row[0]}/{row[1]}" for row in parts if len(row) == 3}


def named(whose: Owner, names: Dict[str, str]) -> Owner:
    """With the name of a pod in place of its UID, where it's known."""
    return whose._replace(name=names.get(whose.name, whose.name)) if whose.kind == POD else whose
