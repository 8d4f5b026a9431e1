"""Collects one JSON document about a host: its files and the output of its programs, raw and verbatim.

It changes nothing and loads no module.  Only on mounts of the expectation that allow it, it makes a scratch file and
removes it.  What this user can't read is recorded as unread.  Bytes per file, seconds per program and the total time
are limited.

The document (version 1)::

    version, collected_at (UTC), seconds
    host      {name, uid, python, uname: {sysname, release, version, machine}, machine_id: as boot/identity.py has it}
    files     path → text | {"error": errno name or words, "text": what was read before}
    binaries  path → hex digits | {"error"}
    links     path → target as written; of the driver's libraries, where the links end | {"error"}
    listings  folder or pattern → sorted names | {"error"}
    excerpts  path → {"pattern", "lines"} | {"error"}: the matching lines of a file too large to keep
    commands  name → {argv, status, stdout, stderr, seconds, [pattern], [log], [asked_at]}; status as in process.py;
              asked_at, like collected_at: when it ran, where a later look may have kept it
    modules   path of a module file → what read_module found in it | {"error"}
    audits    running, next → {release, results: as audit/audit.py gives them} | {"error"}
    trees     folder of a driver's source → {version, flavour, dkms_name, digest} | {"error"}
    dkms      /var/lib/dkms → the lines of dkms status, read from DKMS's folders and links | {"error"}
    modulefiles release of a kernel → {files: the stack's files, as subjects/foreign_files.py has them} | {"error"}
    owners    path → the package that has it, empty where none has | {"error"}
    excludes  configuration of dnf → ["SECTION: words"] of its settings that keep packages out | {"error"}
    inodes    path → inode flags as in linux/fs.h | {"error"}
    features  block device → {compat, incompat, ro_compat} of its ext4 superblock | {"error"}
    opens     path → "ok" | {"error"}: whether this program may open it
    odirect   mount point → the audit of direct I/O there: see host/odirect/trials.py
    load      mount point → the reading there under load, if requested: see host/odirect/load.py
    insides   path on Btrfs or XFS → {fsid, devices} or {geometry: flags} as the filesystem answers | {"error"}
    acs       PCI address of a bridge → control register of Access Control Services, -1 without one | {"error"}
    ports     PCI address of a bridge → its type as PCI Express numbers them, -1 for one that isn't | {"error"}
    vpd       PCI address of a ConnectX with InfiniBand → "SW_MNG" if it leads to NVSwitches, else "" | {"error"}
    environment  variable → value, in this program's environment: libcufile's variables
    configs   path of a configuration that CUFILE_ENV_PATH_JSON names → {config: its known sections} |
              {broken: why libcufile refuses it} | {"error"}; of a program in a container, below /proc/PID/root
    processes libcufile → {programs, unread: processes whose mappings can't be read, more: whether a limit ended the
              search}; programs are those that have it loaded: {pid, program, unit, container: whether its files are
              others, libraries, wheels: library → NVIDIA's packages beside it, variables, base and config: keys of
              configs, "error"}
    space     path → {total, free: bytes for unprivileged users, inodes_free} | {"error"}
    gaps      [{"collector", "reason"}]: collectors that didn't finish
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Sequence

from .. import trail
from ..odirect.scratch import longest
from ..paths import TRAIL
from ..subjects.register import collectors
from .recorder import NOTHING, VERSION, EvidenceRequest, Recorder, request_for

__all__ = ["NOTHING", "VERSION", "EvidenceRequest", "collect", "longest", "request_for"]

#: Seconds that one collector may wait outside of programs (see recorder.time_limit), and seconds for all of them.
COLLECTOR_SECONDS = 60.0
TOTAL_SECONDS = 240.0


def collect(
    request: EvidenceRequest = NOTHING, total: float = TOTAL_SECONDS, only: Sequence[str] = ()
) -> Dict[str, Any]:
    """Collect the evidence of this host; whatever the host doesn't have, this never raises.

    total: seconds for everything except the reading under load, which takes its own time.  only: these collectors;
    empty: all of them.
    """
    load_seconds = sum(longest(seconds) for _, seconds in request.load)
    recorder = Recorder(total + load_seconds)
    recorder.document["host"]["uid"] = os.geteuid()
    if trail.trouble():
        recorder.gap("audit trail", trail.trouble())
    if request.trail:
        recorder.value("files", TRAIL, lambda _: trail.tail())
    for name, collector in collectors().items():
        if only and name not in only:
            continue
        seconds = load_seconds if name == "load" else COLLECTOR_SECONDS
        recorder.attempt(name, functools.partial(collector, recorder, request), seconds)
    return recorder.finish()
