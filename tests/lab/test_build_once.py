"""One build serves two real hosts: one builds, the other receives it audited, and nothing of a tampered one stays.

Light hosts with a kernel's modules but no headers, compiler or DKMS; what DKMS would have built on the first is put
there.  A real build that is handed over is in the story, and one for eight hosts in ``benchmarks/kmod/receive``.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy import resources
from gdsdeploy.builds import assign, cache
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.converge.plan_fleet import plan_fleet
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.archive.provenance import PUBLIC, public_pem
from gdsdeploy.lock import lockfile
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.roleplay import connections
from tests.naming import unique
from tests.unit.host.kmod.kmod_root import RELEASE, VERSION, Root

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "lab" / "gdsdeploy.lock"
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
PLACED = f"/lib/modules/{RELEASE}/updates/gdsdeploy"
ARCHIVE = f"/var/lib/gdsdeploy/modules-{RELEASE}.tar"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    small_lab = Lab(unique("once"))
    try:
        yield labs.up(small_lab.name, vms=0, lights=2)
    finally:
        labs.down(small_lab)


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Path:
    """Both machines as hosts, of which the first builds, with a lock of real packages."""
    value = yaml.safe_load(lab.fleet_path.read_text())
    value["hosts"] = value.pop("builders")
    value["hosts"]["build1"]["modules"] = "build"
    value["profiles"] = {"gds": {"os": "debian-13"}}
    lab.fleet_path.write_text(yaml.safe_dump(value))
    lockfile.write(lockfile.beside(lab.fleet_path), lockfile.read(GOLDEN))
    return lab.fleet_path


@pytest.fixture(scope="module")
def hosts(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabHost, LabHost]:
    """Both with the same kernel; what was built is on the first only."""
    folder = tmp_path_factory.mktemp("roots")
    one, other = Root(folder / "one"), Root(folder / "other")
    one.nvidia(imports={"kfree": 0xAAAA0001})
    one.nvidia_fs()
    other.remove_headers()
    first, second = (lab.host(name) for name in ("build1", "build2"))
    for host, root in ((first, one), (second, other)):
        root.lists()
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as files:
            # The host's own /lib is a link.
            files.add(root.modules, f"usr/lib/modules/{RELEASE}")
            files.add(root.path / "usr/src", "usr/src")
            program = tarfile.TarInfo(PROGRAM[1:])
            program.size = len(hostapp.build())
            files.addfile(program, io.BytesIO(hostapp.build()))
        host.wait_ssh()
        script = f"tar -C / -xf - && mkdir -p /var/lib/gdsdeploy && chown -R root: /usr/lib/modules && depmod {RELEASE}"
        host.ssh(["sudo", "sh", "-c", script], input=stream.getvalue())
    assert second.ssh(["sh", "-c", "command -v gcc make dkms"], ok=(1, 127)).stdout == ""
    return first, second


def supplies(fleet: Path) -> dict[str, Supply]:
    lock = lockfile.read(lockfile.beside(fleet))
    return dict(plan_fleet(load_fleet(fleet), lock, fleet, ["build1", "build2"]).supplies)


def fetch(host: LabHost, path: str) -> bytes:
    return base64.b64decode(host.ssh(["sudo", "base64", path]).stdout)


def receive(host: LabHost, archive: Path | str, tmp: Path, key: bytes = b"") -> tuple[int, str]:
    """Run the role as provision would, with build1's public key; its exit code and output."""
    (tmp / "build1.pub").write_bytes(key)
    variables = {
        "ansible_become": True, "ansible_ssh_common_args": f"-F {host.ssh_config}", "gds_modules_from": "receive",
        "gds_modules_kernel_release": RELEASE, "gds_modules_archive": str(archive),
        "gds_modules_builder": "build1", "gds_modules_builder_key": str(tmp / "build1.pub"),
        "gds_modules_manager": "apt", "gds_modules_driver_version": VERSION,
        "gds_modules_driver_tree": "/usr/src/x", "gds_modules_driver_dkms_name": "x",
    }  # fmt: skip
    (tmp / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": {host.name: variables}}}))
    (tmp / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": ["gdsdeploy.gds.gds_modules"]}])
    )
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(resources.collections()),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    program = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(word) for word in (program, "-i", tmp / "inventory.yml", tmp / "play.yml")]
    with connections() as own:
        done = subprocess.run(argv, env={**env, **own}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_one_of_two_bare_hosts_builds(fleet: Path, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The user's own cache may have kept a build of this lock: the lab's demonstration makes just that one.
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    for host in lab.hosts():
        host.wait_ssh()
    by_host = supplies(fleet)
    assert {name: supply.builder or supply.mode for name, supply in by_host.items()} == {
        "build1": "build",
        "build2": "build1",
    }
    assert by_host["build1"].want == by_host["build2"].want


def test_what_one_has_built_the_other_receives(
    fleet: Path, hosts: tuple[LabHost, LabHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    first, second = hosts
    words = ["kmod", "pack", "--builder", "build1", "--kernel", RELEASE, "--json", "--output", ARCHIVE]
    packed = json.loads(first.ssh(["sudo", "python3", PROGRAM, *words]).stdout)
    before = supplies(fleet)
    key = fetch(first, PUBLIC)
    BuilderKeys.of(fleet).path("build1").write_bytes(key)
    with assign.open_run_archives(fleet) as shelf:
        archive_of(before["build2"].want, shelf.folder).write_bytes(fetch(first, ARCHIVE))
        assert shelf.keep(lockfile.read(lockfile.beside(fleet)), load_fleet(fleet), before) == []
    (entry,) = cache.default(print).entries()
    assert entry.manifest == packed

    after = supplies(fleet)
    assert {name: supply.source for name, supply in after.items()} == {"build1": "build", "build2": "cache"}
    assert after["build2"].origin == "build1"
    with assign.open_run_archives(fleet) as shelf:
        shelved = shelf.look(after["build2"].want, ["build1"])
        assert shelved is not None
        assert (shelved.builder, shelved.manifest) == ("build1", packed)
        archive = archive_of(after["build2"].want, shelf.folder)
        status, output = receive(second, archive, tmp_path, public_pem(b"e" * 32).encode())
        assert status == 2
        assert "isn't by the builder that the controller knows" in output
        status, output = receive(second, archive, tmp_path, key)
        assert status == 0, output
        assert "changed: [build2]" in output
        status, output = receive(second, archive, tmp_path, key)
        assert (status, "changed=0" in output) == (0, True), output
    audit = json.loads(second.ssh(["python3", PROGRAM, "kmod", "audit", "--kernel", RELEASE, "--json"]).stdout)
    assert {module["file"].rsplit("/", 1)[0] for module in audit} == {PLACED}
    assert all(module["ok"] for module in audit)
    answer: dict[str, Any] = json.loads(
        second.ssh(["python3", PROGRAM, "kmod", "key", "--kernel", RELEASE, "--json"]).stdout
    )
    assert answer["installed"] == entry.key
    assert answer["key"] is None, "it has no compiler"
    # What is in place stays so, also when the controller has lost it.
    cache.default(print).prune(0)
    assert supplies(fleet)["build2"].source == "kept"
    status, output = receive(second, "", tmp_path)
    assert (status, "changed=0" in output) == (0, True), output


def test_nothing_of_a_tampered_build_stays(hosts: tuple[LabHost, LabHost], tmp_path: Path) -> None:
    first, second = hosts
    second.ssh(["sudo", "python3", PROGRAM, "kmod", "remove", "--kernel", RELEASE])
    data = bytearray(fetch(first, ARCHIVE))
    data[data.index(b"\x7fELF") + 200] ^= 1
    (tmp_path / "bad.tar").write_bytes(bytes(data))
    status, output = receive(second, tmp_path / "bad.tar", tmp_path, fetch(first, PUBLIC))
    assert status == 2
    assert "doesn't have its manifest" in output
    files_left = second.ssh(
        ["sh", "-c", f"ls -d {ARCHIVE} {PLACED} /etc/depmod.d/gdsdeploy* /lib/modules/.gdsdeploy*"], ok=(2,)
    )
    assert files_left.stdout == ""
