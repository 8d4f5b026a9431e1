"""Judges and reports a large fleet from recorded evidence, over a transport that answers in the hosts' place.

    python benchmarks/fleet/validate.py [--hosts N …] [--fail PERCENT] [--rounds N] [--forms FORM …] [--over FOLDER]
                                        [--json FILE]

The verb runs as a user would start it; only the connections are simulated.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from gdsdeploy import console
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint, Output, document
from gdsdeploy.ssh.sshconfig import Reach
from tests.loopback.loopback_fleet import target

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "evidence" / "hosts" / "lab-vm-provisioned.json"
FORMS = {"text": [], "json": ["--json"], "html": ["--html", "report.html"]}
MOUNTS = ("/mnt/nvme", "/mnt/scratch")
#: Files of the evidence in which hosts differ: the boot, and on some the loaded driver.
BOOT, DRIVER = "/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version"


def write_fleet(folder: Path, hosts: int) -> Path:
    """The fleet file, with a lock beside it."""
    value = {
        "version": 1,
        "ssh": {"user": "root"},
        "profiles": {"gds": {"os": "debian-13", "repositories": [], "storage": [{"mount": mount} for mount in MOUNTS]}},
        "hosts": {f"gpu{number:05}": "gds" for number in range(hosts)},
    }
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    lock = lockfile.build({"gds": target(Fleet.model_validate(value), "gds", "6.12.94+deb13-amd64")})
    lockfile.write(lockfile.beside(path), lock)
    return path


def evidence(percent: float) -> Callable[[str], bytes]:
    """Makes what a host sends: recorded evidence, with the host's own name, boot and machine id.

    percent: of the hosts, those that have another driver loaded.
    """
    recorded = json.loads(RECORDED.read_text())
    loaded = recorded["files"][DRIVER]

    def sent(name: str) -> bytes:
        number = int(name.removeprefix("gpu"))
        others = number * 7919 % 1000 < percent * 10
        files = recorded["files"] | {
            BOOT: f"00000000-0000-4000-8000-{number:012}\n",
            DRIVER: loaded.replace("163.01", "90.07") if others else loaded,
        }
        identity = {**recorded["host"], "name": name, "machine_id": f"{number:064x}"}
        return json.dumps({**recorded, "host": identity, "files": files}).encode()

    return sent


def connection(percent: float) -> Callable[..., Answer]:
    """What takes the place of a connection; ``percent`` as for evidence."""
    sent = evidence(percent)

    def answer(host: Reach, *_: object) -> Answer:
        mark = secrets.token_bytes(16)
        end = Endpoint(host.host, host.host, 22, "root", (), ())
        return Answer(host.host, document(end, mark, Output(mark + sent(host.host), "", 0)), None, 0.5)

    return answer


def simulated(percent: float, hosts: int = 200) -> float:
    """Milliseconds of the processor that making one host's answer takes: no part of judging it."""
    sent, begin = evidence(percent), time.process_time()
    for number in range(hosts):
        sent(f"gpu{number:05}")
    return 1000 * (time.process_time() - begin) / hosts


def run_verb(percent: float, argv: list[str]) -> None:
    """The verb in this process, with simulated connections."""
    transport._reach_and_ask = connection(percent)
    from gdsdeploy import cli

    sys.argv = ["gdsdeploy", *argv]
    cli.main()


def measure(folder: Path, percent: float, verb: list[str], version: Path | None = None) -> dict[str, float]:
    """Seconds by the clock and of the processors, and peak memory (MiB), with Python's start.

    version: the folder of another version, which is measured; None: this one.
    What the verb prints is in ``output`` and ``errors`` in the folder.
    """
    argv = [sys.executable, __file__, "--fail", str(percent), "--verb", *verb]
    # What is on the caller's path has the packages that gdsdeploy needs, where it isn't installed.
    folders = [str(version or ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    begin = time.monotonic()
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(argv, stdout=output, stderr=errors, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 30, 31):
        raise SystemExit((folder / "errors").read_text())
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": time.monotonic() - begin, "cpu": cpu, "mib": usage.ru_maxrss / 1024}


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--fail", type=float, default=2.0, help="percent of hosts that fail a check")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS])
    parser.add_argument("--over", type=Path, help="the folder of another version, which is measured in turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verb", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.verb:
        run_verb(arguments.fail, arguments.verb)
        return
    results = []
    versions = {"this": None, **({"other": arguments.over.resolve()} if arguments.over else {})}
    console.say(f"of each host, {simulated(arguments.fail):.2f} ms make its simulated answer")
    for hosts in arguments.hosts:
        with tempfile.TemporaryDirectory() as folder:
            fleet = write_fleet(Path(folder), hosts)
            for name in arguments.forms:
                verb = ["validate", str(fleet), *FORMS[name]]
                rounds: dict[str, list[dict[str, float]]] = {version: [] for version in versions}
                for number in range(arguments.rounds):
                    for version in [*versions][:: -1 if number % 2 else 1]:
                        measured = measure(fleet.parent, arguments.fail, verb, versions[version])
                        rounds[version].append(measured)
                for version, each in rounds.items():
                    result = {key: round(statistics.median(one[key] for one in each), 2) for key in each[0]}
                    ms = round(1000 * result["cpu"] / hosts, 2)
                    results.append({"version": version, "hosts": hosts, "form": name, **result, "ms_a_host": ms})
                    console.say(f"{hosts} hosts, {name}: {results[-1]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
