"""Slurm's side of the gate: the node of this host is drained while the gate is closed, and resumed when it opens.

The gate only cancels its own drains: another reason stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List

from ..io.scontrol import SlurmError, node_name, scontrol
from .gate import OPEN

#: How the gate's reasons begin.
OURS = "gdsdeploy: "
#: Characters of a reason; it is shown in one line of sinfo.
REASON_LENGTH = 200
#: Separates the gate's reason from that of a node that was down already.
WAS = "; was: "
#: What Slurm adds to the reason of a node that it reboots.
REBOOTED = re.compile(r"( : reboot (requested|issued|complete))+$")
#: States that don't end by themselves, as scontrol writes them.
DRAINED = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}


@dataclass(frozen=True)
class Node:
    """A node as Slurm's controller has it."""

    name: str
    #: e.g. {"IDLE", "DRAIN"}
    states: List[str]
    #: without who set it and when, and what Slurm added; empty: none
    reason: str


@dataclass(frozen=True)
class Step:
    """What to do with a node: ``argv`` for scontrol, empty for nothing; and that in words."""

    argv: List[str]
    says: str


def node_from(text: str) -> Node:
    """Read what ``scontrol --oneliner show node`` prints; raises SlurmError."""
    name = re.match(r"NodeName=(\S+)", text)
    state = re.search(r"\sState=(\S+)", text)
    # What a site has written elsewhere (Comment, Extra) may follow it.
    reason = re.search(r"\sReason=(.*?)(?: \[[^\[\]\s]*@[0-9-]+T[0-9:]+\]|\s*$)", text, re.DOTALL)
    if name is None or state is None:
        raise SlurmError(f"scontrol printed something else than a node: {text.strip()[:200]}")
    # Flags stand behind a +, marks such as * and ~ behind the state.
    states = [re.sub(r"[^A-Z_]", "", word) for word in state.group(1).split("+")]
    return Node(name.group(1), states, REBOOTED.sub("", reason.group(1)) if reason else "")


def drain_argv(reason: str, earlier: str) -> List[str]:
    """What of ``scontrol update`` drains a node; ``earlier``: the reason to restore when the drain ends."""
    return ["State=DRAIN", "Reason=" + reason[:REASON_LENGTH] + (WAS + earlier if earlier else "")]


def undrain_argv(node: Node, earlier: str) -> List[str]:
    """What of ``scontrol update`` ends our drain; ``earlier``: why the node was down before, empty: it wasn't."""
    if "DOWN" in node.states and not earlier:
        # Slurm took it down because it rebooted; UNDRAIN would leave it so.
        return ["State=RESUME"]
    # Unlike RESUME it leaves a node down that was down for another reason.
    return ["State=UNDRAIN", *(["Reason=" + earlier] if earlier else [])]


def step(node: Node, state: str, reason: str) -> Step:
    """How the node gets into the state that the gate decided; pure."""
    drained, ours = not DRAINED.isdisjoint(node.states), node.reason.startswith(OURS)
    theirs = node.reason.partition(WAS)[2] if ours else node.reason
    down = "DOWN" in node.states
    if state == OPEN:
        if ours and (drained or (down and not theirs)):
            return Step(undrain_argv(node, theirs), f"{node.name} is resumed")
        if drained or down:
            return Step([], f"{node.name} stays out: {theirs or 'no reason is given'}")
        return Step([], f"{node.name} is in already")
    if drained and not ours:
        return Step([], f"{node.name} is out already, and keeps its reason: {theirs or 'none'}")
    # Slurm itself takes a node that is only down back as soon as it answers.
    argv = drain_argv(OURS + reason, theirs if down or ours else "")
    words = argv[1][len("Reason=") :]
    if drained and node.reason == words:
        return Step([], f"{node.name} is drained already")
    return Step(argv, f"{node.name} is drained: {words}")


def apply(state: str, reason: str, name: str = "") -> str:
    """Drain or resume the node of this host; returns the action in words.

    name: of the node, where it is known.  Raises SlurmError.
    """
    node = node_from(scontrol(["--oneliner", "show", "node", name or node_name()]))
    needed = step(node, state, reason)
    if needed.argv:
        scontrol(["update", "NodeName=" + node.name, *needed.argv])
    return needed.says
