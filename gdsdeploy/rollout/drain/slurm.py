"""Slurm takes hosts out of work: its nodes are drained with scontrol, and squeue says what still runs there.

A drain of the boot gate of a host, whose reasons begin with ``gdsdeploy: ``, is taken over: until the rollout returns
the node, by a validation of the same checks in the same boot, the gate finds a reason that is not its own and leaves
it.  So is one that another rollout left behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.errors import DrainFailed
from gdsdeploy.host.gate.slurm import DRAINED, OURS, REASON_LENGTH, WAS, Node, SlurmError, node_from
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout.drain.deadline import Deadline
from gdsdeploy.rollout.drain.drainer import ROLLOUT, State, signature
from gdsdeploy.rollout.drain.program import Patience, Program, listed

#: Seconds between two looks at a node that still works.
PAUSE = 10.0
#: Seconds for which a controller that does not answer is asked again; a failover takes less.
PATIENCE = 180.0
#: What asking again does not change.
LASTING = re.compile(
    r"Invalid node name|not found|Invalid user id|Access/permission denied|Unable to allow|Host key verification failed"
    r"|Permission denied|command not found|not installed|something else than a node",
    re.IGNORECASE,
)
#: States of a node that Slurm itself reboots; it is idle at some time of it.
REBOOTS = {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
DEAD = {"DOWN", "ERROR", "FUTURE", "INVALID_REG"}
#: Reasons that Slurm itself gives, and that a host proves wrong by coming back.
GONE = re.compile(r"(Not responding|Node unexpectedly rebooted)")
#: Everything in which a job may hold resources of a node; a node with a suspended job says that it is idle.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"
#: What is said of a job; its name stands last because it may hold anything.
JOB = "%i|%u|%T|%L|%j"
#: No node has this name; Slurm asks for the right to change nodes before it looks for the node.
NOBODY = "gdsdeploy-may-drain"


def is_ours(node: Node, reason: str) -> bool:
    """Whether it is this rollout's reason that the node has."""
    return node.reason.startswith(signature(reason))


def before(node: Node) -> str:
    """Why the node was out before gdsdeploy touched it; empty: it was not, or nobody said."""
    if node.reason.startswith((OURS, ROLLOUT)):
        return node.reason.partition(WAS)[2]
    return node.reason if state_of(node).out else ""


def state_of(node: Node) -> State:
    """Whether the node gets work.  A reservation for maintenance, or saving power, does not count as being out."""
    dead = next((item for item in node.states if item in DRAINED | DEAD), "")
    return State(out=bool(dead), reason=node.reason or (f"{dead}, no reason is given" if dead else ""))


def out(node: Node, reason: str) -> list[str]:
    """What of ``scontrol update`` drains the node by ``reason``; empty: it is drained, by whomever."""
    drained = any(item in DRAINED for item in node.states)
    taken = node.reason.startswith((OURS, ROLLOUT)) and not is_ours(node, reason)
    if drained and not taken:
        return []
    theirs = before(node)
    # Slurm itself takes a node that is only down back as soon as it answers, validated or not.
    kept = WAS + theirs if theirs and "DOWN" in node.states else ""
    return ["State=DRAIN", "Reason=" + reason[:REASON_LENGTH] + kept]


def back(node: Node, reason: str) -> list[str]:
    """What of ``scontrol update`` ends this rollout's drain; empty: there is none."""
    if not is_ours(node, reason) or not state_of(node).out:
        return []
    theirs = before(node)
    if "DOWN" in node.states and (not theirs or GONE.match(theirs)):
        # Where ReturnToService is not 2, Slurm takes a node down that reboots other than by Slurm.
        return ["State=RESUME"]
    return ["State=UNDRAIN", *(["Reason=" + theirs] if theirs else [])]


