"""What a process belongs to, from the path of its control group: a job, a pod, a container, a unit.  Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

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
    """``name``: the number of a Slurm job, the UID of a pod, 12 characters of a container's id, or a unit's name."""

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
