"""Kubernetes takes hosts out of work: nodes are cordoned, and their pods evicted by kubectl.

kubectl knows how: disruption budgets are waited for, pods of daemon sets and mirror pods stay, and each pod gets the
time to end that it asks for.  An annotation says whose cordon it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.errors import DrainFailed
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout.drain.deadline import Deadline
from gdsdeploy.rollout.drain.drainer import ROLLOUT, State, signature
from gdsdeploy.rollout.drain.program import Patience, Program, failure, last, listed

#: Annotation of a node that a rollout has cordoned: its reason.
CORDONED = "gdsdeploy.io/cordoned"
#: What kubelet sets on pods that no API server has asked for.
MIRROR = "kubernetes.io/config.mirror"
#: Seconds between two tries, and for which an API server that does not answer is asked again.
PAUSE = 5.0
PATIENCE = 180.0
#: What asking again does not change.
LASTING = re.compile(
    r"\(Forbidden\)|\(Unauthorized\)|\(NotFound\)|must be logged in|You must provide credentials|not installed"
    r"|command not found|invalid configuration|x509:|Host key verification failed|Permission denied"
)
#: Scratch folders of pods are lost with them, by their own definition.
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data")
#: From a node and a reason to the merge patch that is due; see :func:`out` and :func:`back`.
PatchOf = Callable[[Mapping[str, Any], str], dict[str, Any] | None]
#: Verb and kind of what is done.
RIGHTS = (
    ("get", "nodes"),
    ("patch", "nodes"),
    ("list", "pods"),
    ("get", "daemonsets.apps"),
    ("create", "pods", "--subresource=eviction"),
)


def is_ours(node: Mapping[str, Any], reason: str) -> bool:
    """Whether the node has this rollout's annotation."""
    return annotation(node).startswith(signature(reason))


def annotation(node: Mapping[str, Any]) -> str:
    return str((node["metadata"].get("annotations") or {}).get(CORDONED, ""))


def cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def state_of(node: Mapping[str, Any]) -> State:
    """Whether the node gets pods."""
    if cordoned(node):
        return State(True, annotation(node) or "cordoned, by nobody who said why")
    conditions = node.get("status", {}).get("conditions", [])
    ready = next((item for item in conditions if item.get("type") == "Ready"), {"status": "Unknown"})
    if ready["status"] != "True":
        return State(True, f"not ready: {ready.get('message') or 'its kubelet has not said why'}")
    return State(False)


