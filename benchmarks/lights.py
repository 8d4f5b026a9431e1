"""Light hosts of a lab as benchmarks use them: a fleet of machines that build, and copies of one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from gdslab.host import LabHost
from gdslab.state import Lab

PROGRAM = Path(sys.executable).parent / "gdsdeploy"


def write_fleet(lab: Lab) -> Path:
    """The lab's machines as builders; a fleet has to have a host, which is never asked."""
    value = yaml.safe_load(lab.fleet_path.read_text())
    value["hosts"] = {"none": {"profile": "gds", "address": "127.0.0.1", "port": 9}}
    folder = lab.directory / "noop"
    folder.mkdir(exist_ok=True)
    value["ssh"] |= {key: str(lab.directory / value["ssh"][key]) for key in ("identity_file", "known_hosts")}
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    return path


def spread(hosts: list[LabHost]) -> None:
    """Make every host a copy of the first, with its own name and keys."""
    first, *others = hosts
    for host in hosts:
        host.stop()
    for host in others:
        upper = host.directory / "upper"
        subprocess.run(["rm", "-rf", upper], check=True)
        subprocess.run(["cp", "-a", "--reflink=auto", first.directory / "upper", upper], check=True)
        (upper / "etc" / "lab-seeded").unlink()
    for host in hosts:
        host.start()
    for host in hosts:
        host.wait_ssh()


def command(*arguments: str | Path) -> str:
    """Run gdsdeploy as a user does; return what it said."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stderr
