"""A no-op provision of eight light hosts, paired with ansible-playbook running the same roles on them.

The hosts are machines that build modules: everything of the lock is installed and built on them for real, on the first
one by provision; the others begin as copies of it.  Then, in alternation and in one run, both commands are timed as a
user starts them.  Prints one JSON object: seconds of each round, both medians, their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from gdsdeploy import console, converge, folders, lockfile
from gdsdeploy import lab as labs
from gdsdeploy.load import load_fleet
from gdsdeploy.plan import HostPlan
from gdsdeploy.planning import plan_fleet

sys.path.insert(0, str(Path(__file__).parents[1]))
from lights import command, spread, write_fleet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default="noop", help="name of the lab; made if it is not there (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the lab up, for another run")
    options = parser.parse_args()
    lab = labs.up(options.lab, vms=0, lights=options.hosts)
    try:
        fleet = write_fleet(lab)
        command("lock", fleet)
        command("provision", fleet, "--limit", "build1")
        names = [host.name for host in lab.hosts()]
        if not satisfied(fleet, names):
            spread(lab.hosts())
            command("provision", fleet, "--limit", ",".join(names))
        console.data(json.dumps(measure(fleet, names, options.rounds), indent=2))
    finally:
        if not options.keep:
            labs.down(lab)


def satisfied(fleet: Path, names: list[str]) -> bool:
    """Whether every machine is as the lock wants it."""
    lock = lockfile.read(lockfile.beside(fleet))
    plans = plan_fleet(load_fleet(fleet), lock, fleet, names).hosts.values()
    return all(isinstance(found, HostPlan) and found.satisfied for found in plans)


def measure(fleet: Path, names: list[str], rounds: int) -> dict[str, object]:
    limit = ("--limit", ",".join(names))
    noop: list[float] = []
    roles: list[float] = []
    command("provision", fleet, *limit, "--force-roles")
    # Another run on this machine would replace it.
    inventory = Path(shutil.copy(folders.state() / "runs" / "inventory.yml", fleet.with_name("inventory.yml")))
    argv = converge.argv("provision", inventory, limit=names, extra=[])
    env = converge.environment(control_dir=folders.state() / "runs" / "cm")
    for _ in range(rounds):
        begin = time.perf_counter()
        said = command("provision", fleet, *limit)
        noop.append(time.perf_counter() - begin)
        assert "Nothing to change" in said, said
        begin = time.perf_counter()
        played = subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, **env}).stdout
        roles.append(time.perf_counter() - begin)
        assert played.count("changed=0 ") == len(names), played
    middle = statistics.median(noop), statistics.median(roles)
    return {
        "hosts": len(names),
        "noop_seconds": [round(item, 2) for item in noop],
        "ansible_seconds": [round(item, 2) for item in roles],
        "noop_median": round(middle[0], 2),
        "ansible_median": round(middle[1], 2),
        "ratio": round(middle[1] / middle[0], 1),
    }


if __name__ == "__main__":
    main()
