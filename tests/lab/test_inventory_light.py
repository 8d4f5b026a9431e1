"""Other engines of Ansible provision a real host from the folder that ``gdsdeploy inventory`` writes.

The roles are the real ones and really change the host, which is a light one: those that are cheap.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gdsdeploy.lock import lockfile
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.roleplay import connections, lights

pytestmark = pytest.mark.lab

BIN = Path(sys.executable).parent
TAGS = "gds_preflight,gds_repo,gds_host,gds_cufile"
PREFERENCES, EXPECTATION = "/etc/apt/preferences.d/00-gdsdeploy.pref", "/etc/gdsdeploy/expectation.json"


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    with lights("inventory") as lab:
        yield lab


@pytest.fixture(scope="module")
def host(small: Lab) -> LabHost:
    return small.host("build1")


@pytest.fixture(scope="module")
def fleet(small: Lab) -> Path:
    """The light host as a host that builds for itself, with a lock of the archive as it is."""
    value = yaml.safe_load(small.fleet_path.read_text())
    value["hosts"] = {name: {**entry, "modules": "build"} for name, entry in value.pop("builders").items()}
    value["profiles"]["gds"].pop("builder")
    small.fleet_path.write_text(yaml.safe_dump(value))
    run(BIN / "gdsdeploy", "lock", small.fleet_path)
    return small.fleet_path


@pytest.fixture(scope="module")
def folder(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not where it was written, as on the machine that runs it."""
    place = tmp_path_factory.mktemp("elsewhere")
    run(BIN / "gdsdeploy", "inventory", fleet, "-o", place / "written")
    shutil.move(place / "written", place / "project")
    return place / "project"


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """What it printed; it has to succeed."""
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with connections() as own:
        done = subprocess.run(
            [str(argument) for argument in argv], env={**os.environ, **path, **own}, cwd=cwd,
            capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def text(host: LabHost, path: str) -> str:
    return host.ssh(["sudo", "cat", path], ok=(0, 1)).stdout


def test_ansible_runner_provisions(host: LabHost, fleet: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    shutil.copy(fleet.parent / "id_ed25519", tmp_path / "env" / "ssh_key")
    where = ("--project-dir", folder, "--inventory", folder / "hosts.yml")
    run(
        "ansible-runner",
        "run",
        tmp_path,
        *where,
        "-p",
        "provision.yml",
        "--ident",
        "one",
        "--cmdline",
        f"--tags {TAGS}",
    )
    events = [json.loads(path.read_text()) for path in (tmp_path / "artifacts/one/job_events").glob("*.json")]
    stats = next(entry["event_data"] for entry in events if entry["event"] == "playbook_on_stats")
    assert stats["changed"]["build1"] > 5
    assert (stats["failures"], stats["dark"]) == ({}, {})
    assert json.loads(text(host, EXPECTATION))["lock_digest"] == lockfile.read(lockfile.beside(fleet)).digest
    assert "Rendered by gdsdeploy" in text(host, "/etc/cufile.json")
    assert host.ssh(["dpkg-query", "--show", "--showformat=${db:Status-Status}", "libcufile0"]).stdout == "installed"
    assert "Pin: version" in text(host, PREFERENCES)


def test_ansible_playbook_finds_nothing_left_to_do(fleet: Path, folder: Path, tmp_path: Path) -> None:
    """The inventory as AWX gives it: read once, and given to each job as a script that prints it."""
    listed = run("ansible-inventory", "-i", "hosts.yml", "--list", "--export", cwd=folder)
    (tmp_path / "listed.json").write_text(listed)
    script = tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/listed.json\n")
    script.chmod(0o755)
    key = fleet.parent / "id_ed25519"
    for inventory in (script, folder / "hosts.yml"):
        output = run(
            "ansible-playbook", "-i", inventory, "--private-key", key, "--tags", TAGS, folder / "provision.yml"
        )
        assert "changed=0" in output, output
        assert "failed=0" in output


def test_a_host_pulls_it(host: LabHost, folder: Path) -> None:
    """With ansible-core and git of its own archive."""
    packed = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True).stdout
    script = (
        "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends ansible-core "
        "git && mkdir /srv/fleet && cd /srv/fleet && tar -xof - && git init -q -b main && git add --all"
        " && git -c user.name=a -c user.email=a@fleet.example commit -qm lock"
    )
    host.ssh(["sudo", "sh", "-c", script], input=packed, timeout=600)
    host.ssh(["sudo", "rm", "-f", "/etc/cufile.json", PREFERENCES])
    words = ["ansible-pull", "--url", "/srv/fleet", "--checkout", "main", "--directory", "/var/lib/fleet",
             "--inventory", "hosts.yml", "--limit", "build1", "--extra-vars",
             "ansible_connection=local", "--tags",
             f"{TAGS},gds_gate,gds_reboot", "--skip-tags", "boot", "provision.yml"]  # fmt: skip
    argv = ["sudo", "env", "-C", "/", "LC_ALL=C.UTF-8", *words]
    done = host.ssh(argv, ok=range(256), timeout=600)
    assert (done.status, "failed=0" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "Rendered by gdsdeploy" in text(host, "/etc/cufile.json")
    assert "Pin: version" in text(host, PREFERENCES)
    # Neither a reboot, which the running kernel would need, nor the gate that waits for it.
    assert host.ssh(["systemctl", "is-enabled", "gds-gate.service"]).stdout.strip() == "enabled"
    assert host.ssh(["sudo", "test", "-e", "/run/gdsdeploy/gate.json"], ok=(0, 1)).status == 1
    again = host.ssh(argv, timeout=600).stdout
    assert "changed=0" in again, again


def test_the_same_folder_takes_it_back(host: LabHost, fleet: Path, folder: Path) -> None:
    key = fleet.parent / "id_ed25519"
    run("ansible-playbook", "-i", folder / "hosts.yml", "--private-key", key, folder / "remove.yml")
    listing = f"ls -d {EXPECTATION} {PREFERENCES} /usr/lib/gdsdeploy"
    assert host.ssh(["sudo", "sh", "-c", listing], ok=(2,)).stdout == ""
