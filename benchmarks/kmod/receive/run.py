"""Eight light hosts of one build key: installing kernel modules from the cache, paired with DKMS building on each.

On the first host everything of the lock is installed and built for real, by provision; the others begin as copies of
it, without the built modules.  Checks that of eight such hosts one is chosen to build and seven receive, and that none
builds once the build is kept.  Then, host after host, DKMS builds and installs the driver's modules and nvidia-fs, they
are taken away, and the kept build is received: audited and installed.  What is compared is processor time on the host,
of all processes that the command started; of receiving also that of the controller.  Prints one JSON object.
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
from collections.abc import Mapping
from pathlib import Path

import yaml

import gdslab as labs
from gdsdeploy import console
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.converge.plan_fleet import plan_fleet
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.archive.provenance import PUBLIC
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from gdslab.state import Lab

sys.path.insert(0, str(Path(__file__).parents[2]))
from lights import command, spread, write_fleet

PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
ARCHIVE = "/var/lib/gdsdeploy/modules-{}.tar"
#: Runs its arguments, feeds them our standard input, and says which processor time they took.
TIMED = """
import resource, subprocess, sys, time
begin = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, time.monotonic() - begin)
sys.exit(done.returncode)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--lab", default="receive", help="name of the lab; made if it is not there (default: %(default)s)"
    )
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--dkms", type=int, help="let DKMS build on so many of them only (default: on all)")
    parser.add_argument("--keep", action="store_true", help="leave the lab up, for another run")
    options = parser.parse_args()
    lab = labs.up(options.lab, vms=0, lights=options.hosts)
    # A separate cache, without this machine's earlier builds.
    with tempfile.TemporaryDirectory() as folder:
        try:
            console.data(json.dumps(measure(lab, folder, options.dkms or options.hosts), indent=2))
        finally:
            if not options.keep:
                labs.down(lab)


def measure(lab: Lab, cache: str, builders: int) -> dict[str, object]:
    builder_fleet = write_fleet(lab)
    command("lock", builder_fleet)
    (target,) = lockfile.read(lockfile.beside(builder_fleet)).targets.values()
    hosts = lab.hosts()
    release, first = target.kernel.release, hosts[0]
    archive = ARCHIVE.format(release)
    pack = [
        "sudo",
        "python3",
        PROGRAM,
        "kmod",
        "pack",
        "--builder",
        first.name,
        "--kernel",
        release,
        "--output",
        archive,
    ]
    if first.ssh(pack, ok=range(255), timeout=600).status != 0:
        # Not one that another run has left.
        command("provision", builder_fleet, "--limit", first.name)
    first.ssh(["sudo", "sh", "-c", f"cat > {PROGRAM}"], input=hostapp.build())
    first.ssh(pack, timeout=600)
    copy = ["ssh", "-F", str(lab.ssh_config), first.name, "sudo", "cat", archive]
    packed = subprocess.run(copy, check=True, capture_output=True).stdout
    spread(hosts)
    for host in hosts:
        unbuild(host, target)
    os.environ["GDSDEPLOY_CACHE_DIR"] = cache
    fleet = as_hosts(builder_fleet)
    bare = sources(fleet)
    copy[-1] = PUBLIC
    BuilderKeys.of(fleet).path(first.name).write_bytes(subprocess.run(copy, check=True, capture_output=True).stdout)
    with assign.open_run_archives(fleet) as shelf:
        archive_of(next(iter(bare.values()))[1], shelf.folder).write_bytes(packed)
        assert shelf.keep(lockfile.read(lockfile.beside(fleet)), load_fleet(fleet), supplies(fleet)) == []
    sources_of = sources(fleet)
    assert sorted(source for source, _ in bare.values()) == ["build", *["host"] * (len(hosts) - 1)], bare
    assert {source for source, _ in sources_of.values()} == {"cache"}, sources_of
    load = os.getloadavg()[0]
    built, received = [], []
    for number, host in enumerate(hosts):
        if number < builders:
            built.append(time_command(host, *dkms(target)))
            console.say(f"  {host.name}: DKMS: {built[-1][0]:.1f} s of processor time in {built[-1][1]:.0f} s")
            unbuild(host, target)
        received.append(receive(host, fleet, sources_of[host.name][1], target))
        console.say(f"  {host.name}: received: {received[-1][0]:.2f} s of processor time in {received[-1][1]:.1f} s")
    middle = statistics.median(cpu for cpu, _ in built), statistics.median(cpu for cpu, _ in received)
    return {
        "hosts": len(hosts),
        "builds_chosen": sum(source == "build" for source, _ in bare.values()),
        "archive_bytes": len(packed),
        "dkms_cpu_seconds": [round(cpu, 1) for cpu, _ in built],
        "dkms_seconds": [round(seconds, 1) for _, seconds in built],
        "receive_cpu_seconds": [round(cpu, 2) for cpu, _ in received],
        "receive_seconds": [round(seconds, 2) for _, seconds in received],
        "dkms_median": round(middle[0], 1),
        "receive_median": round(middle[1], 2),
        "ratio": round(middle[0] / middle[1], 1),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def as_hosts(builder_fleet: Path) -> Path:
    """The same machines as hosts of one profile that has no builder."""
    value = yaml.safe_load(builder_fleet.read_text())
    value["hosts"] = value.pop("builders")
    value["profiles"]["gds"].pop("builder", None)
    folder = builder_fleet.parent / "hosts"
    folder.mkdir(exist_ok=True)
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value))
    lockfile.write(lockfile.beside(path), lockfile.read(lockfile.beside(builder_fleet)))
    return path


