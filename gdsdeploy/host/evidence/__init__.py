"""One pass over a host → one JSON document of what its files and programs say, raw and verbatim.

Nothing is changed and no module is loaded; only on mounts of the expectation that allow it, a scratch file comes and
goes.  Root sees everything; without root, what could not be read is recorded as such.  Everything is bounded: bytes per
file, seconds per program, seconds in all.

The document (version 1)::

    version, collected_at (UTC), seconds
    host      {name, uid, python, uname: {sysname, release, version, machine}}
    files     path → text | {"error": errno name or words, "text": what was read before}
    binaries  path → hex digits | {"error"}
    links     path → target as written; of the driver's libraries, where the links end | {"error"}
    listings  folder or pattern → sorted names | {"error"}
    excerpts  path → {"pattern", "lines"} | {"error"}: the matching lines of a file too large to keep
    commands  name → {argv, status, stdout, stderr, seconds, [pattern], [log]}; status as in process.py
    modules   path of a module file → what read_module found in it | {"error"}
    audits    running, next → {release, results: as audit/audit.py gives them} | {"error"}
    trees     folder of a driver's source → {version, flavour, dkms_name, digest} | {"error"}
    inodes    path → inode flags as in linux/fs.h | {"error"}
    features  block device → {compat, incompat, ro_compat} of its ext4 superblock | {"error"}
    opens     path → "ok" | {"error"}: whether this program may open it
    odirect   mount point → what came of direct I/O there, tried on it: see host/odirect/audit.py
    load      mount point → what was read there under load, where that was asked for: see host/odirect/load.py
    insides   path on Btrfs or XFS → {fsid, devices} or {geometry: flags} as the filesystem answers | {"error"}
    acs       PCI address of a bridge → control register of Access Control Services, -1 without one | {"error"}
    environment  variable → value: those of libcufile that this program was given
    space     path → {total, free: bytes for unprivileged users, inodes_free} | {"error"}
    gaps      [{"collector", "reason"}]: collectors that did not come to their end
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, Tuple

from ..odirect.load_limits import longest
from .recorder import VERSION, Recorder
from .wanted import NOTHING, Wanted, wanted_by

__all__ = ["NOTHING", "VERSION", "Wanted", "collect", "longest", "wanted_by"]

#: Seconds that one collector may wait outside of programs (see recorder.time_limit), and that the pass may take in all.
COLLECTOR_SECONDS = 60.0
TOTAL_SECONDS = 240.0


def collect(wanted: Wanted = NOTHING, total: float = TOTAL_SECONDS) -> Dict[str, Any]:
    """Collect the evidence of this host; never raises for what a host lacks.

    total: seconds for all but the reading under load, which comes on top.
    """
    loaded = sum(longest(seconds) for _, seconds in wanted.load)
    recorder = Recorder(total + loaded)
    recorder.document["host"]["uid"] = os.geteuid()
    for collector in _collectors():
        name = collector.__module__.rpartition(".")[2]
        seconds = loaded if name == "load" else COLLECTOR_SECONDS
        recorder.attempt(name, functools.partial(collector, recorder, wanted), seconds)
    return recorder.finish()


def _collectors() -> Tuple[Callable[[Recorder, Wanted], None], ...]:
    """In this order; programs that can hang come last.  Imported here: other commands need few of them."""
    from . import (
        audits,
        boot,
        drift,
        environment,
        fit,
        gpu,
        kernel,
        load,
        modules,
        odirect,
        packages,
        pci,
        programs,
        proof,
        storage,
        userland,
    )

    return (
        kernel.collect,
        gpu.collect,
        boot.collect,
        packages.collect,
        drift.collect,
        storage.collect,
        odirect.collect,
        load.collect,
        environment.collect,
        pci.collect,
        fit.collect,
        modules.collect,
        audits.collect,
        userland.collect,
        programs.collect,
        proof.collect,
    )
