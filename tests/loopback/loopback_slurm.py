"""The real Slurm on loopback, thrown away afterwards: its controller, daemons of nodes, and munge."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gdsdeploy.host.gate import gate
from gdsdeploy.host.io.scontrol import FORMAT
from gdsdeploy.run import as_root, which
from tests.loopback.loopback_sshd import free_port

CONFIG = """\
ClusterName=gate
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=2
HealthCheckProgram={folder}/slurm-health
HealthCheckNodeState=ANY
PartitionName=all Nodes=ALL Default=YES State=UP
"""
#: Asked every second about their health, several nodes are not asked whether they answer.
USUAL = {"ReturnToService": "2", "HealthCheckInterval": "0"}
NODE = "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN\n"


@dataclass
class Slurm:
    """One controller and nodes, whose names are not their host's.  ``node``: the first."""

    folder: Path
    nodes: Sequence[str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    rebooted: set[str] = field(default_factory=set)

    @property
    def node(self) -> str:
        return self.nodes[0]

    @property
    def health(self) -> Path:
        """The program that daemons start for their node's health."""
        return self.folder / "slurm-health"

    def show(self, node: str = "") -> gate.Node:
        return gate.node_from(self.scontrol("--oneliner", "show", "node", node or self.node))

    def scontrol(self, *argv: str) -> str:
        env = {**os.environ, **FORMAT}
        return subprocess.run([which("scontrol"), *argv], check=True, capture_output=True, text=True, env=env).stdout

    def set(self, state: str, reason: str = "", node: str = "") -> None:
        words = [f"Reason={reason}"] if reason else []
        self.scontrol("update", f"NodeName={node or self.node}", f"State={state}", *words)

    def until(self, ready: Callable[[gate.Node], bool], node: str = "") -> gate.Node:
        end = time.monotonic() + 300
        while not ready(state := self.show(node)):
            log = self.folder / f"slurmd-{node or self.node}.log"
            assert time.monotonic() < end, (state, log.read_text()[-2000:])
            time.sleep(0.1)
        return state

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start a daemon in the foreground; slurmd is root's."""
        log = (self.folder / f"{argv[0]}.out").open("ab")
        command = [which(argv[0]), *argv[1:]]
        command = as_root(command) if argv[0] == "slurmd" else command
        return subprocess.Popen(command, stdout=log, stderr=log)

    def reboot_node(self, node: str) -> None:
        """Start a node's daemon anew, which says that its host has just booted, whenever it is asked."""
        self.stop_node(node)
        # Slurm counts in whole seconds.
        time.sleep(1.1)
        self.start_node(node, "-b")
        self.rebooted.add(node)

    def reboot_unasked(self, node: str) -> None:
        """Reboot a node until the controller has seen it, which takes the node down.

        It sees a boot that is later than the last answer.  A daemon that is asked between its start and its
        registration has answered since: on a busy machine, that happens.  Once it has seen the boot, it hears of no
        other: a daemon that says so whenever it is asked would take the node down again after its return.
        """
        for _ in range(5):
            self.reboot_node(node)
            end = time.monotonic() + 20
            while time.monotonic() < end:
                if "DOWN" in self.show(node).states:
                    self.stop_node(node)
                    self.start_node(node)
                    return
                time.sleep(0.1)
        raise AssertionError((self.show(node), (self.folder / f"slurmd-{node}.log").read_text()[-2000:]))

    def settle(self) -> None:
        """Have every node in that is not, and hosts that booted long ago."""
        for node in self.rebooted:
            self.stop_node(node)
            self.start_node(node)
        self.rebooted.clear()
        for node in self.nodes:
            if set(self.show(node).states) & {"DRAIN", "DOWN"}:
                self.set("RESUME", node=node)

    def start_node(self, node: str, *argv: str) -> None:
        self.daemons[node] = self.start("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf", *argv)

    def stop_node(self, node: str) -> None:
        stop(self.daemons.pop(node))


def stop(process: subprocess.Popen[bytes]) -> None:
    subprocess.run(as_root(["kill", "--", str(process.pid)]), check=False)
    process.wait(timeout=300)


@contextlib.contextmanager
def cluster(*nodes: str, **settings: str) -> Iterator[Slurm]:
    """A cluster that answers; SLURM_CONF names it meanwhile.  settings: further lines of slurm.conf."""
    # munged wants a socket that everybody may reach, which pytest's own folders keep from others.
    folder = Path(tempfile.mkdtemp(prefix="gds-slurm-"))
    folder.chmod(0o755)
    for name in ("munge", "state", "spool", *(f"spool/{node}" for node in nodes)):
        (folder / name).mkdir()
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    daemons = Slurm(folder, nodes)
    daemons.health.write_text("#!/bin/sh\n")
    daemons.health.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    text = CONFIG.format(host=host, folder=folder, user=getpass.getuser(), control=free_port())
    text += "".join(NODE.format(node=node, host=host, port=free_port()) for node in nodes)
    text += "".join(f"{name}={value}\n" for name, value in {**USUAL, **settings}.items())
    config = folder / "slurm.conf"
    config.write_text(text)
    files = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    running: list[subprocess.Popen[bytes]] = []
    os.environ["SLURM_CONF"] = str(config)
    try:
        running.append(daemons.start("munged", "--foreground", f"--socket={folder}/munge/socket", *files))
        _wait(lambda: (folder / "munge" / "socket").exists(), folder / "munged.out")
        running.append(daemons.start("slurmctld", "-D", "-i", "-f", str(config)))
        for node in nodes:
            daemons.start_node(node)
        _wait(lambda: _states() == {"idle"}, folder / "slurmctld.out")
        yield daemons
    finally:
        os.environ.pop("SLURM_CONF")
        for process in [*daemons.daemons.values(), *reversed(running)]:
            stop(process)
        subprocess.run(as_root(["rm", "-rf", "--", str(folder)]), check=True)


def _states() -> set[str]:
    return set(subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout.split())


def _wait(ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)
