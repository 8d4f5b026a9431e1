"""What keeps a mount off the direct path: fault → its case in tests/cases/explain/faults_*.yml."""

from __future__ import annotations

from gdsdeploy.host.explain import explain
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.subjects.condition import COMPAT
from gdsdeploy.host.subjects.path import Path
from tests.unit.host import cases
from tests.unit.host.cases import Case
from tests.unit.host.explain.capable_host import MOUNT, Document

SUBJECTS = ("modules", "configuration", "storage", "gpus", "p2pdma", "grace")
FAULTS: dict[str, Case] = {
    name: case for subject in SUBJECTS for name, case in cases.read(f"explain/faults_{subject}").items()
}
#: Hosts where P2PDMA is asked for.
FOR_P2PDMA = ("p2pdma", "grace")
#: Those with which the mount falls back to CPU memory.
FALLING_BACK = [name for name, case in FAULTS.items() if case.steps[0]["mounts"][MOUNT]["path"] == COMPAT]


def explained(document: Document) -> Path:
    """The path of the mount."""
    mounts = explain(facts_from(document), (), MOUNT).mounts
    assert [mount.mount.mount_point for mount in mounts] == [MOUNT]
    return mounts[0].path
