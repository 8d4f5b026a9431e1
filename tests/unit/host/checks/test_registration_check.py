"""The check of registrations of GPU memory, on a real host with a GPU that gets an adapter and a trial's record."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from tests.unit.host.checks.test_topology_checks import EXPECTATION, GPU, H100, Document, judge
from tests.unit.host.explain.test_explain_rdma import settings, with_rdma
from tests.unit.rdma_host import information

PEERMEM, DMABUF = replace(EXPECTATION, rdma="peermem"), replace(EXPECTATION, rdma="dmabuf")
IDENT = "rdma.registration"


def event(kind: str, **words: Any) -> dict[str, Any]:
    return {"event": kind, **words}


def outcome(way: str, ok: bool, **words: Any) -> dict[str, Any]:
    where = {} if way == "host" else {"gpu": GPU}
    return event("registration", adapter="mlx5_0", by=way, ok=ok, **where, **({"deregistered": ""} if ok else words))


START = [event("start"), event("gpus", gpus=[GPU]), event("adapters", adapters=["mlx5_0"])]
GOOD = [
    *START,
    outcome("host", True),
    event("export", gpu=GPU, status=0),
    outcome("peermem", False, errno="EFAULT"),
    outcome("dmabuf", True),
    event("end"),
]


def host(events: list[dict[str, Any]], status: int = 0) -> Document:
    document = copy.deepcopy(H100)
    document["listings"]["/sys/class/infiniband"] = ["mlx5_0"]
    stdout = "\n".join(json.dumps(one) for one in events)
    run = {"argv": [], "status": status, "stdout": stdout, "stderr": "", "seconds": 1.0}
    document["commands"]["rdma-registration"] = run
    return document


def result(events: list[dict[str, Any]], expectation: Expectation, status: int = 0) -> Finding:
    return judge(host(events, status), IDENT, expectation)


def test_the_way_that_the_fleet_uses_decides() -> None:
    good = result(GOOD, DMABUF)
    assert (good.verdict, good.evidence) == (PASS, [f"GPU {GPU} with mlx5_0: ok"])
    bad = result(GOOD, PEERMEM)
    assert bad.verdict == FAIL
    assert bad.found == f"1 of 1 registrations fail; the first: GPU {GPU} with mlx5_0: ibv_reg_mr: EFAULT"
    assert "rdma: dmabuf" in bad.hint


@pytest.mark.parametrize(
    ("events", "status", "reason"),
    [
        ([], 0, "ended with status 0: it printed no error"),
        ([event("not loaded", reason="libcuda.so.1: cannot open")], 3, "a library was not loaded: libcuda.so.1"),
        ([event("no GPU", call="cuInit", status=999)], 4, "CUDA gives no GPU: cuInit returned 999"),
        ([*START, outcome("host", False, errno="ENOMEM")], 0, "doesn't register memory of the host either: ENOMEM"),
        ([*START, outcome("host", True), event("no memory", gpu=GPU, status=2)], 0, "no memory could be allocated"),
        ([*START, outcome("host", True)], 124, "did not return in time"),
        ([*START[:2], event("no adapter", adapter="mlx5_0", call="ibv_open_device", errno="EACCES"), START[2]], 0, ""),
    ],
)
def test_a_trial_that_did_not_come_to_it_proves_nothing(events: list[dict[str, Any]], status: int, reason: str) -> None:
    finding = result(events, DMABUF, status)
    assert finding.verdict == UNKNOWN
    assert reason in finding.found


def test_evidence_without_a_trial_proves_nothing() -> None:
    document = host(GOOD)
    del document["commands"]["rdma-registration"]
    assert judge(document, IDENT, DMABUF).verdict == UNKNOWN


def test_adapters_that_are_down_do_not_count() -> None:
    document = host(GOOD)
    document["listings"]["/sys/class/infiniband"] = ["mlx5_0", "mlx5_1"]
    for number, state in (("0", "1: DOWN"), ("1", "4: ACTIVE")):
        folder = f"/sys/class/infiniband/mlx5_{number}"
        document["listings"][f"{folder}/device/net"] = [f"ens{number}"]
        document["listings"][f"{folder}/ports"] = ["1"]
        document["files"][f"{folder}/ports/1/state"] = state + "\n"
    document["commands"]["ip-address"] = {"argv": [], "status": 0, "stdout": "[]", "stderr": "", "seconds": 0.1}
    run = document["commands"]["rdma-registration"]
    run["stdout"] = run["stdout"].replace('["mlx5_0"]', '["mlx5_0", "mlx5_1"]')
    assert judge(document, IDENT, PEERMEM).verdict == UNKNOWN, "only mlx5_1 is in use, and it was not tried"


def test_without_hardware_nothing_is_asked() -> None:
    document = host(GOOD)
    document["listings"]["/sys/class/infiniband"] = []
    assert judge(document, IDENT, DMABUF).found == "not proven: this host has no RDMA adapter"
    assert judge(host(GOOD), IDENT, EXPECTATION).found == "not needed: the fleet asks for no RDMA"


@pytest.mark.parametrize(("listed", "verdict"), [(["192.0.2.9"], PASS), (["192.0.2.1"], FAIL), ([], FAIL)])
def test_adapters_that_cufile_json_lists_count(listed: list[str], verdict: str) -> None:
    document = with_rdma()
    settings(addresses=listed)(document)
    folder = "/sys/class/infiniband/mlx5_1"
    document["listings"]["/sys/class/infiniband"].append("mlx5_1")
    document["listings"] |= {folder + "/device/net": ["ens2"], folder + "/ports": ["1"]}
    document["links"][folder + "/device"] = "../../../0000:00:03.0"
    document["files"][folder + "/ports/1/state"] = "4: ACTIVE\n"
    run = document["commands"]["ip-address"]
    rows = [*json.loads(run["stdout"]), {"ifname": "ens2", "addr_info": [information("192.0.2.9/24")]}]
    run["stdout"] = json.dumps(rows)
    start = [event("start"), event("gpus", gpus=[GPU]), event("adapters", adapters=["mlx5_0", "mlx5_1"])]
    results = [outcome("dmabuf", False, errno="EFAULT"), {**outcome("dmabuf", True), "adapter": "mlx5_1"}]
    document["commands"]["rdma-registration"] = host([*start, *results])["commands"]["rdma-registration"]
    assert judge(document, IDENT, DMABUF).verdict == verdict
