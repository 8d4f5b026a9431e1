"""All checks on N loopback hosts, paired with a bare `true` over the same transport and with plain testinfra.

Every host is this machine behind a real OpenSSH server on loopback, so that the hosts' work and the controller's
compete for the same processors: a fleet's hosts work each on their own.  The seconds that the controller's processor
worked are therefore given beside those of the clock.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gdsdeploy import console  # noqa: E402
from gdsdeploy.fleetfile.load import load_fleet  # noqa: E402
from gdsdeploy.lock import lockfile  # noqa: E402
from gdsdeploy.ssh import connections, reach, transport  # noqa: E402
from gdsdeploy.ssh.endpoint import Endpoint  # noqa: E402
from gdsdeploy.ssh.metering import Meter  # noqa: E402
from gdsdeploy.validate.fleet_validation import validate  # noqa: E402
from tests.loopback import loopback_sshd  # noqa: E402
from tests.loopback.loopback_fleet import LoopbackFleet  # noqa: E402

#: What a hand-written suite asks of a GDS host, forty times one round trip or more.
SUITE = """
import pytest

FILES = ("/etc/os-release", "/etc/passwd", "/etc/hosts", "/proc/meminfo", "/proc/cmdline", "/proc/mounts", "/etc/fstab")
NAMES = ("nvidia", "nvidia_fs", "nvidia_peermem", "nvidia_uvm", "nouveau")


@pytest.mark.parametrize("path", FILES)
def test_file(host, path):
    assert host.file(path).exists


@pytest.mark.parametrize("path", FILES)
def test_content(host, path):
    assert host.file(path).size >= 0


@pytest.mark.parametrize("name", NAMES)
def test_module(host, name):
    assert not host.file("/sys/module/" + name).exists


@pytest.mark.parametrize("name", ("bash", "coreutils", "dpkg", "libc6", "openssh-server"))
def test_package(host, name):
    assert host.package(name).is_installed


@pytest.mark.parametrize("name", ("kernel.ostype", "kernel.osrelease", "vm.swappiness", "fs.file-max"))
def test_sysctl(host, name):
    assert host.sysctl(name) != ""


@pytest.mark.parametrize("command", ("uname -r", "env", "id -u", "cat /proc/version", "mount", "df /", "uptime"))
def test_command(host, command):
    assert host.run(command).rc == 0


@pytest.mark.parametrize("path", ("/", "/proc", "/sys", "/dev", "/run"))
def test_mount(host, path):
    assert host.file(path).is_directory
"""
ASSERTIONS = 40
PARTS = ("growth", "suites", "bad-hosts")
PROGRAM = Path(sys.executable).parent / "gdsdeploy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--suite-hosts", type=int, default=8, help="hosts of the testinfra suites (default: 8)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--measure", choices=["true", "validate"], help=argparse.SUPPRESS)
    parser.add_argument("--fleet", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        console.data(json.dumps(measure(options.measure, options.fleet)))
        return
    with tempfile.TemporaryDirectory(prefix="gds-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = loopback_sshd.start(make_fleet(folder / "sshd"), "MaxSessions 20")
        try:
            results: dict[str, Any] = {
                "processors": os.cpu_count(),
                "load": [round(value, 1) for value in os.getloadavg()],
            }
            if "growth" in options.parts:
                results["growth"] = [compare(folder, server, number, options.rounds) for number in options.hosts]
            if "suites" in options.parts:
                results["suites"] = suites(folder, server, options.suite_hosts)
            if "bad-hosts" in options.parts:
                results["bad_hosts"] = bad_hosts(folder, server)
            results["load_after"] = [round(value, 1) for value in os.getloadavg()]
        finally:
            server.stop()
    console.data(json.dumps(results, indent=2))


def make_fleet(folder: Path) -> Path:
    folder.mkdir()
    return folder


def fleet_of(folder: Path, server: loopback_sshd.Sshd, number: int, **others: dict[str, Any]) -> Path:
    """A fleet of ``number`` hosts, and ``others`` with what reaches them."""
    hosts = {f"h{index:03}": {"profile": "right"} for index in range(number)}
    place = Path(tempfile.mkdtemp(dir=folder))
    return LoopbackFleet(place, server, {**hosts, **others}).path


def compare(folder: Path, server: loopback_sshd.Sshd, number: int, rounds: int) -> dict[str, Any]:
    """Both in turn, each in its own process, for its peak memory."""
    fleet = fleet_of(folder, server, number)
    runs: dict[str, list[dict[str, float]]] = {"true": [], "validate": []}
    for _ in range(rounds if number < 200 else 1):
        for what, samples in runs.items():
            argv = [sys.executable, __file__, "--measure", what, "--fleet", str(fleet)]
            samples.append(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))
    middle = {
        what: {key: round(statistics.median(value[key] for value in samples), 2) for key in samples[0]}
        for what, samples in runs.items()
    }
    ratios = {key: round(middle["validate"][key] / middle["true"][key], 2) for key in middle["true"]}
    return {"hosts": number, **middle, "ratio": ratios}


def measure(what: str, fleet_path: Path) -> dict[str, float]:
    """Seconds by the clock and of this process, and its peak memory in MiB; without the start of Python."""
    fleet, lock = load_fleet(fleet_path), lockfile.read(lockfile.beside(fleet_path))
    names = list(fleet.hosts)
    work: Callable[[], None]
    if what == "true":
        endpoints = reach.endpoints(fleet, fleet_path.parent, names)

        def work() -> None:
            with ThreadPoolExecutor(connections.at_once()) as pool:
                assert all(status == 0 for status in pool.map(bare_true, endpoints))

    else:

        def work() -> None:
            report = validate(fleet, lock, fleet_path, names, progress=lambda _: None)
            assert not any(host.trouble for host in report.hosts)

    begin, busy = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - busy
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def bare_true(endpoint: Endpoint) -> int:
    """Log in with the transport's own checks, run `true`, and wait for its status."""
    client = paramiko.SSHClient()
    try:
        transport._connect(client, endpoint, 300.0, None, Meter(transport.ANSWER_LIMIT))
        _, stdout, _ = client.exec_command("true")
        return stdout.channel.recv_exit_status()
    finally:
        client.close()


