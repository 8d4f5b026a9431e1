"""Records and live evidence of provisioned hosts, paired with a bare `true` and with plain testinfra.

    sudo python benchmarks/validate/run.py [--hosts N …] [--rounds N] [--lab NAME] [--keep] [--parts PART …]

The host is a light host of a lab: its stack is installed, its modules are built, and it has booted with its gate.  Each
name of the measured fleets is this host, so that hosts and controller compete for this machine's processors: what
counts is the processor time of all together, as /proc/stat has it.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from lights import PROGRAM, command  # noqa: E402

import gdslab as labs  # noqa: E402
from gdsdeploy import console  # noqa: E402
from gdsdeploy.errors import ChecksFailed  # noqa: E402
from gdsdeploy.fleetfile.load import load_fleet  # noqa: E402
from gdsdeploy.lock import lockfile  # noqa: E402
from gdsdeploy.model.fleet import Fleet  # noqa: E402
from gdsdeploy.ssh import endpoint, machines, sshconfig, transport  # noqa: E402
from gdsdeploy.ssh.endpoint import Endpoint  # noqa: E402
from gdsdeploy.ssh.transport import Meter  # noqa: E402
from gdsdeploy.validate.fleet_validation import validate  # noqa: E402
from tests.loopback import loopback_sshd  # noqa: E402
from tests.loopback.loopback_fleet import LoopbackFleet  # noqa: E402
from tests.loopback.loopback_sshd import SERVED  # noqa: E402

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
PARTS = ("growth", "suites", "bad-hosts", "pytest")
#: What is measured in turn: see ``work_of``.
KINDS = ("paramiko true", "openssh true", "records", "evidence")
#: So that it takes as many new connections as the controller opens at once.
SSHD = "MaxStartups 1000\nMaxSessions 50\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--suite-hosts", type=int, default=8, help="hosts of the testinfra suite (default: 8)")
    parser.add_argument("--pytest-hosts", type=int, nargs="+", default=[1, 8, 64], help="hosts of the part pytest")
    parser.add_argument("--lab", default="validate", help="name of the lab; made if it's missing (default: validate)")
    parser.add_argument("--keep", action="store_true", help="leave the lab up, for another run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--leader",
        type=int,
        default=0,
        metavar="PID",
        help="of the host's first process: count only the host's processes and the controller, beside other programs",
    )
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--fleet", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        console.data(json.dumps(measure(options.measure, options.fleet, options.leader)))
        return
    results: dict[str, Any] = {"processors": os.cpu_count(), "load": load()}
    with tempfile.TemporaryDirectory(prefix="gds-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if {"growth", "suites"} & set(options.parts):
            with provisioned(options.lab, keep=options.keep) as fleet:
                if "growth" in options.parts:
                    results["growth"] = [
                        compare(folder, fleet, number, options.rounds, options.leader) for number in options.hosts
                    ]
                if "suites" in options.parts:
                    results["suites"] = suites(folder, fleet, options.suite_hosts, options.rounds)
        if "bad-hosts" in options.parts:
            results["bad_hosts"] = bad_hosts(folder)
        if "pytest" in options.parts:
            results["pytest"] = [as_pytest(folder, number, options.rounds) for number in options.pytest_hosts]
    console.data(json.dumps({**results, "load_after": load()}, indent=2))


def load() -> list[float]:
    return [round(value, 1) for value in os.getloadavg()]


@contextmanager
def provisioned(name: str, *, keep: bool) -> Iterator[Path]:
    """The fleet file of one provisioned host that has booted with its gate."""
    lab = labs.up(name, vms=0, lights=1)
    try:
        (light,) = lab.hosts()
        value = yaml.safe_load(lab.fleet_path.read_text())
        value["ssh"] |= {key: str(lab.directory / value["ssh"][key]) for key in ("identity_file", "known_hosts")}
        (entry,) = value.pop("builders").values()
        value["hosts"] = {light.name: {**entry, "modules": "build"}}
        value["profiles"]["gds"] = {
            **value["profiles"]["gds"],
            "own_kernel": False,
            "builder": None,
            "gate": {"seconds": 30},
        }
        folder = lab.directory / "validate"
        folder.mkdir(exist_ok=True)
        fleet = folder / "fleet.yml"
        if not lockfile.beside(fleet).exists():
            fleet.write_text(yaml.safe_dump(value))
            command("lock", fleet)
            command("provision", fleet)
            light.ssh(["sudo", "tee", "/etc/ssh/sshd_config.d/many.conf"], input=SSHD)
            light.stop()
            light.start()
            light.wait_ssh()
        yield fleet
    finally:
        if not keep:
            labs.down(lab)


def wide(folder: Path, fleet: Path, number: int) -> Path:
    """A fleet in which ``number`` names are the provisioned host."""
    value = yaml.safe_load(fleet.read_text())
    (entry,) = value["hosts"].values()
    value["hosts"] = {f"h{index:03}": entry for index in range(number)}
    path = Path(tempfile.mkdtemp(dir=folder)) / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    lockfile.beside(path).write_text(lockfile.beside(fleet).read_text())
    return path


def read(path: Path) -> Fleet:
    """Without the checks that no two names are one machine."""
    return Fleet.model_validate(yaml.safe_load(path.read_text()))


def compare(folder: Path, fleet: Path, number: int, rounds: int, leader: int) -> dict[str, Any]:
    """All kinds in turn, each in its own process; medians, and ratios of processor time."""
    path = wide(folder, fleet, number)
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, samples in runs.items():
            argv = [sys.executable, __file__, "--measure", kind, "--fleet", str(path), "--leader", str(leader)]
            samples.append(json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout))
    middle = {kind: medians(samples) for kind, samples in runs.items()}
    ratios = {
        f"{kind} / {other}": round(middle[kind]["cpu"] / middle[other]["cpu"], 2)
        for kind in ("records", "evidence")
        for other in ("paramiko true", "openssh true")
    }
    return {"hosts": number, **middle, "ratios": ratios}


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(each[key] for each in samples), 3) for key in samples[0]}


def measure(kind: str, fleet: Path, leader: int) -> dict[str, float]:
    """Seconds by the clock, of all processors, and of this process; without the start of Python."""
    work = work_of(kind, fleet)
    begin, own, everything = time.perf_counter(), time.process_time(), processors(leader)
    work()
    seconds, controller = time.perf_counter() - begin, time.process_time() - own
    # The last processes of a login may not have ended.
    time.sleep(1.0 if leader else 0.0)
    return {"seconds": seconds, "cpu": processors(leader) - everything, "controller": controller}


def processors(leader: int = 0) -> float:
    """Seconds that this machine's processors have worked since its boot.

    leader: instead, those of this process, its children, and all that have lived in the PID namespace of this one.
    """
    if leader:
        namespace, ticks = Path(f"/proc/{leader}/ns/pid").readlink(), 0
        for process in Path("/proc").glob("[0-9]*"):
            # It may end meanwhile: its parent has its time then.
            with suppress(OSError):
                if (process / "ns/pid").readlink() == namespace:
                    ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")


def work_of(kind: str, path: Path) -> Callable[[], None]:
    fleet, lock = read(path), lockfile.read(lockfile.beside(path))
    names = list(fleet.hosts)
    if kind in ("records", "evidence"):
        # One host stands for all.
        machines.Distinct.add = lambda _, endpoint: endpoint  # type: ignore[method-assign, assignment]
        machines.same_boot = lambda *_: {}

        def judge() -> None:
            report = validate(fleet, lock, path, names, since_boot=kind == "records", progress=lambda _: None)
            assert all(len(host.findings) > 50 for host in report.hosts), report.hosts[0]

        return judge
    endpoints = sshconfig.endpoints(fleet, path.parent, names)
    login = bare_true if kind == "paramiko true" else openssh_true

    def true() -> None:
        with ThreadPoolExecutor(endpoint.hosts_at_once()) as pool:
            assert all(status == 0 for status in pool.map(login, endpoints))

    return true


def openssh_true(endpoint: Endpoint) -> int:
    """As a shell script does it, with the same key and the same known hosts."""
    argv = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={endpoint.known_hosts[0]}",
            "-i", str(endpoint.identity_files[0]), "-o", "IdentitiesOnly=yes",
            *(["-o", f"HostKeyAlias={endpoint.host_key_alias}"] if endpoint.host_key_alias else []),
            "-p", str(endpoint.port), f"{endpoint.user}@{endpoint.address}", "true"]  # fmt: skip
    return subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode


def bare_true(endpoint: Endpoint) -> int:
    """Log in with the transport's own checks, run `true`, and wait for its status."""
    client = paramiko.SSHClient()
    try:
        transport._connect(client, endpoint, 300.0, None, Meter(transport.ANSWER_LIMIT))
        _, stdout, _ = client.exec_command("true")
        return stdout.channel.recv_exit_status()
    finally:
        client.close()


