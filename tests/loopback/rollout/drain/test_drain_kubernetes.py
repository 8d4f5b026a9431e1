"""Drains by the real kubectl, against an imitated API server (see there why it is one)."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, FleetInvalid, Interrupted
from gdsdeploy.model.rollout import Standing
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain
from gdsdeploy.rollout.drain import State, reason_of
from gdsdeploy.run import which
from tests.patience import wait_for

REASON = reason_of("20261121T1054-7f3a", "driver 550.163.01 to 560.35.03")
OTHER = reason_of("20261120T0900-0001", "driver 535.1 to 550.163.01")
NODE = "gpu1.cluster.example"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    api = Server(tmp_path, which("kubectl"))
    for host in ("gpu1", "gpu2", "gpu3"):
        api.cluster.node(f"{host}.cluster.example")
    yield api
    api.stop()


@pytest.fixture
def cluster(server: Server) -> Cluster:
    return server.cluster


@pytest.fixture
def drainer(server: Server, tmp_path: Path) -> drain.Kubernetes:
    return drain.Kubernetes(server.program, "{host}.cluster.example", tmp_path, pause=0.1, patience=2)


def test_a_node_is_cordoned_emptied_and_brought_back(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.pod("web", NODE)
    cluster.pod("logs", NODE, "DaemonSet")
    cluster.pod("static", NODE, "Node", kubernetes_io="")
    cluster.pods["work", "static"]["metadata"]["annotations"] = {drain.MIRROR: "x"}
    cluster.pod("elsewhere", "gpu2.cluster.example")
    lines: list[str] = []
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lines.append)
    assert answer == {"drained": True, "reason": REASON, "was": ""}
    assert cluster.evicted == [("work", "web")]
    assert sorted(cluster.pods) == [("work", "elsewhere"), ("work", "logs"), ("work", "static")]
    assert any("evicting pod work/web" in line for line in lines), lines
    node = cluster.nodes[NODE]
    assert node["spec"] == {"unschedulable": True}
    assert node["metadata"]["annotations"] == {"site.example/rack": "r1", drain.CORDONED: REASON}
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lines.append) == answer
    assert drainer.states(["gpu1", "gpu2", "gpu9"]) == {"gpu1": State(True, REASON), "gpu2": State(False)}

    for _ in range(2):
        assert drainer.undrain("gpu1", REASON, progress=lines.append) == {"returned": True, "reason": ""}
    assert node["spec"] == {}
    assert node["metadata"]["annotations"] == {"site.example/rack": "r1"}


def test_a_disruption_budget_is_waited_for(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.pod("db", NODE)
    cluster.guarded.add(("work", "db"))
    lines: list[str] = []

    def allow() -> None:
        until(lambda: any("disruption budget" in line for line in lines))
        assert ("work", "db") in cluster.pods
        cluster.guarded.clear()

    allowing = threading.Thread(target=allow)
    allowing.start()
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lines.append)["drained"]
    allowing.join()
    assert cluster.evicted == [("work", "db")]


def test_one_that_never_allows_it_is_named_after_the_timeout(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.pod("db", NODE)
    cluster.pod("logs", NODE, "DaemonSet")
    cluster.guarded.add(("work", "db"))
    with pytest.raises(
        DrainFailed, match=r"(?s)gpu1 is not free of work after 1 s of draining: pod work/db\n"
    ) as caught:
        drainer.drain("gpu1", REASON, timeout=1, progress=lambda _: None)
    assert "disruption budget" in caught.value.message
    assert "logs" not in caught.value.message.splitlines()[0]
    assert cluster.nodes[NODE]["spec"] == {"unschedulable": True}
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None)["returned"]


def test_a_pod_that_nothing_would_start_anew_is_waited_for(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.pod("train", NODE, "")
    lines: list[str] = []

    def finish() -> None:
        until(lambda: any("train" in line for line in lines))
        time.sleep(1)
        assert cluster.evicted == []
        cluster.pods["work", "train"]["status"]["phase"] = "Succeeded"

    finishing = threading.Thread(target=finish)
    finishing.start()
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lines.append)["drained"]
    finishing.join()
    assert len(lines) == len(set(lines)), "each thing is told once, however often it is tried"


def test_a_cordon_of_somebody_else_is_kept(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.nodes[NODE]["spec"] = {"unschedulable": True}
    cluster.pod("web", NODE)
    nobody = "cordoned without a reason"
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert answer == {"drained": False, "reason": nobody, "was": nobody}
    assert cluster.evicted == [("work", "web")]
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None) == {"returned": False, "reason": nobody}
    assert cluster.nodes[NODE]["spec"] == {"unschedulable": True}


def test_that_of_another_rollout_is_taken_over(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    drainer.drain("gpu1", OTHER, timeout=30, progress=lambda _: None)
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None) == {"returned": False, "reason": OTHER}
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert answer == {"drained": True, "reason": REASON, "was": OTHER}
    assert drainer.undrain("gpu1", OTHER, progress=lambda _: None) == {"returned": False, "reason": REASON}
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None)["returned"]


def test_a_node_that_another_rollout_takes_between_two_tries_is_left_to_it(
    cluster: Cluster, drainer: drain.Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*_: object) -> None:
        cluster.nodes[NODE]["metadata"]["annotations"][drain.CORDONED] = OTHER
        cluster.touch(NODE)

    cluster.pod("train", NODE, "")
    monkeypatch.setattr(drain.Deadline, "wait", take)
    with pytest.raises(DrainFailed, match="rollout 20261120T0900-0001 has drained this host meanwhile"):
        drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert cluster.nodes[NODE]["metadata"]["annotations"][drain.CORDONED] == OTHER


def test_who_keeps_a_node_out_is_asked_before_it_is_disturbed(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    def look() -> Standing:
        return drainer.look("gpu1", REASON)

    assert look() is Standing.WORKS
    drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert look() is Standing.OURS
    cluster.pod("web", NODE)
    assert look() is Standing.WORKS
    cluster.pods.clear()
    # Nothing keeps this one away from a cordoned node.
    cluster.pod("agent", NODE)
    tolerations = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    cluster.pods["work", "agent"]["spec"]["tolerations"] = tolerations
    assert look() is Standing.OURS
    cluster.pods.clear()
    # Nobody keeps it out: it gets pods as soon as its kubelet answers.
    cluster.node(NODE, ready="Unknown")
    assert look() is Standing.WORKS
    cluster.nodes[NODE]["spec"] = {"unschedulable": True}
    assert look() is Standing.THEIRS
    drainer.drain("gpu1", OTHER, timeout=30, progress=lambda _: None)
    cluster.nodes[NODE]["metadata"]["annotations"][drain.CORDONED] = OTHER
    with pytest.raises(DrainFailed, match="has drained this host meanwhile"):
        look()


def test_a_node_that_changes_meanwhile_is_looked_at_again(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    """Somebody cordons it between our look and our patch; without its resource version that would become ours."""

    def cordon() -> None:
        cluster.nodes[NODE]["spec"]["unschedulable"] = True
        cluster.touch(NODE)

    cluster.meanwhile = cordon
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"] is False
    assert drain.CORDONED not in cluster.nodes[NODE]["metadata"]["annotations"]


def test_a_server_that_is_away_for_a_moment_is_asked_again(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.away = 1
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"]


def test_a_wish_to_stop_ends_the_wait(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.pod("db", NODE)
    cluster.guarded.add(("work", "db"))
    stop, lines = Stop(), list[str]()

    def wish() -> None:
        until(lambda: any("disruption budget" in line for line in lines))
        stop.request()

    wishing = threading.Thread(target=wish)
    wishing.start()
    with stop.scope(), pytest.raises(Interrupted):
        drainer.drain("gpu1", REASON, timeout=60, progress=lines.append)
    wishing.join()
    assert cluster.nodes[NODE]["metadata"]["annotations"][drain.CORDONED] == REASON


def test_before_a_rollout_it_is_asked_whether_all_of_it_is_possible(
    cluster: Cluster, drainer: drain.Kubernetes, tmp_path: Path
) -> None:
    assert drainer.check(["gpu1", "gpu2"]) == []
    cluster.refused |= {("create", "pods/eviction"), ("patch", "nodes")}
    problems = drainer.check(["gpu1", "gpu9"])
    assert problems[0] == "Kubernetes knows no node gpu9.cluster.example (gpu9)"
    assert [line.partition(":")[0] for line in problems[1:]] == [
        "this user of Kubernetes may not patch nodes",
        "this user of Kubernetes may not create pods --subresource=eviction",
    ]
    missing = drain.Kubernetes(["/nowhere/kubectl"], "{host}", tmp_path).check(["gpu1"])
    assert missing == ["cannot ask for Kubernetes' nodes: /nowhere/kubectl is not installed"]


def test_what_does_not_pass_fails_at_once(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    with pytest.raises(DrainFailed, match=r"\(NotFound\)"):
        drainer.drain("gpu9", REASON, timeout=60, progress=lambda _: None)
    cluster.refused.add(("patch", "nodes"))
    with pytest.raises(DrainFailed, match=r"(?s)cannot patch resource") as caught:
        drainer.drain("gpu1", REASON, timeout=60, progress=lambda _: None)
    assert caught.value.hint
    assert cluster.nodes[NODE]["spec"] == {}


def test_a_node_that_is_not_ready_is_out_too(cluster: Cluster, drainer: drain.Kubernetes) -> None:
    cluster.node(NODE, ready="Unknown")
    assert drainer.states(["gpu1"])["gpu1"].out
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"]


def test_a_program_that_is_no_kubectl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetInvalid, match="does not name kubectl: oc"):
        drain.drainer(Drain(by="kubernetes", program=("oc",)), tmp_path)
    drainer = drain.drainer(Drain(by="kubernetes", program=("kubectl", "--context", "prod")), tmp_path)
    assert isinstance(drainer, drain.Kubernetes)


def test_a_kubectl_that_prints_something_else_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho '<html>sign in</html>'\n")
    (tmp_path / "kubectl").chmod(0o755)
    (problem,) = drain.Kubernetes([str(tmp_path / "kubectl")], "{host}", tmp_path).check(["gpu1"])
    assert problem == "cannot ask for Kubernetes' nodes: kubectl printed no JSON: <html>sign in</html>"


# -- An API server of Kubernetes as far as kubectl needs one to cordon, drain and uncordon nodes. Imitated because
# nothing can be had from the distributions' archives or Python's that serves this API: they have kubectl and etcd,
# but no kube-apiserver. kubectl is the real one; what it may rely on is kept here as the API documents it: resource
# versions, merge patches, evictions that a disruption budget refuses with 429, pods that end some time after their
# eviction.


VERBS = ["get", "list", "patch", "create", "delete"]


def _resource(name: str, kind: str, *, namespaced: bool = True, **more: str) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": VERBS, **more}


RESOURCES = {
    "v1": [
        _resource("nodes", "Node", namespaced=False),
        _resource("pods", "Pod"),
        _resource("pods/eviction", "Eviction", group="policy", version="v1"),
    ],
    "apps/v1": [_resource("daemonsets", "DaemonSet")],
    "policy/v1": [_resource("poddisruptionbudgets", "PodDisruptionBudget")],
    "policy/v1beta1": [_resource("poddisruptionbudgets", "PodDisruptionBudget")],
    "authorization.k8s.io/v1": [_resource("selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)],
}


class Cluster:
    """Nodes and pods, and what was asked of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        #: pods whose disruption budget allows no eviction
        self.guarded: set[tuple[str, str]] = set()
        #: verbs and resources that the user may not
        self.refused: set[tuple[str, str]] = set()
        #: seconds from an eviction to a pod's end
        self.grace = 0.5
        self.evicted: list[tuple[str, str]] = []
        #: called before a node is patched, once
        self.meanwhile: Any = None
        #: how many requests are answered with 503 first
        self.away = 0

    def node(self, name: str, *, ready: str = "True") -> None:
        conditions = [{"type": "Ready", "status": ready, "message": "kubelet is posting ready status"}]
        metadata = {"name": name, "uid": name, "annotations": {"site.example/rack": "r1"}}
        self.nodes[name] = {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}
        self.touch(name)

    def touch(self, name: str) -> None:
        self.version += 1
        self.nodes[name]["metadata"]["resourceVersion"] = str(self.version)

    def pod(
        self, name: str, node: str, owner: str = "ReplicaSet", *, phase: str = "Running", **annotations: str
    ) -> None:
        owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "own", "uid": "1", "controller": True}]
        notes = {key.replace("_", "."): value for key, value in annotations.items()}
        metadata = {"name": name, "namespace": "work", "uid": name, "annotations": notes, "resourceVersion": "1"}
        spec = {"nodeName": node, "containers": [], "volumes": [{"name": "scratch", "emptyDir": {}}]}
        pod = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
        if owner:
            metadata["ownerReferences"] = owners
        self.pods["work", name] = pod

    def evict(self, key: tuple[str, str]) -> tuple[int, dict[str, Any]]:
        if key not in self.pods:
            return _status(404, "NotFound", f'pods "{key[1]}" not found')
        if key in self.guarded:
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            return _status(429, "TooManyRequests", text)
        self.evicted.append(key)
        timer = threading.Timer(self.grace, lambda: self.pods.pop(key, None))
        timer.daemon = True
        timer.start()
        self.pods[key]["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def patch(self, name: str, change: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        node = self.nodes[name]
        version = change.get("metadata", {}).get("resourceVersion")
        if version and version != node["metadata"]["resourceVersion"]:
            text = f'Operation cannot be fulfilled on nodes "{name}": the object has been modified'
            return _status(409, "Conflict", text)
        _merge(node, change)
        self.touch(name)
        return 200, _kind(node, "Node")


def _merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    value = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return code, {**value, "message": message}


def _kind(value: dict[str, Any], kind: str, version: str = "v1") -> dict[str, Any]:
    return {"kind": kind, "apiVersion": version, **value}


def _list(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": [_kind(entry, kind) for entry in items]}


def _discovery(path: str) -> dict[str, Any] | None:
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups: dict[str, list[dict[str, str]]] = {}
        for version in RESOURCES:
            if "/" in version:
                row = {"groupVersion": version, "version": version.partition("/")[2]}
                groups.setdefault(version.partition("/")[0], []).append(row)
        rows = [{"name": name, "versions": rows, "preferredVersion": rows[0]} for name, rows in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": rows}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version in RESOURCES:
        rows = RESOURCES[version]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": rows}
    return None


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its parent has it
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        with self.cluster.lock:
            if self.cluster.away:
                self.cluster.away -= 1
                code, value = _status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            else:
                code, value = self._handle(method, url.path, parse_qs(url.query), body)
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, Any]]:
        if method == "GET" and (discovery := _discovery(path)):
            return 200, discovery
        for pattern, handle in (
            (r"/api/v1/nodes", self._nodes),
            (r"/api/v1/nodes/([^/]+)", self._node),
            (r"/api/v1/pods", self._pods),
            (r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(/eviction)?", self._pod),
            (r"/apis/apps/v1/namespaces/([^/]+)/daemonsets/([^/]+)", self._daemonset),
            (r"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review),
        ):
            if match := re.fullmatch(pattern, path):
                answer: tuple[int, dict[str, Any]] = handle(method, match, query, body)
                return answer
        return _status(404, "NotFound", f"the server could not find the requested resource {path}")

    def _nodes(self, *_: Any) -> tuple[int, dict[str, Any]]:
        return 200, _list(list(self.cluster.nodes.values()), "Node")

    def _node(self, method: str, match: re.Match[str], _: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if match[1] not in self.cluster.nodes:
            return _status(404, "NotFound", f'nodes "{match[1]}" not found')
        if method == "PATCH":
            if ("patch", "nodes") in self.cluster.refused:
                return _status(403, "Forbidden", f'nodes "{match[1]}" is forbidden: User "ops" cannot patch resource')
            return self.cluster.patch(match[1], json.loads(body))
        return 200, _kind(self.cluster.nodes[match[1]], "Node")

    def _pods(self, _: str, __: Any, query: dict[str, list[str]], ___: Any) -> tuple[int, dict[str, Any]]:
        name = query.get("fieldSelector", ["spec.nodeName="])[0].removeprefix("spec.nodeName=")
        return 200, _list([pod for pod in self.cluster.pods.values() if pod["spec"]["nodeName"] == name], "Pod")

    def _pod(self, method: str, match: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        key = match[1], match[2]
        if method == "POST" and match[3]:
            return self.cluster.evict(key)
        if key not in self.cluster.pods:
            return _status(404, "NotFound", f'pods "{key[1]}" not found')
        return 200, _kind(self.cluster.pods[key], "Pod")

    def _daemonset(self, _: str, match: re.Match[str], *__: Any) -> tuple[int, dict[str, Any]]:
        return 200, _kind({"metadata": {"name": match[2], "namespace": match[1]}}, "DaemonSet", "apps/v1")

    def _review(self, _: str, __: Any, ___: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if body.startswith(b"k8s\0"):
            # Newer kubectl send protobuf: Unknown.raw → spec → resourceAttributes → verb, …, resource, subresource.
            fields = _fields(_fields(_fields(_fields(body[4:])[2])[2])[1])
            words = [fields.get(number, b"").decode() for number in (2, 5, 6)]
        else:
            attributes = json.loads(body)["spec"]["resourceAttributes"]
            words = [attributes.get(name, "") for name in ("verb", "resource", "subresource")]
        allowed = (words[0], "/".join(filter(None, words[1:]))) not in self.cluster.refused
        return 201, {**_kind({}, "SelfSubjectAccessReview", "authorization.k8s.io/v1"), "status": {"allowed": allowed}}


def _fields(message: bytes) -> dict[int, bytes]:
    """The fields of a protobuf message that have a length."""
    fields, at = {}, 0
    while at < len(message):
        number, at = message[at] >> 3, at + 1
        length = shift = 0
        while True:
            byte, at = message[at], at + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        fields[number], at = message[at : at + length], at + length
    return {number: value for number, value in fields.items() if value}


class Server:
    """It runs; ``program``: the kubectl that speaks to it."""

    def __init__(self, folder: Path, kubectl: str) -> None:
        self.cluster = Cluster()
        handler = type("Request", (_Request,), {"cluster": self.cluster})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        config = folder / "kubeconfig"
        address = f"http://127.0.0.1:{self._server.server_port}"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "imitated", "cluster": {"server": address}}],
                    "users": [{"name": "ops", "user": {}}],
                    "contexts": [{"name": "imitated", "context": {"cluster": "imitated", "user": "ops"}}],
                    "current-context": "imitated",
                }
            )
        )
        self.program = [kubectl, f"--kubeconfig={config}", f"--cache-dir={folder / 'cache'}"]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def until(ready: Any) -> None:
    assert wait_for(ready)
