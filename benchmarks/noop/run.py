"""A no-op provision of eight light hosts, paired with ansible-playbook running the same roles on them.

The hosts are machines that build modules: everything of the lock is installed and built on them for real, on the first
one by provision; the others begin as copies of it.  With --small, they are hosts with a stack of small packages, and
receive their modules.  Then, in alternation and in one run, both commands are timed as a user starts them.  Prints one
JSON object: seconds of each round, both medians, their ratio, and the machine's load before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gdslab as labs
from gdsdeploy import console, paths
from gdsdeploy.builds import assign
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import plan_fleet
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.zipapp import hostapp

sys.path.insert(0, str(Path(__file__).parents[1]))
from lights import command, spread, write_fleet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default="noop", help="name of the lab; made if it is not there (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the lab up, for another run")
    parser.add_argument("--small", action="store_true", help="small packages, and nothing built: minutes")
    options = parser.parse_args()
    if options.small:
        import small

        with small.fleet(options.lab, options.hosts) as (fleet, lab):
            command("provision", fleet)
            console.data(json.dumps(measure(fleet, [host.name for host in lab.hosts()], options.rounds), indent=2))
        return
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
    return all(isinstance(plan, HostPlan) and plan.satisfied for plan in plans)


def measure(fleet: Path, names: list[str], rounds: int) -> dict[str, object]:
    # What hosts receive lies in a folder of each run; Ansible alone needs one, too.
    with assign.open_run_archives(fleet) as shelf:
        plan_fleet(load_fleet(fleet), lockfile.read(lockfile.beside(fleet)), fleet, names, shelf=shelf)
        return _measure(fleet, names, rounds, shelf.folder)


def _measure(fleet: Path, names: list[str], rounds: int, modules: Path) -> dict[str, object]:
    limit = ("--limit", ",".join(names))
    noop: list[float] = []
    roles: list[float] = []
    load = [os.getloadavg()[0]]
    command("provision", fleet, *limit, "--force-roles")
    # Another run on this machine would replace it.
    inventory = Path(shutil.copy(paths.state() / "runs" / "inventory.yml", fleet.with_name("inventory.yml")))
    archive = re.compile(r'(gds_modules_archive: !unsafe ")[^"]+/([^"/]+")')
    inventory.write_text(archive.sub(rf"\g<1>{modules}/\2", inventory.read_text()))
    argv = ansible.argv("provision", inventory, limit=names, extra=[])
    program = hostapp.keep(paths.cache() / "program")
    environment = ansible.environment(control_dir=paths.state() / "runs" / "cm", program=program)
    env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    for _ in range(rounds):
        begin = time.perf_counter()
        output = command("provision", fleet, *limit)
        noop.append(time.perf_counter() - begin)
        assert "Nothing to change" in output, output
        begin = time.perf_counter()
        played = subprocess.run(argv, check=False, capture_output=True, text=True, env=env).stdout
        roles.append(time.perf_counter() - begin)
        assert played.count("changed=0 ") == len(names), played
    load.append(os.getloadavg()[0])
    middle = statistics.median(noop), statistics.median(roles)
    return {
        "hosts": len(names),
        "noop_seconds": [round(seconds, 2) for seconds in noop],
        "ansible_seconds": [round(seconds, 2) for seconds in roles],
        "noop_median": round(middle[0], 2),
        "ansible_median": round(middle[1], 2),
        "ratio": round(middle[1] / middle[0], 1),
        "load": [round(value, 1) for value in load],
    }


if __name__ == "__main__":
    main()
