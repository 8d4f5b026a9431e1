"""Slurm of the archive on hosts that boot: drains by a rollout, reboots by Slurm itself, and the gate that decides.

One controller and two nodes, with their own systemd, munge and boots.  They share this machine's network, so each
daemon has a port of its own; and its uptime, so slurmd is told to say that its host booted when it starts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gdslab as labs
from gdsdeploy.host import checks
from gdsdeploy.host.gate.gate import Node, Settings, node_from
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain
from gdsdeploy.rollout.drain import Drainer, State, reason_of
from gdsdeploy.zipapp import hostapp
from gdslab import ssh
from gdslab.host import LabHost
from tests.lab.roleplay import lights, play, put

pytestmark = pytest.mark.lab

EXPECTATION = Path(__file__).parents[1] / "evidence" / "hosts" / "lab-vm.expectation.json"
HEAD, ONE, TWO = "build1", "build2", "build3"
REASON = reason_of("20261121T1054-7f3a", "driver 550.163.01 to 560.35.03")
INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends munge slurm-client slurmctld slurmd >/dev/null
systemctl disable --now slurmctld slurmd
"""
RIGHTS = """
set -e
chown munge:munge /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
install -d -o slurm /var/lib/slurm/slurmctld
chmod 0755 /usr/local/sbin/gdsdeploy-upgrade
"""
CONFIG = """\
ClusterName=lab
SlurmctldHost={head}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
{page}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName=node-{host} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
#: Stands for the provisioning of a host, which other tests cover.
PULL = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo pulled >>/var/tmp/pulled'\n"
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "slurm.md").read_text()
#: The page's node, and its settings but for how often: nobody waits for five minutes here.
EXAMPLE = "node-gpu1"
SETTINGS = "\n".join(re.findall(r"^    ([A-Z]\w+=.*)$", PAGE, re.MULTILINE)).replace("Interval=300", "Interval=5")
UPGRADE = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
#: What every check finds on a host without GPU is accepted, or not.
OPEN = [{"check": check.id, "until": "9999-12-31", "reason": "a test"} for check in checks.listed()]


@dataclass
class Cluster:
    """Slurm on three hosts, and a drainer that speaks to it as a fleet file says."""

    hosts: dict[str, LabHost]
    drainer: Drainer
    ran: set[str] = field(default_factory=set)

    def scontrol(self, *argv: str) -> str:
        self.ran.add(re.sub(r"node-build\d", EXAMPLE, " ".join(["scontrol", *argv])))
        return self.hosts[HEAD].ssh(["sudo", "scontrol", *argv], timeout=60).stdout

    def show(self, host: str) -> Node:
        return node_from(self.scontrol("--oneliner", "show", "node", f"node-{host}"))

    def until(self, host: str, ready: Callable[[Node], bool], seconds: float = 60) -> Node:
        end = time.monotonic() + seconds
        while not ready(node := self.show(host)):
            assert time.monotonic() < end, node
            time.sleep(0.3)
        return node

    def submit(self, host: str, script: str) -> str:
        """A job that runs on the host's node."""
        argv = ["sbatch", "--parsable", f"--nodelist=node-{host}", "--job-name=train", "--output=/dev/null"]
        job = self.hosts[HEAD].ssh(["sudo", *argv, "--chdir=/", f"--wrap={script}"]).stdout.strip()
        self.until(host, lambda node: "ALLOCATED" in node.states)
        return job

    def works(self, host: str) -> None:
        """A job runs there."""
        self.until(host, lambda node: node.states == ["IDLE"])
        argv = ["srun", "--chdir=/", "--immediate=30", f"--nodelist=node-{host}", "hostname"]
        assert self.hosts[HEAD].ssh(["sudo", *argv], timeout=60).stdout.strip() == host

    def judge(self, host: str, waivers: list[dict[str, str]]) -> str:
        """Have the gate judge the host now; open with OPEN, else closed.  Its state."""
        settings = Settings(slurm=True, waivers=waivers)
        put(self.hosts[host], "/etc/gdsdeploy/gate.json", settings.to_json().encode())
        self.hosts[host].ssh(["sudo", "systemctl", "start", "gds-gate"], ok=(0, 1), timeout=120)
        return self.gate(host)

    def gate(self, host: str) -> str:
        return str(json.loads(self.hosts[host].ssh(["cat", "/run/gdsdeploy/gate.json"]).stdout)["state"])

    def boot(self, host: str, before: str) -> str:
        """Wait for another boot than ``before``, whose end has come; its id."""
        end = time.monotonic() + 120
        script = "cat /proc/sys/kernel/random/boot_id; systemctl is-active gds-gate slurmd | paste -s"
        while True:
            assert time.monotonic() < end, "it does not come back"
            time.sleep(0.3)
            if not self.hosts[host].running():
                # Where systemd is not this machine's process 1, systemd-nspawn leaves what follows a reboot to others.
                self.hosts[host].stop()
                self.hosts[host].start()
            if not ssh.greets(self.hosts[host].port):
                continue
            words = self.hosts[host].ssh(["sh", "-c", script], ok=range(256), timeout=30).stdout.split()
            if len(words) == 3 and words[0] != before and "activating" not in words and words[2] == "active":
                return words[0]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def boot_id(host: LabHost) -> str:
    return host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with lights("slurm") as lab:
        prepare(lab.host(HEAD), tmp_path_factory.mktemp("role"))
        labs.clone(lab, lab.host(HEAD), 3)
        hosts = {name: lab.host(name) for name in (HEAD, ONE, TWO)}
        program = (*ssh.command(lab.ssh_config, HEAD, [], ("-T",)), "sudo", "scontrol")
        settings = Drain(by="slurm", program=program, node="node-{host}")
        slurm = Cluster(hosts, drain.drainer(settings, tmp_path_factory.mktemp("fleet")))
        hosts[HEAD].ssh(["sudo", "systemctl", "enable", "--now", "slurmctld"], timeout=60)
        for host in (ONE, TWO):
            assert slurm.judge(host, OPEN) == "open"
            hosts[host].ssh(["sudo", "systemctl", "enable", "--now", "slurmd"], timeout=60)
        for host in (ONE, TWO):
            slurm.until(host, lambda node: node.states == ["IDLE"])
        yield slurm


