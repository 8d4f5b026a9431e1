"""Kubernetes takes hosts out of work: nodes are cordoned, and kubectl evicts their pods.

kubectl waits for disruption budgets, leaves pods of daemon sets and mirror pods, and gives each pod its grace period.
An annotation says whose cordon it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdsdeploy.errors import DrainFailed
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
    failure,
    last,
    signature,
)

#: Annotation of a node that a rollout has cordoned: its reason.
CORDONED = "gdsdeploy.io/cordoned"
#: Annotation of a static pod, which kubelet starts without the API server.
MIRROR = "kubernetes.io/config.mirror"
#: A pod's emptyDir never outlives the pod.
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data")
#: From a node and a reason to the merge patch that is due; see :func:`out` and :func:`back`.
PatchOf = Callable[[Mapping[str, Any], str], dict[str, Any] | None]
#: Verb and kind of each request that a drain makes.
RIGHTS = (
    ("get", "nodes"), ("patch", "nodes"), ("list", "pods"), ("get", "daemonsets.apps"),
    ("create", "pods", "--subresource=eviction"),
)  # fmt: skip


def is_ours(node: Mapping[str, Any], reason: str) -> bool:
    """Whether the node has this rollout's annotation."""
    return annotation(node).startswith(signature(reason))


def annotation(node: Mapping[str, Any]) -> str:
    return str((node["metadata"].get("annotations") or {}).get(CORDONED, ""))


def is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def state_of(node: Mapping[str, Any]) -> State:
    """Whether the node gets pods."""
    if is_cordoned(node):
        return State(True, annotation(node) or "cordoned without a reason")
    conditions = node.get("status", {}).get("conditions", [])
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), {"status": "Unknown"})
    if ready["status"] != "True":
        return State(True, f"not ready: {ready.get('message') or 'its kubelet has not said why'}")
    return State(False)


def out(node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
    """The merge patch that cordons the node by ``reason``; None: it's cordoned already."""
    other_rollout = annotation(node).startswith(ROLLOUT) and not is_ours(node, reason)
    if is_cordoned(node) and not other_rollout:
        return None
    return _patch(node, reason, unschedulable=True)


def back(node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
    """The merge patch that ends this rollout's cordon; None: it doesn't have one."""
    return _patch(node, None, unschedulable=None) if is_ours(node, reason) else None


def _patch(node: Mapping[str, Any], note: str | None, *, unschedulable: bool | None) -> dict[str, Any]:
    # With the version, the server refuses to patch a node that has changed meanwhile.
    metadata = {"annotations": {CORDONED: note}, "resourceVersion": node["metadata"]["resourceVersion"]}
    return {"metadata": metadata, "spec": {"unschedulable": unschedulable}}


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Whether an eviction is about this pod."""
    metadata = pod["metadata"]
    kinds = {owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")}
    finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not finished and "DaemonSet" not in kinds and MIRROR not in (metadata.get("annotations") or {})


class Kubernetes(Cluster[Mapping[str, Any]]):
    """Cordons, empties and uncordons nodes of one cluster."""

    client = "kubectl"
    pause = 5.0
    lasting = re.compile(
        r"\(Forbidden\)|\(Unauthorized\)|\(NotFound\)|must be logged in|You must provide credentials|not installed"
        r"|command not found|invalid configuration|x509:|Host key verification failed|Permission denied"
    )

    def check(self, hosts: Sequence[str]) -> list[str]:
        names = [self._node(host) for host in hosts]
        try:
            nodes = self._nodes()
            unknown = [name for name in names if name not in nodes]
            objections = [self._unknown(unknown)] if unknown else []
            for right in RIGHTS:
                argv = ["auth", "can-i", *right, "--all-namespaces"]
                answer = self._ask(argv, "ask for this user's rights", ok=range(256))
                if answer.stdout.strip() != "yes":
                    output = (answer.stdout + answer.stderr).strip()
                    objections.append(f"this user of Kubernetes may not {' '.join(right)}: {output}")
        except DrainFailed as error:
            return [error.message]
        return objections

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain.  Pods without a controller are waited for: nothing would start them elsewhere."""
        name, deadline, once = self._node(host), Deadline(host, timeout, self._pause, progress), _once(progress)
        node = self._patiently(self._look, name)
        was = state_of(node).reason if state_of(node).out and not is_ours(node, reason) else ""
        while True:
            node = self._patiently(self._patched, name, out, reason, "cordoned", progress)
            status, lines = self._evict(name, deadline.left, once)
            if status == 0 and is_cordoned(node := self._patiently(self._look, name)):
                return {"drained": is_ours(node, reason), "reason": state_of(node).reason, "was": was}
            command = self._argv(["drain", name, *DRAIN])
            output = failure(f"cannot drain {name}: kubectl ended with status {status}", command, lines)
            if self.lasting.search("\n".join(lines[-3:])):
                raise DrainFailed(output, hint=self._hint)
            if deadline.past:
                left = self._patiently(self._pods, name)
                hint = "Disruption budgets are kept; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(f"{first_few(left, LISTED) or 'no pod'}\n{output}", hint)
            deadline.wait()

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """As Drainer.undrain.  A node whose kubelet doesn't answer yet gets pods as soon as it does."""
        node = self._patiently(self._patched, self._node(host), back, reason, "no longer cordoned", progress)
        return {"returned": not is_cordoned(node), "reason": state_of(node).reason if is_cordoned(node) else ""}

    def _patched(self, name: str, patch_of: PatchOf, reason: str, state: str, progress: Progress) -> Mapping[str, Any]:
        """The node as it is once ``patch_of`` has no patch for it."""
        node = self._look(name)
        if (patch := patch_of(node, reason)) is None:
            return node
        node = self._change(name, patch)
        progress(f"Kubernetes' node {name} is {state}")
        return node

    def _evict(self, name: str, seconds: float, progress: Progress) -> tuple[int, list[str]]:
        command = self._argv(["drain", name, *DRAIN, f"--timeout={seconds:.0f}s"])
        return last(command, f"drain {name}", seconds + 30, self._folder, progress)

    def _pods(self, name: str) -> list[str]:
        argv = ["get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}"]
        pods = self._json(argv, f"ask for the pods on {name}")["items"]
        return [f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods if is_evictable(pod)]

    def _look(self, name: str) -> Mapping[str, Any]:
        return self._json(["get", "node", name], f"ask for the node {name}")

    def _nodes(self) -> Mapping[str, Mapping[str, Any]]:
        nodes = self._json(["get", "nodes"], "ask for Kubernetes' nodes")["items"]
        return {node["metadata"]["name"]: node for node in nodes}

    def _state(self, node: Mapping[str, Any]) -> State:
        return state_of(node)

    def _change(self, name: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        argv = ["patch", "node", name, "--type=merge", f"--patch={json.dumps(patch)}"]
        return self._json(argv, f"change the node {name}")

    def _json(self, argv: Sequence[str], doing: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self._ask([*argv, "--output=json"], doing).stdout)
        return document


def _once(progress: Progress) -> Progress:
    """Reports each line once: kubectl repeats what it waits for."""
    lines = {""}

    def tell(line: str) -> None:
        if line.strip() not in lines:
            lines.add(line.strip())
            progress(line.strip())

    return tell
