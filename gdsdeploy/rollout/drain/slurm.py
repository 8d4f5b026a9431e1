"""Slurm takes hosts out of work: scontrol drains its nodes, and squeue shows what still runs there.

A rollout takes over a drain of the host's boot gate, whose reasons begin with ``gdsdeploy: ``, and that of an earlier
rollout.  Until the rollout returns the node, the gate finds a reason that isn't its own, and leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gdsdeploy.errors import DrainFailed
from gdsdeploy.host.gate.gate import DRAINED, OURS, WAS, Node, drain_argv, node_from, undrain_argv
from gdsdeploy.host.io.scontrol import SlurmError
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.rollout.drain.base import (
    LISTED,
    ROLLOUT,
    Cluster,
    Deadline,
    DrainResult,
    Progress,
    ReturnResult,
    State,
    signature,
)

#: States of a node that Slurm itself reboots; the node may be idle meanwhile.
REBOOTS = {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
DEAD = {"DOWN", "ERROR", "FUTURE", "INVALID_REG"}
#: Reasons that Slurm itself gives, and that no longer hold once the host is back.
UNREACHABLE = re.compile(r"(Not responding|Node unexpectedly rebooted)")
#: Job states that hold resources of a node; a node whose only job is suspended has the state IDLE.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"
#: A job's fields; the name comes last because it may hold anything.
JOB = "%i|%u|%T|%L|%j"
#: No node has this name; Slurm checks the right to change nodes before it looks for the node.
NO_NODE = "gdsdeploy-may-drain"


def is_ours(node: Node, reason: str) -> bool:
    """Whether the node has this rollout's reason."""
    return node.reason.startswith(signature(reason))


def before(node: Node) -> str:
    """Why the node was out before gdsdeploy drained it; empty: it wasn't, or had no reason."""
    if node.reason.startswith((OURS, ROLLOUT)):
        return node.reason.partition(WAS)[2]
    return node.reason if state_of(node).out else ""


def state_of(node: Node) -> State:
    """Whether the node gets work.  A reservation for maintenance, or saving power, does not count as being out."""
    dead = next((state for state in node.states if state in DRAINED | DEAD), "")
    return State(out=bool(dead), reason=node.reason or (f"{dead}, no reason is given" if dead else ""))


def out(node: Node, reason: str) -> list[str]:
    """What of ``scontrol update`` drains the node by ``reason``; empty: it's drained already."""
    other_rollout = node.reason.startswith((OURS, ROLLOUT)) and not is_ours(node, reason)
    if DRAINED.intersection(node.states) and not other_rollout:
        return []
    return drain_argv(reason, before(node) if "DOWN" in node.states else "")


def back(node: Node, reason: str) -> list[str]:
    """What of ``scontrol update`` ends this rollout's drain; empty: it doesn't have one."""
    if not is_ours(node, reason) or not state_of(node).out:
        return []
    earlier = before(node)
    return undrain_argv(node, "" if "DOWN" in node.states and UNREACHABLE.match(earlier) else earlier)


class Slurm(Cluster[Node]):
    """Drains and resumes nodes of one cluster; squeue is looked for beside scontrol."""

    client = "scontrol"
    pause = 10.0
    lasting = re.compile(
        r"Invalid node name|not found|Invalid user id|Access/permission denied|Unable to allow|Permission denied"
        r"|Host key verification failed|command not found|not installed|something else than a node",
        re.IGNORECASE,
    )

    def check(self, hosts: Sequence[str]) -> list[str]:
        names = {host: self._node(host) for host in hosts}
        objections = []
        if shared := len(names) - len(set(names.values())):
            objections.append(f"rollout.drain.node names a node that another host has, {shared} times: {self._name}")
        try:
            nodes = self._nodes()
            unknown = [
                name if name == host else f"{name} ({host})" for host, name in names.items() if name not in nodes
            ]
            if unknown:
                objections.append(self._unknown(unknown))
            answer = self._ask(["update", f"NodeName={NO_NODE}", "State=RESUME"], "ask Slurm", ok=range(256))
            output = (answer.stderr + answer.stdout).strip()
            if "Invalid node name" not in output:
                objections.append(f"Slurm does not let this user drain nodes: {output}")
            for name in [name for name in names.values() if name in nodes][:1]:
                self._jobs(name)
        except DrainFailed as error:
            objections.append(error.message)
        return objections

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain.  A reboot that Slurm was asked for counts as work."""
        name, deadline = self._node(host), Deadline(host, timeout, self._pause, progress)
        was = None
        while True:
            node = self._patiently(self._look, name)
            if was is None:
                was = before(node) if is_ours(node, reason) or not state_of(node).out else node.reason
            # A reboot by Slurm ends drains, and so may any administrator.
            if change := out(node, reason):
                progress(f"Slurm's node {name} is drained" + (f"; it was: {node.reason}" if node.reason else ""))
                node = self._patiently(self._update, name, change)
            work = self._patiently(self._work, node)
            if not work and state_of(node).out:
                return {"drained": is_ours(node, reason), "reason": node.reason, "was": was}
            text = first_few(work or ["Slurm to keep it drained; its state is " + "+".join(node.states)], LISTED)
            if deadline.past:
                hint = "Wait for it, or end it yourself; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(text, hint)
            deadline.wait(f"waiting for {text}")

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """As Drainer.undrain.  A node that an administrator had down gets its earlier reason back."""
        name = self._node(host)
        node = self._patiently(self._look, name)
        if change := back(node, reason):
            node = self._patiently(self._update, name, change)
            progress(f"Slurm's node {name} is no longer drained")
        state = state_of(node)
        return {"returned": not state.out, "reason": state.reason if state.out else ""}

    def _work(self, node: Node) -> list[str]:
        if REBOOTS & set(node.states):
            return ["the reboot that Slurm was asked for"]
        jobs = self._jobs(node.name)
        if not jobs and BUSY & set(node.states):
            return ["jobs that squeue does not show; its state is " + "+".join(node.states)]
        return jobs

    def _jobs(self, name: str) -> list[str]:
        argv = ["--noheader", f"--nodelist={name}", f"--states={HOLDING}", f"--format={JOB}"]
        done = self._ask(argv, f"ask for the jobs on {name}", beside="squeue")
        rows = [line.strip().split("|", 4) for line in done.stdout.splitlines() if line.strip()]
        return [f"job {row[0]} of {row[1]} ({row[4]}, {row[2].lower()}, time left {row[3]})" for row in rows]

    def _look(self, name: str) -> Node:
        return _parse(self._ask(["--oneliner", "show", "node", name], f"ask for the node {name}").stdout, name)

    def _nodes(self) -> Mapping[str, Node]:
        text = self._ask(["--oneliner", "show", "nodes"], "ask for Slurm's nodes").stdout
        # A reason may hold line breaks.
        lines = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
        nodes = [_parse(line, "") for line in lines if line.startswith("NodeName=")]
        return {node.name: node for node in nodes}

    def _state(self, node: Node) -> State:
        return state_of(node)

    def _update(self, name: str, change: Sequence[str]) -> Node:
        self._ask(["update", f"NodeName={name}", *change], f"change the node {name}")
        return self._look(name)


def _parse(text: str, name: str) -> Node:
    try:
        return node_from(text)
    except SlurmError as error:
        raise DrainFailed(f"cannot ask for the node {name}: {error}") from error
