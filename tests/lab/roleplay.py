"""Run one role on a lab's host as provision would, without the rest of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy.lab.host import Host

ROOT = Path(__file__).parents[2]


def play(host: Host, tmp: Path, role: str, **variables: Any) -> list[str]:
    """Run ``role``; what it changed."""
    variables = {"ansible_become": True, "ansible_ssh_common_args": f"-F {host.ssh_config}", **variables}
    (tmp / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": {host.name: variables}}}))
    (tmp / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": [role]}]))
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    argv = [Path(sys.executable).parent / "ansible-playbook", "-i", tmp / "inventory.yml", tmp / "play.yml"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("changed:")]


def put(host: Host, path: str, data: bytes) -> None:
    """Write a file as root."""
    host.ssh(["sudo", "sh", "-c", f"mkdir -p {Path(path).parent} && cat > {path}"], input=data)
