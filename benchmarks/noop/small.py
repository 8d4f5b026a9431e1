"""Light hosts with a stack of small packages, so that nothing is built and the first provision takes a minute.

The packages are those of the tests: real ones of dpkg's in a signed repository on loopback, and archives of modules as
a builder leaves them.  gdsdeploy and Ansible do the same work for them as for NVIDIA's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

import gdslab as labs
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.lockfile import pins
from gdsdeploy.model.lock import Lock
from gdslab.state import Lab

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.lab import small_stack
from tests.repos.archive import Key, serve


@contextlib.contextmanager
def fleet(name: str, count: int) -> Iterator[tuple[Path, Lab]]:
    """The fleet file of ``count`` hosts of a lab, which goes at the end."""
    with tempfile.TemporaryDirectory(prefix="gds-noop-") as temporary:
        folder = Path(temporary)
        key = Key.generate(folder / "key" / "home", "small")
        os.environ["NO_PROXY"] = "127.0.0.1"
        try:
            with serve(folder / "repository") as server:
                lab = labs.up(name, vms=0, lights=count)
                os.environ["GDSDEPLOY_CACHE_DIR"] = str(folder / "cache")
                small = small_stack.make(folder / "repository", server.uri, key)
                path = folder / "fleet.yml"
                small_stack.write(path, _fleet(lab, small, server.uri), small.old)
                lock = _of_fleet(path, small.old)
                lockfile.write(lockfile.beside(path), lock)
                small_stack.stock(folder / "modules", path, lock)
                for host in lab.hosts():
                    host.wait_ssh()
                yield path, lab
        finally:
            labs.down(Lab(name))
            key.forget()


def _of_fleet(path: Path, lock: Lock) -> Lock:
    """The lock as if it had been resolved for this fleet file."""
    profile, target = load_fleet(path).profiles["gds"], lock.targets["gds"]
    return lockfile.build({"gds": target.model_copy(update={"pins": pins(profile)})})


def _fleet(lab: Lab, small: small_stack.Small, uri: str) -> dict[str, object]:
    ssh = yaml.safe_load(lab.fleet_path.read_text())["ssh"]
    paths = {entry: str(lab.fleet_path.parent / ssh[entry]) for entry in ("identity_file", "known_hosts")}
    hosts = {host.name: {"profile": "gds", "address": "127.0.0.1", "port": host.port} for host in lab.hosts()}
    return small_stack.fleet(small, uri, hosts, {**ssh, **paths})
