"""`gdsdeploy init` writes the fleet file of three real hosts of three systems, which lock and plan take as it is.

The hosts are those of labs: Debian's has the archive of this machine, the others have imitated repositories
(docs/lab.md), to which their administrator has added NVIDIA's and EPEL, in the places where the vendors have them.
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import gdslab as labs
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdslab import guest
from gdslab.host import LabHost
from gdslab.kit import el, elversions
from gdslab.state import Lab
from tests.lab.program import gdsdeploy
from tests.naming import unique

pytestmark = pytest.mark.lab

#: Name of the host → system.
SYSTEMS = {"deb1": "debian-12", "noble1": "ubuntu-24.04", "rocky1": "rocky-9"}
_APT = """
set -eu
cat >/usr/share/keyrings/cuda-archive-keyring.gpg
echo "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {uri} /" >/etc/apt/sources.list.d/cuda.list
"""
_DNF = """
set -eu
cat >/etc/pki/rpm-gpg/{key}
printf '%s\\n' '[{name}]' 'name={name}' 'baseurl={uri}' enabled=1 gpgcheck=1 'gpgkey=file:///etc/pki/rpm-gpg/{key}' \\
    >/etc/yum.repos.d/{name}.repo
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of ``folder``."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _root(host: LabHost, script: str, text: bytes) -> None:
    host.ssh(["sudo", "sh", "-c", script], input=text)


def _add_cuda(host: LabHost, kit: Path, folder: Path, uri: str) -> None:
    """NVIDIA's repository, which the lab serves under a shorter address."""
    place = folder / "compute/cuda/repos/ubuntu2404"
    place.mkdir(parents=True)
    (place / "x86_64").symlink_to(kit / "cuda")
    script = _APT.format(uri=f"{uri}/compute/cuda/repos/ubuntu2404/x86_64")
    _root(host, script, (kit / "cuda.gpg").read_bytes())


def _add_rpms(host: LabHost, kit: Path, uri: str) -> None:
    """NVIDIA's repository and EPEL."""
    places = el.repositories(elversions.RELEASES[9])
    for name in ("cuda", "epel"):
        script = _DNF.format(key=el.KEYS[name], name=name, uri=f"{uri}/{places[name]}")
        _root(host, script, (kit / el.KEYS[name]).read_bytes())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ssh_config of an administrator with the three hosts."""
    folder = tmp_path_factory.mktemp("init")
    config = folder / "ssh_config"
    with ExitStack() as stack:
        uri = stack.enter_context(served(folder))
        for name, system in SYSTEMS.items():
            lab = Lab(unique(name))
            stack.callback(labs.down, lab)
            option = "--light" if system.startswith("debian") else "--node"
            counts = {"--vm": "0", "--light": "0", "--node": "0", option: "1"}
            words = [word for pair in counts.items() for word in pair]
            gdsdeploy("lab", "up", "--lab", lab.name, "--os", system, *words, "--yes")
            (host,) = lab.hosts()
            host.wait_ssh()
            with config.open("a") as file:
                file.write(
                    f"Host {name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User {guest.USER}\n"
                    f"  IdentityFile {lab.directory}/id_ed25519\n  UserKnownHostsFile {lab.directory}/known_hosts\n"
                )
            if lab.server and system.startswith("ubuntu"):
                _add_cuda(host, lab.server.folder, folder, uri)
            elif lab.server:
                _add_rpms(host, lab.server.folder, lab.server.uri)
        yield config


def test_a_mixed_fleet_is_locked_and_planned_without_an_edit(config: Path) -> None:
    path = config.parent / "fleet.yml"
    gdsdeploy("init", *SYSTEMS, "--ssh-config", config, "--output", path)
    before = path.read_bytes()
    gdsdeploy("lock", path)
    hosts = json.loads(gdsdeploy("plan", path, "--json", status=32).stdout)["hosts"]
    assert path.read_bytes() == before
    fleet, targets = load_fleet(path), lockfile.read(lockfile.beside(path)).targets
    assert {name: targets[host.profile].os for name, host in fleet.hosts.items()} == SYSTEMS
    for name, plan in hosts.items():
        assert (plan["state"], plan["refusals"], plan["unknown"]) == ("changes", [], []), name
        assert not plan["removals"]["known"], "its repositories are written by provision"
        locked = {package.package for package in targets[fleet.hosts[name].profile].packages}
        coming = {action["subject"] for action in plan["actions"] if action["kind"] in ("install", "upgrade")}
        assert any("libcufile" in package for package in coming & locked), name