def prepare(host: LabHost, folder: Path) -> None:
    """Slurm of the archive, with one configuration and key for all that are made like this host; no daemon runs yet."""
    host.ssh(["sudo", "sh", "-s"], input=INSTALL, timeout=600)
    nodes = "\n".join(NODE.format(host=host, port=free_port()) for host in (ONE, TWO))
    config = CONFIG.format(head=HEAD, control=free_port(), nodes=nodes, page=SETTINGS)
    put(host, "/etc/slurm/slurm.conf", config.encode())
    put(host, "/etc/slurm/cgroup.conf", b"CgroupPlugin=disabled\n")
    put(host, "/etc/default/slurmd", b"SLURMD_OPTIONS=-b\n")
    put(host, "/etc/munge/munge.key", os.urandom(1024))
    assert UPGRADE
    put(host, "/usr/local/sbin/gdsdeploy-upgrade", UPGRADE[1].encode())
    put(host, "/etc/systemd/system/gdsdeploy-pull.service", PULL.encode())
    put(host, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", hostapp.build())
    put(host, "/etc/gdsdeploy/expectation.json", EXPECTATION.read_bytes())
    host.ssh(["sudo", "sh", "-s"], input=RIGHTS)
    options = {"gds_gate_before": ["slurmd.service"], "gds_gate_slurm": True, "gds_gate_seconds": 30}
    play(host, folder, "gds_gate", gds_gate_settings=Settings(slurm=True, waivers=OPEN).to_json(), **options)


#: What the page tells to type so that a node stays out.
THEIRS = f"scontrol update NodeName={EXAMPLE} State=DRAIN Reason=DIMM 3 is bad"


class Messages(list[str]):
    """Lines that were told."""

    def __call__(self, line: str) -> None:
        self.append(line)


def test_a_rollout_drains_reboots_and_returns_a_node(cluster: Cluster) -> None:
    host, messages, mark = cluster.hosts[ONE], Messages(), "/var/tmp/ended"
    job = cluster.submit(ONE, f"while [ ! -e /tmp/go ]; do sleep 0.2; done; touch {mark}")
    nodes: list[object] = []
    thread = threading.Thread(
        target=lambda: nodes.append(cluster.drainer.drain(ONE, REASON, timeout=120, progress=messages))
    )
    thread.start()
    cluster.until(ONE, lambda node: {"ALLOCATED", "DRAIN"} <= set(node.states))
    assert host.ssh(["test", "-e", mark], ok=(0, 1)).status == 1
    host.ssh(["sudo", "touch", "/tmp/go"])
    thread.join(120)
    assert nodes == [{"drained": True, "reason": REASON, "was": ""}]
    assert any(f"waiting for job {job} of root (train" in line for line in messages), messages
    assert host.ssh(["test", "-e", mark], ok=(0, 1)).status == 0

    # The gate of the new boot is closed at first; whatever it finds, the rollout keeps the node until it returns it.
    put(host, "/etc/gdsdeploy/gate.json", Settings(slurm=True).to_json().encode())
    before = boot_id(host)
    host.ssh(["sudo", "systemctl", "reboot"], ok=range(256))
    cluster.boot(ONE, before)
    assert cluster.gate(ONE) == "closed"
    cluster.until(ONE, lambda node: node.states == ["IDLE", "DRAIN"])
    assert cluster.judge(ONE, OPEN) == "open"
    time.sleep(6)
    node = cluster.show(ONE)
    assert (node.states, node.reason) == (["IDLE", "DRAIN"], REASON)
    assert cluster.drainer.drain(ONE, REASON, timeout=10, progress=messages) == {
        "drained": True,
        "reason": REASON,
        "was": "",
    }

    assert cluster.drainer.undrain(ONE, REASON, progress=messages) == {"returned": True, "reason": ""}
    cluster.works(ONE)


def test_a_drain_of_somebody_else_outlives_drain_reboot_and_gate(cluster: Cluster) -> None:
    host, messages = cluster.hosts[TWO], Messages()
    cluster.scontrol("update", f"NodeName=node-{TWO}", "State=DRAIN", "Reason=DIMM 3 is bad")
    nodes = cluster.drainer.drain(TWO, REASON, timeout=30, progress=messages)
    assert nodes == {"drained": False, "reason": "DIMM 3 is bad", "was": "DIMM 3 is bad"}
    before = boot_id(host)
    host.ssh(["sudo", "systemctl", "reboot"], ok=range(256))
    cluster.boot(TWO, before)
    assert cluster.gate(TWO) == "open"
    cluster.until(TWO, lambda node: node.states == ["IDLE", "DRAIN"])
    assert cluster.drainer.undrain(TWO, REASON, progress=messages) == {"returned": False, "reason": "DIMM 3 is bad"}
    assert cluster.drainer.states([TWO]) == {TWO: State(True, "DIMM 3 is bad")}
    cluster.scontrol("update", f"NodeName=node-{TWO}", "State=RESUME")
    cluster.works(TWO)


@pytest.mark.parametrize("verdict", ["open", "closed"])
def test_slurm_starts_the_upgrade_and_the_gate_decides(cluster: Cluster, verdict: str) -> None:
    """``scontrol reboot`` waits for the job, reboots the host and leaves it down; the gate takes it back, or not."""
    host = cluster.hosts[TWO]
    put(
        host,
        "/etc/gdsdeploy/gate.json",
        Settings(slurm=True, waivers=OPEN if verdict == "open" else []).to_json().encode(),
    )
    mark, before = f"/var/tmp/ended-{verdict}", boot_id(host)
    cluster.submit(TWO, f"sleep 4; touch {mark}")
    cluster.scontrol("reboot", "ASAP", "nextstate=DOWN", "reason=gdsdeploy: reboot", f"node-{TWO}")
    assert "REBOOT_REQUESTED" in cluster.show(TWO).states
    cluster.boot(TWO, before)
    assert host.ssh(["test", "-e", mark], ok=(0, 1)).status == 0
    assert host.ssh(["cat", "/var/tmp/pulled"]).stdout.count("pulled") == (1 if verdict == "open" else 2)
    assert cluster.gate(TWO) == verdict
    if verdict == "closed":
        node = cluster.until(TWO, lambda node: "DRAIN" in node.states and "REBOOT_ISSUED" not in node.states)
        assert "failed" in node.reason or "could not be decided" in node.reason, node
        assert node.reason.startswith("gdsdeploy: ")
        assert cluster.judge(TWO, OPEN) == "open"
    cluster.works(TWO)


def test_slurm_with_nextstate_resume_is_held_by_the_health_check(cluster: Cluster) -> None:
    host = cluster.hosts[TWO]
    put(host, "/etc/gdsdeploy/gate.json", Settings(slurm=True).to_json().encode())
    before = boot_id(host)
    cluster.scontrol("reboot", "ASAP", "nextstate=RESUME", "reason=firmware", f"node-{TWO}")
    cluster.boot(TWO, before)
    node = cluster.until(TWO, lambda node: node.reason.startswith("gdsdeploy: "))
    assert "DRAIN" in node.states
    assert cluster.judge(TWO, OPEN) == "open"
    cluster.works(TWO)


def test_the_commands_of_the_page_are_those_that_ran(cluster: Cluster) -> None:
    """Settings and program are read from it; of what to type, everything was typed."""
    typed = [" ".join(shlex.split(line)) for line in re.findall(r"^    (scontrol reboot .*)$", PAGE, re.MULTILINE)]
    assert typed == ["scontrol reboot ASAP nextstate=DOWN reason=gdsdeploy: reboot node-gpu1"]
    assert set(typed) <= cluster.ran
    by_hand = re.findall(r"`(scontrol update [^`]*)`", PAGE)
    assert [" ".join(shlex.split(line)) for line in by_hand] == [THEIRS]
    assert THEIRS in cluster.ran