def out(node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
    """The merge patch that cordons the node by ``reason``; None: it is cordoned, by whomever."""
    taken = annotation(node).startswith(ROLLOUT) and not is_ours(node, reason)
    if cordoned(node) and not taken:
        return None
    return _patch(node, reason, unschedulable=True)


def back(node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
    """The merge patch that takes this rollout's cordon back; None: there is none."""
    return _patch(node, None, unschedulable=None) if is_ours(node, reason) else None


def _patch(node: Mapping[str, Any], note: str | None, *, unschedulable: bool | None) -> dict[str, Any]:
    # With its version the server refuses a patch of what has changed since it was looked at.
    metadata = {"annotations": {CORDONED: note}, "resourceVersion": node["metadata"]["resourceVersion"]}
    return {"metadata": metadata, "spec": {"unschedulable": unschedulable}}


def works(pod: Mapping[str, Any]) -> bool:
    """Whether an eviction is about this pod."""
    metadata = pod["metadata"]
    kinds = {owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")}
    finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not finished and "DaemonSet" not in kinds and MIRROR not in (metadata.get("annotations") or {})


class Kubernetes:
    """Cordons, empties and uncordons nodes of one cluster.

    program: what runs kubectl, with the options that choose a cluster.  name: of a host's node, with ``{host}``.
    folder: where it starts.  pause, patience: seconds, as PAUSE and PATIENCE.
    Raises FleetInvalid where ``program`` has no kubectl.
    """

    def __init__(
        self, program: Sequence[str], name: str, folder: Path, *, pause: float = PAUSE, patience: float = PATIENCE
    ) -> None:
        self._program = Program(program, "kubectl", folder)
        self._patiently = Patience(patience, pause, LASTING)
        self._name, self._folder, self._pause = name, folder, pause

    def check(self, hosts: Sequence[str]) -> list[str]:
        """As Drainer.check."""
        names = [self._node(host) for host in hosts]
        try:
            nodes = self._nodes()
            unknown = [name for name in names if name not in nodes]
            found = [f"Kubernetes knows no node {listed(unknown)}"] if unknown else []
            for right in RIGHTS:
                asked = ["auth", "can-i", *right, "--all-namespaces"]
                answer = self._program.ask(asked, "ask for one's rights", ok=range(256))
                if answer.stdout.strip() != "yes":
                    said = (answer.stdout + answer.stderr).strip()
                    found.append(f"this user of Kubernetes may not {' '.join(right)}: {said}")
        except DrainFailed as error:
            return [error.message]
        return found

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """As Drainer.states; one call for all nodes, asked once: somebody waits for the plan."""
        nodes = self._nodes()
        names = {host: self._node(host) for host in hosts}
        return {host: state_of(nodes[name]) for host, name in names.items() if name in nodes}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """As Drainer.drain.  Pods without a controller are waited for: nothing would start them elsewhere."""
        name, deadline, once = self._node(host), Deadline(host, timeout, self._pause, progress), _once(progress)
        node = self._patiently(self._look, name)
        was = state_of(node).reason if state_of(node).out and not is_ours(node, reason) else ""
        while True:
            node = self._patiently(self._changed, name, out, reason, "cordoned", progress)
            status, lines = self._evict(name, deadline.left, once)
            if status == 0 and cordoned(node := self._patiently(self._look, name)):
                return {"drained": is_ours(node, reason), "reason": state_of(node).reason, "was": was}
            command = self._program.argv(["drain", name, *DRAIN])
            said = failure(f"cannot drain {name}: kubectl ended with status {status}", command, lines)
            if LASTING.search("\n".join(lines[-3:])):
                raise DrainFailed(said, hint=self._program.hint)
            if deadline.past:
                left = self._patiently(self._pods, name)
                hint = "Disruption budgets are kept; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(f"{listed(left) or 'no pod'}\n{said}", hint)
            deadline.wait()

    def undrain(self, host: str, reason: str, *, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """As Drainer.undrain.  A node whose kubelet has yet to answer gets pods as soon as it does."""
        node = self._patiently(self._changed, self._node(host), back, reason, "no longer cordoned", progress)
        return {"returned": not cordoned(node), "reason": state_of(node).reason if cordoned(node) else ""}

    def _changed(
        self, name: str, patch_of: PatchOf, reason: str, state: str, progress: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """The node as it is once ``patch_of`` has no patch for it."""
        node = self._look(name)
        if (patch := patch_of(node, reason)) is None:
            return node
        node = self._change(name, patch)
        progress(f"Kubernetes' node {name} is {state}")
        return node

    def _evict(self, name: str, seconds: float, progress: Callable[[str], None]) -> tuple[int, list[str]]:
        """Status and output of ``kubectl drain``."""
        command = self._program.argv(["drain", name, *DRAIN, f"--timeout={seconds:.0f}s"])
        return last(command, f"drain {name}", seconds + 30, self._folder, progress)

    def _pods(self, name: str) -> list[str]:
        argv = ["get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}", "--output=json"]
        pods = json.loads(self._program.ask(argv, f"ask for the pods on {name}").stdout)["items"]
        return [f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods if works(pod)]

    def _look(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(
            self._program.ask(["get", "node", name, "--output=json"], f"ask for the node {name}").stdout
        )
        return found

    def _nodes(self) -> dict[str, Mapping[str, Any]]:
        done = self._program.ask(["get", "nodes", "--output=json"], "ask for Kubernetes' nodes")
        return {node["metadata"]["name"]: node for node in json.loads(done.stdout)["items"]}

    def _change(self, name: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        argv = ["patch", "node", name, "--type=merge", f"--patch={json.dumps(patch)}", "--output=json"]
        found: Mapping[str, Any] = json.loads(self._program.ask(argv, f"change the node {name}").stdout)
        return found

    def _node(self, host: str) -> str:
        return self._name.replace("{host}", host)


def _once(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Tells each thing once: kubectl says again and again what it waits for."""
    seen = {""}

    def tell(line: str) -> None:
        if line.strip() not in seen:
            seen.add(line.strip())
            progress(line.strip())

    return tell


def drainer(settings: Drain, fleet_dir: Path) -> Kubernetes:
    """What the fleet file says."""
    return Kubernetes(settings.program or ("kubectl",), settings.node, fleet_dir)
