"""Copies of a light host."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy import console, run
from gdslab import archive as archives, lifecycle
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost
from gdslab.nspawn import LightHost
from gdslab.state import Lab, group_of

#: Removes the host's identity; the next start unpacks the copy's own seed.
FORGET = "rm -f /etc/lab-seeded /var/lib/systemd/random-seed && : >/etc/machine-id && sync"


def clone(lab: Lab, host: LabHost, count: int) -> list[LabHost]:
    """Add copies of ``host`` to its group until the group has ``count`` hosts; return the new, running hosts.

    Each has its own name, address, SSH key and machine id; all other files are copies.  ``host`` restarts.
    Raises LabUnavailable where ``host`` isn't a running light host.
    """
    if not isinstance(host, LightHost):
        raise LabUnavailable(f"{host.name} is a VM host, and only light hosts can be copied")
    if not host.running():
        raise LabUnavailable(
            f"{host.name} isn't running, so gdsdeploy can't copy it", hint=f"gdsdeploy lab up --lab {lab.name}"
        )
    archive = archives.controller_archive()
    with lab.exclusive():
        previous = {other.name for other in lab.hosts()}
        with console.step(f"Copying {host.name}"):
            host.ssh(["sudo", "sh", "-c", FORGET])
            host.stop()
            lab.add_hosts(group_of(host.name), count, Path(host.record.base))
            copies = [other for other in lab.hosts() if other.name not in previous]
            lab.write_access()
            # All that differs from the base, or the whole root where this file system has no overlay.
            layer = "upper" if (host.directory / "upper").is_dir() else "root"
            for copy in copies:
                lifecycle.make(lab, copy, archive)
                argv = ["cp", "-a", "--reflink=auto", "-T", host.directory / layer, copy.directory / layer]
                run.run(run.as_root([str(word) for word in argv]), doing=f"copy {host.name} to {copy.name}")
        lifecycle.start(lab, host.kind, archive)
    return copies