def suites(folder: Path, fleet: Path, number: int, rounds: int) -> dict[str, Any]:
    """The testinfra suite over paramiko, against records and live evidence, each as a user starts it; medians."""
    path, place = wide(folder, fleet, number), folder / "suite"
    place.mkdir()
    (place / "test_host.py").write_text(SUITE)
    endpoint = sshconfig.endpoints(read(path), path.parent, ["h000"])[0]
    settings = {"HostName": endpoint.address, "Port": endpoint.port, "User": endpoint.user,
                "IdentityFile": endpoint.identity_files[0], "IdentitiesOnly": "yes",
                "UserKnownHostsFile": endpoint.known_hosts[0], "BatchMode": "yes"}  # fmt: skip
    lines = [f"  {key} {value}\n" for key, value in settings.items()]
    (place / "ssh_config").write_text("".join(["Host *\n", *lines]))
    hosts = ",".join(f"paramiko://h{value:03}" for value in range(number))
    testinfra = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider",
                 f"--hosts={hosts}", f"--ssh-config={place / 'ssh_config'}", str(place)]  # fmt: skip
    kinds = {
        kind: [sys.executable, __file__, "--measure", kind, "--fleet", str(path)] for kind in ("records", "evidence")
    }
    runs: dict[str, list[dict[str, float]]] = {"testinfra": [], **{kind: [] for kind in kinds}}
    for _ in range(rounds):
        begin, everything = time.perf_counter(), processors()
        done = subprocess.run(testinfra, capture_output=True, text=True, check=False)
        assert f"{number * ASSERTIONS} passed" in done.stdout, done.stdout[-2000:]
        runs["testinfra"].append({"seconds": time.perf_counter() - begin, "cpu": processors() - everything})
        for kind, argv in kinds.items():
            runs[kind].append(json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout))
    middle = {kind: medians(samples) for kind, samples in runs.items()}
    ratios = {
        f"testinfra / {kind}": {
            key: round(middle["testinfra"][key] / middle[kind][key], 1) for key in ("seconds", "cpu")
        }
        for kind in kinds
    }
    return {"hosts": number, "assertions": ASSERTIONS, **middle, "ratios": ratios}