def sources(path: Path) -> dict[str, tuple[str, str]]:
    """Host → where its modules would come from, and what it wants."""
    return {name: (supply.source, supply.want) for name, supply in supplies(path).items()}


def supplies(path: Path) -> Mapping[str, Supply]:
    fleet = load_fleet(path)
    return plan_fleet(fleet, lockfile.read(lockfile.beside(path)), path, list(fleet.hosts)).supplies


def items(target: Target) -> list[str]:
    """NAME/VERSION of what DKMS builds."""
    assert target.nvidia_fs is not None
    version = target.nvidia_fs.source_tree.rpartition("-")[2]
    return [f"{target.driver.dkms_name}/{target.driver.version}", f"{target.nvidia_fs.dkms_name}/{version}"]


def dkms(target: Target) -> list[str]:
    """Build and install everything, as on a host without a builder."""
    where = f"-k {target.kernel.release} --force"
    steps = [f"dkms {verb} {module} {where}" for module in items(target) for verb in ("build", "install")]
    return ["nice", "-n", "5", "sh", "-c", " && ".join(steps)]


def unbuild(host: LabHost, target: Target) -> None:
    """Take away the modules, whether DKMS has built them or they were received."""
    for module in reversed(items(target)):
        # It complains of what is not there.
        host.ssh(["sudo", "dkms", "uninstall", module, "-k", target.kernel.release], ok=range(255), timeout=600)
    host.ssh(["sudo", "python3", PROGRAM, "kmod", "remove", "--kernel", target.kernel.release], timeout=600)
    look = ["sudo", "find", f"/lib/modules/{target.kernel.release}/updates", "-name", "nvidia*"]
    assert host.ssh(look, ok=(0, 1)).stdout == ""


def time_command(host: LabHost, *argv: str, data: bytes | None = None) -> tuple[float, float]:
    """Processor seconds and seconds that ``argv`` took on the host, as root."""
    done = host.ssh(["sudo", "python3", "-c", TIMED, *argv], input=data, timeout=3600)
    cpu, seconds = done.stdout.split()
    return float(cpu), float(seconds)


def receive(host: LabHost, fleet: Path, want: str, target: Target) -> tuple[float, float]:
    """Take the build out of the cache, bring it, audit and install it: processor seconds of both sides, and seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    with assign.open_run_archives(fleet) as shelf:
        assert shelf.look(want, load_fleet(fleet).suppliers(host.name)) is not None
        data = archive_of(want, shelf.folder).read_bytes()
    controller = time.process_time() - cpu
    archive, release = ARCHIVE.format(target.kernel.release), target.kernel.release
    on_host, _ = time_command(
        host, "sh", "-c", f"cat > {archive} && python3 {PROGRAM} kmod install --kernel {release} {archive}", data=data
    )
    return controller + on_host, time.perf_counter() - begin


if __name__ == "__main__":
    main()
