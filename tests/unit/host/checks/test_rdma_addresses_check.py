"""The check of RDMA addresses on a host with an adapter and a mount whose data libcufile moves by RDMA."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN
from tests.unit.host.checks.test_topology_checks import EXPECTATION, judge
from tests.unit.host.explain.test_explain_rdma import ADDRESS, settings, with_rdma

IDENT = "rdma.addresses"


@pytest.mark.parametrize(
    ("filesystem", "mode", "verdict"),
    [
        ("wekafs", "nvidia-fs", FAIL),
        ("wekafs", "compat", NOT_APPLICABLE),
        ("gpfs", "p2pdma", FAIL),
        ("gpfs", "nvidia-fs", NOT_APPLICABLE),
        ("ext4", "nvidia-fs", NOT_APPLICABLE),
    ],
)
def test_a_filesystem_that_needs_addresses_fails_without_them(filesystem: str, mode: str, verdict: str) -> None:
    document = with_rdma(filesystem)
    settings(addresses=())(document)
    finding = judge(document, IDENT, replace(EXPECTATION, rdma="dmabuf", mode=mode))
    assert finding.verdict == verdict
    if verdict == FAIL:
        assert finding.found == f"no address of an RDMA adapter is listed for /mnt/nvme ({filesystem})"


def test_addresses_of_another_filesystem_dont_count() -> None:
    document = with_rdma()
    settings(addresses=(), nfs={"rdma_dev_addr_list": [ADDRESS]})(document)
    assert judge(document, IDENT, replace(EXPECTATION, rdma="dmabuf")).verdict == FAIL
    settings(addresses=(), weka={"rdma_dev_addr_list": [ADDRESS]})(document)
    assert judge(document, IDENT, replace(EXPECTATION, rdma="dmabuf")).verdict == PASS


def test_unknown_mounts_decide_nothing() -> None:
    document = with_rdma()
    settings(addresses=())(document)
    del document["files"]["/proc/self/mountinfo"]
    assert judge(document, IDENT, replace(EXPECTATION, rdma="dmabuf")).verdict == UNKNOWN
