"""A provision that has nothing to change, paired with ansible-playbook running the same roles on the same hosts.

The host is a light host of a lab that provision has set up for real: with --small a stack of small packages, else the
whole stack, which it also builds.  Each name of the measured fleets is this host.  In alternation, both commands are
run as a user starts them.  What counts is processor time: the controller's is that of the command and of all that it
started, the host's is that of the host's control group.  Prints one JSON object with medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import yaml

import gdslab as labs
from gdsdeploy import console, paths
from gdsdeploy.builds import assign
from gdsdeploy.converge import ansible
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.ssh import machines
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost

sys.path.insert(0, str(Path(__file__).parents[1]))
from lights import command, write_fleet

#: gdsdeploy, for which one host stands for all: it's the machine of each name, and is called as it was set up.
WIDE = """
import sys
from dataclasses import replace
from gdsdeploy.converge import desired
from gdsdeploy.ssh import machines
name = sys.argv.pop(1)
expected = desired.expectation_of
desired.expectation_of = lambda machine: replace(expected(machine), host=name)
machines.Distinct.add = lambda _, endpoint: endpoint
machines.shared = lambda _: []
from gdsdeploy.__main__ import main
main()
"""
#: For ansible-playbook: a host takes changes from one run at a time.
ONE = ["--forks", "1"]
#: So that it takes as many new connections as the controller opens at once.
SSHD = "MaxStartups 1000\nMaxSessions 1000\n"
#: Of prctl(2): what a command leaves running becomes this process's, whose time is counted when it ends.
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", default="noop", help="name of the lab; made if it is not there (default: %(default)s)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--ansible", type=int, nargs="*", default=[8, 64], help="of those, where ansible-playbook runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave the lab of the whole stack up, for another run")
    parser.add_argument("--small", action="store_true", help="small packages, and nothing built: minutes")
    options = parser.parse_args()
    with provisioned(options.lab, is_small=options.small, keep=options.keep) as (fleet, host):
        # From now on: the lab's own processes stay apart.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        results = [
            compare(fleet, host, number, options.rounds, plays=number in options.ansible) for number in options.hosts
        ]
    console.data(json.dumps({"processors": os.cpu_count(), "load": os.getloadavg(), "fleets": results}, indent=2))


@contextmanager
def provisioned(name: str, *, is_small: bool, keep: bool) -> Iterator[tuple[Path, LabHost]]:
    """The fleet file of one host that has been provisioned."""
    if is_small:
        import small

        with small.fleet(name, 1) as (fleet, lab):
            command("provision", fleet, "--limit", lab.hosts()[0].name)
            yield fleet, widened(lab.hosts()[0])
        return
    lab = labs.up(name, vms=0, lights=1)
    try:
        fleet = write_fleet(lab)
        command("lock", fleet)
        command("provision", fleet, "--limit", lab.hosts()[0].name)
        yield fleet, widened(lab.hosts()[0])
    finally:
        if not keep:
            labs.down(lab)


def widened(host: LabHost) -> LabHost:
    """The same, after it has booted with an sshd that takes many connections."""
    host.ssh(["sudo", "tee", "/etc/ssh/sshd_config.d/many.conf"], input=SSHD)
    host.stop()
    host.start()
    host.wait_ssh()
    return host


def wide(folder: Path, fleet: Path, host: LabHost, number: int) -> tuple[Path, list[str]]:
    """A fleet in which ``number`` names are the host, and the names."""
    value = yaml.safe_load(fleet.read_text())
    section = value["hosts" if host.name in value["hosts"] else "builders"]
    names = [host.name, *(f"h{index:03}" for index in range(1, number))]
    section |= dict.fromkeys(names, section[host.name])
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    shutil.copy(lockfile.beside(fleet), lockfile.beside(path))
    return path, names


def compare(fleet: Path, host: LabHost, number: int, rounds: int, *, plays: bool) -> dict[str, Any]:
    """Both commands in turn; medians of seconds for one host."""
    with tempfile.TemporaryDirectory(prefix="gds-noop-") as name:
        path, names = wide(Path(name), fleet, host, number)
        gdsdeploy = [sys.executable, "-c", WIDE, host.name, "provision", str(path), "--limit", ",".join(names)]
        runs: dict[str, list[dict[str, float]]] = {"provision": [], **({"ansible-playbook": []} if plays else {})}
        with played(path, names, gdsdeploy) if plays else nullcontext() as playbook:
            for _ in range(rounds):
                output, figures = measured(gdsdeploy, None, host, number)
                assert "Nothing to change" in output, output
                runs["provision"].append(figures)
                if playbook is not None:
                    argv, environment = playbook
                    output, figures = measured(argv, environment, host, number)
                    assert output.count("changed=0 ") == number, output
                    runs["ansible-playbook"].append(figures)
    middle = {kind: medians(samples) for kind, samples in runs.items()}
    if plays:
        roles = middle["ansible-playbook"]
        middle["ratio"] = {key: round(roles[key] / value, 1) for key, value in middle["provision"].items()}
    return {"hosts": number, **middle}


@contextmanager
def played(path: Path, names: Sequence[str], gdsdeploy: Sequence[str]) -> Iterator[Any]:
    """The command line of ansible-playbook that runs the roles on the hosts, and its environment."""
    # What hosts receive lies in a folder of each run; Ansible alone needs one, too.
    with assign.open_run_archives(path) as shelf, ansible.control_folder() as control:
        machines.shared = lambda values: []  # noqa: ARG005
        fleet, lock = load_fleet(path), lockfile.read(lockfile.beside(path))
        shelf.look(assign.by_intent(fleet, lock, names[0]).want, list(fleet.builders))
        done = subprocess.run([*gdsdeploy, "--force-roles", "--", *ONE], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        # Another run of this fleet would replace it.
        inventory = Path(shutil.copy(paths.runs(path) / "inventory.yml", path.with_name("inventory.yml")))
        archive = re.compile(r'(gds_modules_archive: !unsafe ")[^"]+/([^"/]+")')
        inventory.write_text(archive.sub(rf"\g<1>{shelf.folder}/\2", inventory.read_text()))
        environment = ansible.environment(control_dir=control, program=hostapp.keep(paths.cache() / "program"))
        env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        yield ansible.argv("provision", inventory, limit=names, extra=ONE), env


def measured(
    argv: Sequence[str], env: Mapping[str, str] | None, host: LabHost, number: int
) -> tuple[str, dict[str, float]]:
    """What a command says, and its seconds: by the clock, and for each host the controller's and the host's."""
    others = left()
    begin, own, its = time.perf_counter(), used(), usage(host)
    # As users have it, modules are compiled once.
    own_env = {name: value for name, value in (env or os.environ).items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(argv, env=own_env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    seconds = time.perf_counter() - begin
    for pid in left() - others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    # sshd ends its sessions after the client has gone.
    time.sleep(1)
    controller, work = (used() - own) / number, (usage(host) - its) / number
    return done.stdout, {"seconds": seconds, "controller": controller, "host": work, "total": controller + work}


def used() -> float:
    """Seconds of processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def left() -> set[int]:
    """The children of this process: also what a command has left running, as ssh's masters."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def usage(host: LabHost) -> float:
    """Seconds of processor time of a light host since its start, as its control group has them."""
    pid = (host.directory / "pid").read_text().strip()
    group = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].partition("::")[2]
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next(fields[1] for fields in mounts if fields[2] == "cgroup2")
    # systemd-nspawn has a group of its own in that of the host.
    figures = Path(root, group.lstrip("/")).parent / "cpu.stat"
    return int(re.findall(r"usage_usec (\d+)", figures.read_text())[0]) / 1e6


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(each[key] for each in samples), 4) for key in samples[0]}


if __name__ == "__main__":
    main()
