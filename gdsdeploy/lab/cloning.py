"""More hosts like one that is there: what was done to it once need not be done to each of them."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import LabUnavailable
from gdsdeploy.lab import archive as archives
from gdsdeploy.lab import lifecycle
from gdsdeploy.lab.host import Host
from gdsdeploy.lab.nspawn import LightHost
from gdsdeploy.lab.state import Lab, group_of

#: What makes a host itself: it is made again at the next start, as the lab's seed for that host has it.
_FORGET = "rm -f /etc/lab-seeded /var/lib/systemd/random-seed && : >/etc/machine-id && sync"


def clone(lab: Lab, host: Host, count: int) -> list[Host]:
    """Add hosts to ``host``'s group until it has ``count``; each begins as ``host`` is now, under its own name.

    They have names, addresses, SSH keys and machine ids of their own; all else, such as files that say which host they
    are on, is as it was.  ``host`` is stopped meanwhile.  All of them are running at the end; returns the new ones.
    Raises LabUnavailable where ``host`` does not run, or is no light host.
    """
    if not isinstance(host, LightHost):
        raise LabUnavailable(f"{host.name} is a VM host, and only light hosts can be copied")
    if not host.running():
        raise LabUnavailable(f"{host.name} does not run, so nothing can begin as it is", hint="gdsdeploy lab up")
    archive = archives.controller_archive()
    with lab.locked():
        before = {item.name for item in lab.hosts()}
        with console.step(f"Making hosts like {host.name}"):
            host.ssh(["sudo", "sh", "-c", _FORGET])
            host.stop()
            lab.add_hosts(group_of(host.name), count, Path(host.record.base))
            made = [item for item in lab.hosts() if item.name not in before]
            lab.write_access()
            for item in made:
                lifecycle.make(lab, item, archive)
                _copy(host, item)
        lifecycle.start(lab, host.kind, archive)
    return made


def _copy(host: LightHost, other: Host) -> None:
    """All that differs from the base, or the whole root where this file system carries no overlay."""
    layer = "upper" if (host.directory / "upper").is_dir() else "root"
    argv = ["cp", "-a", "--reflink=auto", "-T", *(str(item.directory / layer) for item in (host, other))]
    run.run(run.as_root(argv), doing=f"copy {host.name} to {other.name}")
