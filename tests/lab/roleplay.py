"""Light hosts of a lab of their own, and one role on such a host as provision would run it, without the rest of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import gdslab as labs
from gdsdeploy import resources
from gdslab import Lab, LabHost
from tests.naming import unique

ROOT = Path(__file__).parents[2]
#: `is-system-running --wait` can miss the end of a boot that is about to be over.
_BOOTED = "while systemctl is-system-running | grep -q starting; do sleep 0.2; done"


@contextmanager
def lights(what: str) -> Iterator[Lab]:
    """A lab of one light host, build1, taken down in the end."""
    name = unique(what)
    try:
        yield labs.up(name, vms=0, lights=1)
    finally:
        labs.down(Lab(name))


def restart(host: LabHost) -> None:
    """Boot a light host again, to the end of its boot."""
    host.stop()
    host.start()
    host.wait_ssh()
    host.ssh(["sh", "-c", _BOOTED], timeout=120)


@contextmanager
def connections() -> Iterator[dict[str, str]]:
    """What the environment of a run of Ansible needs so that its connections are its own, and end with it.

    Ansible finds an open connection by what a host is called, and hosts of different labs are called the same.
    """
    # Sockets need short paths.
    folder = Path(tempfile.mkdtemp(prefix="gds-cp-", dir="/tmp"))
    try:
        yield {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder)}
    finally:
        for socket in folder.iterdir():
            subprocess.run(
                ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "any"], capture_output=True, check=False
            )
        shutil.rmtree(folder, ignore_errors=True)


def play(host: LabHost, tmp: Path, role: str, **variables: Any) -> list[str]:
    """Run ``role``; what it changed."""
    connection = {"ansible_become": True, "ansible_ssh_common_args": f"-F {host.ssh_config}"}
    variables = {**connection, f"{role}_manager": "apt", **variables}
    (tmp / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": {host.name: variables}}}))
    roles = [f"gdsdeploy.gds.{role}"]
    (tmp / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": roles}]))
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(resources.collections()),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    argv = [Path(sys.executable).parent / "ansible-playbook", "-i", tmp / "inventory.yml", tmp / "play.yml"]
    with connections() as own:
        done = subprocess.run(argv, env={**env, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("changed:")]


def put(host: LabHost, path: str, data: bytes) -> None:
    """Write a file as root."""
    host.ssh(["sudo", "sh", "-c", f"mkdir -p {Path(path).parent} && cat > {path}"], input=data)