class Slurm:
    """Drains and resumes nodes of one cluster.

    program: what runs scontrol; the word with that file name is replaced for squeue.  name: of a host's node, with
    ``{host}``.  folder: where programs start.  pause, patience: seconds, as PAUSE and PATIENCE.
    Raises FleetInvalid where ``program`` has no scontrol.
    """

    def __init__(
        self, program: Sequence[str], name: str, folder: Path, *, pause: float = PAUSE, patience: float = PATIENCE
    ) -> None:
        self._program = Program(program, "scontrol", folder)
        self._patiently = Patience(patience, pause, LASTING)
        self._name = name
        self._pause = pause

    def check(self, hosts: Sequence[str]) -> list[str]:
        """As Drainer.check."""
        names = {host: self._node(host) for host in hosts}
        found = []
        if shared := len(names) - len(set(names.values())):
            found.append(f"rollout.drain.node names a node that another host has, {shared} times: {self._name}")
        try:
            nodes = self._nodes()
            unknown = [
                name if name == host else f"{name} ({host})" for host, name in names.items() if name not in nodes
            ]
            if unknown:
                found.append(f"Slurm knows no node {listed(unknown)}")
            tried = self._program.ask(["update", f"NodeName={NOBODY}", "State=RESUME"], "ask Slurm", ok=range(256))
            said = (tried.stderr + tried.stdout).strip()
            if "Invalid node name" not in said:
                found.append(f"Slurm does not let this user drain nodes: {said}")
            for name in [name for name in names.values() if name in nodes][:1]:
                self._jobs(name)
        except DrainFailed as error:
            found.append(error.message)
        return found

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """As Drainer.states; one call for all nodes, asked once: somebody waits for the plan."""
        nodes = self._nodes()
        names = {host: self._node(host) for host in hosts}
        return {host: state_of(nodes[name]) for host, name in names.items() if name in nodes}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """As Drainer.drain.  A node that is to be rebooted by Slurm is waited for as one that works is."""
        name, deadline = self._node(host), Deadline(host, timeout, self._pause, progress)
        was = None
        while True:
            node = self._patiently(self._look, name)
            if was is None:
                was = before(node) if is_ours(node, reason) or not state_of(node).out else node.reason
            # Slurm's reboots take drains back when they are over, and anybody may at any time.
            if change := out(node, reason):
                progress(f"Slurm's node {name} is drained" + (f"; it was: {node.reason}" if node.reason else ""))
                node = self._patiently(self._update, name, change)
            work = self._patiently(self._work, node)
            if not work and state_of(node).out:
                return {"drained": is_ours(node, reason), "reason": node.reason, "was": was}
            text = listed(work or ["Slurm to keep it drained; its state is " + "+".join(node.states)])
            if deadline.past:
                hint = "Wait for it, or end it yourself; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(text, hint)
            deadline.wait(f"waiting for {text}")

    def undrain(self, host: str, reason: str, *, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """As Drainer.undrain.  A node that was down before, for a reason that somebody gave, gets that back."""
        name = self._node(host)
        node = self._patiently(self._look, name)
        if change := back(node, reason):
            node = self._patiently(self._update, name, change)
            progress(f"Slurm's node {name} is no longer drained")
        state = state_of(node)
        return {"returned": not state.out, "reason": state.reason if state.out else ""}

    def _work(self, node: Node) -> list[str]:
        """What keeps the node from being free of work, in words."""
        if REBOOTS & set(node.states):
            return ["the reboot that Slurm was asked for"]
        jobs = self._jobs(node.name)
        if not jobs and BUSY & set(node.states):
            return ["jobs that squeue does not show; its state is " + "+".join(node.states)]
        return jobs

    def _jobs(self, name: str) -> list[str]:
        argv = ["--noheader", f"--nodelist={name}", f"--states={HOLDING}", f"--format={JOB}"]
        done = self._program.ask(argv, f"ask for the jobs on {name}", beside="squeue")
        rows = [line.strip().split("|", 4) for line in done.stdout.splitlines() if line.strip()]
        return [f"job {row[0]} of {row[1]} ({row[4]}, {row[2].lower()}, time left {row[3]})" for row in rows]

    def _look(self, name: str) -> Node:
        text = self._program.ask(["--oneliner", "show", "node", name], f"ask for the node {name}").stdout
        return _parsed(text, name)

    def _nodes(self) -> dict[str, Node]:
        text = self._program.ask(["--oneliner", "show", "nodes"], "ask for Slurm's nodes").stdout
        # A reason may hold line breaks.
        lines = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
        nodes = [_parsed(line, "") for line in lines if line.startswith("NodeName=")]
        return {node.name: node for node in nodes}

    def _update(self, name: str, change: Sequence[str]) -> Node:
        self._program.ask(["update", f"NodeName={name}", *change], f"change the node {name}")
        return self._look(name)

    def _node(self, host: str) -> str:
        return self._name.replace("{host}", host)


def drainer(settings: Drain, fleet_dir: Path) -> Slurm:
    """What the fleet file says."""
    return Slurm(settings.program or ("scontrol",), settings.node, fleet_dir)


def _parsed(text: str, name: str) -> Node:
    try:
        return node_from(text)
    except SlurmError as error:
        raise DrainFailed(f"cannot ask for the node {name}: {error}") from error
