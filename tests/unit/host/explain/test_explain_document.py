"""What is said of a whole host: the kinds of storage, and the explanation as data and as text."""

from __future__ import annotations

import json

from gdsdeploy.host.explain import as_document, explain
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.host_facts import stack
from tests.unit.host import cases
from tests.unit.host.explain.capable_host import (
    BARE,
    PROVISIONED,
    with_libcufile,
)


def test_as_data() -> None:
    facts = facts_from(PROVISIONED)
    report = as_document(explain(facts, stack(facts)))
    assert json.loads(json.dumps(report)) == report
    keys = {"version", "host", "collected_at", "stack", "mounts", "kinds", "processes", "foreign", "unseen"}
    assert set(report) == keys
    assert [name for name, _ in report["stack"]] == ["os", "kernel", "driver", "nvidia-fs", "libcufile"]
    mount = next(entry for entry in report["mounts"] if entry["mount"] == "/mnt/nvme")
    assert (mount["path"], mount["gpu"], mount["devices"]) == ("compat", False, ["nvme0n1"])
    assert set(mount["causes"][0]) == {"id", "what", "fix", "evidence", "reference"}
    assert "not proven" not in {entry["path"] for entry in report["mounts"]}


def test_what_was_said_in_full_is_not_said_again() -> None:
    text = " ".join(render(explain(facts_from(with_libcufile(BARE)), ())).split())
    assert text.count("[nvidia.not-installed] seen modprobe nvidia-current-open: ") == 1
    assert text.count("[nvidia.not-installed], see above") == 1
    assert text.count("do install it: gdsdeploy provision") == 2, "once for the driver and once for nvidia-fs"


def test_what_was_not_proven_says_why() -> None:
    document = cases.read("explain/faults_gpus")["IOMMU of the disk"].document()
    explanation = explain(facts_from(document), (), "/mnt/nvme")
    assert isinstance(explanation.mounts[0].path.path, Unknown)
    text = render(explanation)
    assert "/mnt/nvme  NOT PROVEN: an IOMMU is between 0000:00:02.0" in text
    assert "Not proven because of this:\n  1. an IOMMU" in text
    assert "Kinds of storage" not in text
