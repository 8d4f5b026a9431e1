"""How the machines of a fleet are reached: as the fleet file says, and as OpenSSH's configuration does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gdsdeploy import paths
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import sshconfig
from gdsdeploy.ssh.endpoint import Endpoint

#: Runs of ``ssh -G`` at the same time, some milliseconds each.
CONFIGURATIONS_AT_ONCE = 8


class Reach(NamedTuple):
    """A host, and what finds out how to reach it: that may start a program, so a thread that connects does it."""

    host: str
    find: Callable[[], Endpoint]


def reaches(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> list[Reach]:
    """For each of the machines ``names`` of the fleet; relative file names start at ``fleet_dir``.

    What the fleet file leaves open is as OpenSSH's configuration has it.  ``find`` raises HostUnreachable where that
    is broken, and MissingProgram without ssh.
    """
    in_fleet, answers = partial(paths.locate, fleet_dir), sshconfig.Answers()

    def find(name: str) -> Endpoint:
        ssh = fleet.connection(name)
        assert ssh.address is not None
        config = in_fleet(ssh.config) if ssh.config else None
        end = answers.ask(ssh.address, port=ssh.port, user=ssh.user, config=config)
        end = replace(end, host=name, reads_installed=ssh.read_only == "installed")
        if ssh.identity_file:
            end = replace(end, identity_files=(in_fleet(ssh.identity_file),))
        return replace(end, known_hosts=(in_fleet(ssh.known_hosts),)) if ssh.known_hosts else end

    return [Reach(name, partial(find, name)) for name in names]


def endpoints(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> list[Endpoint]:
    """How to reach each of the machines, all at once; arguments and errors as of :func:`reaches`."""
    with ThreadPoolExecutor(CONFIGURATIONS_AT_ONCE) as pool:
        return list(pool.map(lambda reach: reach.find(), reaches(fleet, fleet_dir, names)))
