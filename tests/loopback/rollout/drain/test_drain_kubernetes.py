"""Drains by the real kubectl, against an imitated API server (see there why it is one)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, FleetInvalid, Interrupted
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain
from gdsdeploy.rollout.drain import State, kubernetes, reason_of
from gdsdeploy.run import which
from tests.loopback.rollout.drain.imitated_kubernetes import Cluster, Server, until

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
def drainer(server: Server, tmp_path: Path) -> kubernetes.Kubernetes:
    return kubernetes.Kubernetes(server.program, "{host}.cluster.example", tmp_path, pause=0.1, patience=2)


def test_a_node_is_cordoned_emptied_and_brought_back(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    cluster.pod("web", NODE)
    cluster.pod("logs", NODE, "DaemonSet")
    cluster.pod("static", NODE, "Node", kubernetes_io="")
    cluster.pods["work", "static"]["metadata"]["annotations"] = {kubernetes.MIRROR: "x"}
    cluster.pod("elsewhere", "gpu2.cluster.example")
    lines: list[str] = []
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lines.append)
    assert answer == {"drained": True, "reason": REASON, "was": ""}
    assert cluster.evicted == [("work", "web")]
    assert sorted(cluster.pods) == [("work", "elsewhere"), ("work", "logs"), ("work", "static")]
    assert any("evicting pod work/web" in line for line in lines), lines
    node = cluster.nodes[NODE]
    assert node["spec"] == {"unschedulable": True}
    assert node["metadata"]["annotations"] == {"site.example/rack": "r1", kubernetes.CORDONED: REASON}
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lines.append) == answer
    assert drainer.states(["gpu1", "gpu2", "gpu9"]) == {"gpu1": State(True, REASON), "gpu2": State(False)}

    for _ in range(2):
        assert drainer.undrain("gpu1", REASON, progress=lines.append) == {"returned": True, "reason": ""}
    assert node["spec"] == {}
    assert node["metadata"]["annotations"] == {"site.example/rack": "r1"}


def test_a_disruption_budget_is_waited_for(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
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


def test_one_that_never_allows_it_is_named_after_the_timeout(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
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


def test_a_pod_that_nothing_would_start_anew_is_waited_for(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
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


def test_a_cordon_of_somebody_else_is_kept(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    cluster.nodes[NODE]["spec"] = {"unschedulable": True}
    cluster.pod("web", NODE)
    nobody = "cordoned without a reason"
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert answer == {"drained": False, "reason": nobody, "was": nobody}
    assert cluster.evicted == [("work", "web")]
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None) == {"returned": False, "reason": nobody}
    assert cluster.nodes[NODE]["spec"] == {"unschedulable": True}


def test_that_of_another_rollout_is_taken_over(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    drainer.drain("gpu1", OTHER, timeout=30, progress=lambda _: None)
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None) == {"returned": False, "reason": OTHER}
    answer = drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)
    assert answer == {"drained": True, "reason": REASON, "was": OTHER}
    assert drainer.undrain("gpu1", OTHER, progress=lambda _: None) == {"returned": False, "reason": REASON}
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None)["returned"]


def test_a_node_that_changes_meanwhile_is_looked_at_again(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    """Somebody cordons it between our look and our patch; without its resource version that would become ours."""

    def cordon() -> None:
        cluster.nodes[NODE]["spec"]["unschedulable"] = True
        cluster.touch(NODE)

    cluster.meanwhile = cordon
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"] is False
    assert kubernetes.CORDONED not in cluster.nodes[NODE]["metadata"]["annotations"]


def test_a_server_that_is_away_for_a_moment_is_asked_again(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    cluster.away = 1
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"]


def test_a_wish_to_stop_ends_the_wait(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
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
    assert cluster.nodes[NODE]["metadata"]["annotations"][kubernetes.CORDONED] == REASON


def test_before_a_rollout_it_is_asked_whether_all_of_it_is_possible(
    cluster: Cluster, drainer: kubernetes.Kubernetes, tmp_path: Path
) -> None:
    assert drainer.check(["gpu1", "gpu2"]) == []
    cluster.refused |= {("create", "pods/eviction"), ("patch", "nodes")}
    problems = drainer.check(["gpu1", "gpu9"])
    assert problems[0] == "Kubernetes knows no node gpu9.cluster.example"
    assert [line.partition(":")[0] for line in problems[1:]] == [
        "this user of Kubernetes may not patch nodes",
        "this user of Kubernetes may not create pods --subresource=eviction",
    ]
    missing = kubernetes.Kubernetes(["/nowhere/kubectl"], "{host}", tmp_path).check(["gpu1"])
    assert missing == ["cannot ask for Kubernetes' nodes: /nowhere/kubectl is not installed"]


def test_what_does_not_pass_fails_at_once(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    with pytest.raises(DrainFailed, match=r"\(NotFound\)"):
        drainer.drain("gpu9", REASON, timeout=60, progress=lambda _: None)
    cluster.refused.add(("patch", "nodes"))
    with pytest.raises(DrainFailed, match=r"(?s)cannot patch resource") as caught:
        drainer.drain("gpu1", REASON, timeout=60, progress=lambda _: None)
    assert caught.value.hint
    assert cluster.nodes[NODE]["spec"] == {}


def test_a_node_that_is_not_ready_is_out_too(cluster: Cluster, drainer: kubernetes.Kubernetes) -> None:
    cluster.node(NODE, ready="Unknown")
    assert drainer.states(["gpu1"])["gpu1"].out
    assert drainer.drain("gpu1", REASON, timeout=30, progress=lambda _: None)["drained"]


def test_a_program_that_is_no_kubectl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetInvalid, match="does not name kubectl: oc"):
        drain.drainer(Drain(by="kubernetes", program=("oc",)), tmp_path)
    drainer = drain.drainer(Drain(by="kubernetes", program=("kubectl", "--context", "prod")), tmp_path)
    assert isinstance(drainer, kubernetes.Kubernetes)
