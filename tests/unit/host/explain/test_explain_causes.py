"""Causes have words, and every documented one is seen by its own fault; tests/cases/explain has the faults."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from gdsdeploy.host.explain import modules
from gdsdeploy.host.facts import facts_from
from tests.unit.host import cases
from tests.unit.host.explain.capable_host import PROVISIONED
from tests.unit.host.explain.faults import FAULTS, explained
from tests.unit.host.patches import patched

DOCS = Path(__file__).parents[4] / "docs" / "explain.md"


@pytest.mark.parametrize("name", FAULTS)
def test_a_cause_has_words(name: str) -> None:
    path = explained(FAULTS[name].document())
    for cause in (*path.causes, *path.suspects, *path.notes):
        assert all((cause.what, cause.fix, cause.evidence)), cause
        assert "{" not in cause.what + cause.fix, cause
        assert not re.search(r"https?:|www\.", cause.reference), "documents are named, not linked"


#: Ids that begin with the name of a module or of a storage stack are documented once for all of them.
OF_MODULES = (
    "forbidden|not-on-container-host|not-installed|not-built|other-kernel|proprietary-driver|symbol-mismatch"
    "|refused-signature|stub|no-gpu|nouveau|driver-missing|not-autoloaded|not-loaded"
)
GENERAL = (
    (re.compile(rf"^(nvidia-fs|nvidia-peermem|nvidia)\.(?=({OF_MODULES})$)"), "MODULE."),
    (
        re.compile(
            r"^(nvme|nvme_rdma|rpcrdma|lnet|beegfs|mmfslinux|scatefs|nvmeib_common|sfxvdriver|scsi_mod)\.(?=no-hooks|not-registered)"
        ),
        "STACK.",
    ),
)


def general(ident: str) -> str:
    for pattern, name in GENERAL:
        ident = pattern.sub(name, ident)
    return ident


def test_every_documented_cause_is_seen_and_every_seen_one_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w[\w-]*\.[\w-]+)` \|", DOCS.read_text(), re.MULTILINE))
    elsewhere = {"nvidia-peermem.other-rdma-core"}  # see below
    # See test_explain_advice.py.
    elsewhere |= {"platform.far-gpu", "storage.queue-depth", "storage.spread"}
    elsewhere |= {f"rdma.{name}" for name in ("link-down", "policy", "no-routing")}
    assert documented == {general(ident) for ident in cases.causes()} | elsewhere


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_peer_memory_of_another_rdma_core_is_told_from_that_of_another_driver(module: str) -> None:
    said = f"[   99.000000] {module}: disagrees about version of symbol"
    document = patched(copy.deepcopy(PROVISIONED), {"commands": {"journal": {"status": 1}}})
    of_driver = patched(document, {"$log": [f"{said} nvidia_p2p_get_pages"]})
    of_core = patched(of_driver, {"$log": [f"{said} ib_register_peer_memory_client"]})
    by_driver, by_core = (
        modules.not_loaded(facts, modules.peermem(facts)) for facts in (facts_from(of_driver), facts_from(of_core))
    )
    assert by_driver.id != by_core.id == "nvidia-peermem.other-rdma-core"
    assert "ib_register_peer_memory_client" in by_core.evidence[0]
    assert "OFED" in by_core.what
    assert "against the OFED or DOCA that is installed" in by_core.fix