def suites(folder: Path, server: loopback_sshd.Sshd, number: int) -> dict[str, Any]:
    """The testinfra suite over both of its backends, against `gdsdeploy validate`, each as a user starts it."""
    fleet = fleet_of(folder, server, number)
    place = make_fleet(folder / "suite")
    (place / "test_host.py").write_text(SUITE)
    names = [f"h{value:03}" for value in range(number)]
    settings = {"HostName": "127.0.0.1", "Port": server.port, "User": "root", "IdentityFile": server.identity,
                "IdentitiesOnly": "yes", "UserKnownHostsFile": server.known_hosts, "BatchMode": "yes"}  # fmt: skip
    lines = [f"  {key} {value}\n" for key, value in settings.items()]
    (place / "ssh_config").write_text("".join(["Host *\n", *lines]))
    results: dict[str, Any] = {"hosts": number, "assertions": ASSERTIONS}
    begin = time.perf_counter()
    subprocess.run([PROGRAM, "validate", fleet], capture_output=True, check=False)
    results["validate"] = round(time.perf_counter() - begin, 1)
    for backend in ("paramiko", "ssh"):
        hosts = ",".join(f"{backend}://{name}" for name in names)
        argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--hosts={hosts}",
                f"--ssh-config={place / 'ssh_config'}", place]  # fmt: skip
        begin = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert f"{number * ASSERTIONS} passed" in done.stdout, done.stdout[-2000:]
        results[backend] = round(time.perf_counter() - begin, 1)
        results[f"{backend}_ratio"] = round(results[backend] / results["validate"], 1)
    return results


def bad_hosts(folder: Path, server: loopback_sshd.Sshd) -> dict[str, Any]:
    """Four good hosts beside one that hangs, one that floods and one that dies: what they cost the others."""
    flood = loopback_sshd.start(make_fleet(folder / "flood"), "ForceCommand cat /dev/zero")
    dying = loopback_sshd.start(make_fleet(folder / "dying"), "ForceCommand head -c 1000 >/dev/null; kill -9 $PPID")
    hanging = loopback_sshd.start(make_fleet(folder / "hanging"), "ForceCommand sleep 600")
    try:
        others = {
            name: {"profile": "right", "port": bad.port, "identity_file": str(bad.identity),
                   "known_hosts": str(bad.known_hosts)}
            for name, bad in (("floods", flood), ("dies", dying), ("hangs", hanging))
        }  # fmt: skip
        path = fleet_of(folder, server, 4, **others)
        fleet, lock = load_fleet(path), lockfile.read(lockfile.beside(path))
        begin = time.perf_counter()
        report = validate(fleet, lock, path, list(fleet.hosts), timeout=30.0, progress=lambda _: None)
        return {
            "timeout": 30.0,
            "seconds": round(time.perf_counter() - begin, 1),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "hosts": {
                host.host: {"seconds": round(host.seconds, 1), "error": host.trouble.message if host.trouble else ""}
                for host in report.hosts
            },
        }
    finally:
        for bad in (flood, dying, hanging):
            with suppress(subprocess.TimeoutExpired):
                bad.stop()


if __name__ == "__main__":
    main()