def bad_hosts(folder: Path) -> dict[str, Any]:
    """Four good hosts beside one that hangs, one that floods and one that dies: what they cost the others."""
    server = loopback_sshd.start(new_folder(folder / "sshd"), "MaxSessions 20")
    flood = loopback_sshd.start(new_folder(folder / "flood"), "ForceCommand cat /dev/zero")
    dying = loopback_sshd.start(new_folder(folder / "dying"), "ForceCommand head -c 1000 >/dev/null; kill -9 $PPID")
    hanging = loopback_sshd.start(new_folder(folder / "hanging"), "ForceCommand sleep 600")
    try:
        others = {
            name: {"profile": "right", "port": bad.port, "identity_file": str(bad.identity),
                   "known_hosts": str(bad.known_hosts)}
            for name, bad in (("floods", flood), ("dies", dying), ("hangs", hanging))
        }  # fmt: skip
        good = {f"h{index:03}": {"profile": "right"} for index in range(4)}
        path = LoopbackFleet(new_folder(folder / "bad"), server, {**good, **others}).path
        fleet, lock = load_fleet(path), lockfile.read(lockfile.beside(path))
        begin = time.perf_counter()
        report = validate(fleet, lock, path, list(fleet.hosts), timeout=30.0, progress=lambda _: None)
        return {
            "timeout": 30.0,
            "seconds": round(time.perf_counter() - begin, 1),
            "hosts": {
                host.host: {"seconds": round(host.seconds, 1), "error": host.trouble.message if host.trouble else ""}
                for host in report.hosts
            },
        }
    finally:
        for bad in (server, flood, dying, hanging):
            with suppress(subprocess.TimeoutExpired):
                bad.stop()


def as_pytest(folder: Path, number: int, rounds: int) -> dict[str, Any]:
    """``validate`` and ``validate --pytest`` in turn, each as a user starts it, on ``number`` names of this machine.

    Medians of each, and of the ratios of the pairs: seconds by the clock, and processor seconds of the verb and the
    programs that it starts, without the hosts'.
    """
    here = new_folder(folder / f"pytest-{number}")
    servers = [loopback_sshd.start(new_folder(here / str(first))) for first in range(0, number, len(SERVED))]
    try:
        hosts = {
            f"h{index:03}": {"profile": "right", "address": SERVED[index % len(SERVED)], "port": server.port,
                             "identity_file": str(server.identity), "known_hosts": str(server.known_hosts)}
            for index, server in ((index, servers[index // len(SERVED)]) for index in range(number))
        }  # fmt: skip
        for server in servers:
            # The last fleet writes the addresses into it: the hosts' keys are the server's.
            fleet = LoopbackFleet(here, server, hosts)
        # This plugin imports hypothesis, which an installation of gdsdeploy doesn't have.
        forms = {"validate": [], "pytest": ["--pytest", "--", "-p", "no:hypothesispytest"]}
        runs: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
        for _ in range(rounds):
            for form, argv in forms.items():
                runs[form].append(started([PROGRAM, "validate", fleet.path, *argv]))
        ratios = [
            {key: pytest[key] / alone[key] for key in alone}
            for alone, pytest in zip(runs["validate"], runs["pytest"], strict=True)
        ]
        return {
            "hosts": number, **{form: medians(samples) for form, samples in runs.items()}, "ratio": medians(ratios)
        }  # fmt: skip
    finally:
        for server in servers:
            server.stop()


def started(argv: Sequence[str | Path]) -> dict[str, float]:
    """Seconds of one command by the clock, and of the processors."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        # The machine isn't as the fleet file says: a check fails.
        assert os.waitstatus_to_exitcode(status) == ChecksFailed.exit_code, output.read().decode()
    return {"seconds": time.perf_counter() - begin, "cpu": usage.ru_utime + usage.ru_stime}


def new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
