"""Run one role on a lab's host as provision would, without the rest of it."""

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

from gdsdeploy import resources
from gdslab.host import LabHost

ROOT = Path(__file__).parents[2]


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
