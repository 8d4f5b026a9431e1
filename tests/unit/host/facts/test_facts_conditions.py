"""What mounts say of themselves; real ones are in tests/loopback/host/odirect, network filesystems and layers are here.

Those need servers, clients and drivers that are not to be had, so their lines of mountinfo and sysfs are made up.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.processes import proofs
from gdsdeploy.host.facts.storage import (
    RAID,
    SERVED,
    TRANSPORT,
    Condition,
    audits,
    conditions,
    storage_facts,
)
from gdsdeploy.host.facts.unknown import Unknown


def conditions_of(line: str, **sections: Any) -> dict[str, Condition]:
    files = {"/proc/self/mountinfo": line + "\n", **sections.pop("files", {})}
    document = Document({"files": files, **sections})
    facts = storage_facts(document)
    assert not isinstance(facts.mounts, Unknown)
    return {condition.name: condition for condition in conditions(document, facts, facts.mounts["/mnt"], "/mnt")}


def line(kind: str, options: str, number: str = "0:99", source: str = "server:/export") -> str:
    return f"40 29 {number} / /mnt rw,noatime shared:1 - {kind} {source} {options}"


@pytest.mark.parametrize("kind", sorted(SERVED))
def test_every_network_filesystem_is_known_by_its_mount(kind: str) -> None:
    results = conditions_of(line(kind, "rw"))
    assert isinstance(results[RAID].state, Unknown)
    assert results[TRANSPORT].evidence[0].endswith(f"type {kind} (rw,noatime)")
    if kind not in ("nfs", "nfs4"):
        assert isinstance(results[TRANSPORT].state, Unknown)


RECORDS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["trials", "result", "read", "alignment", "memory", "error"]), inner)
    ),
    max_leaves=10,
)


@given(RECORDS, RECORDS)
def test_records_of_any_shape_are_read(odirect: Any, commands: Any) -> None:
    document = Document({"odirect": {"/mnt": odirect}, "commands": {"cufile-proof": commands}})
    audits(document)
    proofs(document)


@given(st.lists(st.sampled_from(["start", "gpus", "open", "begin", "pair", "end"]), max_size=6), RECORDS, st.integers())
def test_lines_of_any_shape_are_read(events: list[str], value: Any, status: int) -> None:
    where = {"mount": "/mnt", "gpu": "x", "mounts": value if status % 2 else ["/mnt"], "gpus": value or ["x"]}
    lines = "\n".join(json.dumps({"result": value, "read": value, "log": value, **where, "event": e}) for e in events)
    record = {"argv": [], "status": status, "stdout": lines, "stderr": "", "seconds": 1}
    for entries in proofs(Document({"commands": {"cufile-proof": record, "cufile-proof-compat": record}})).values():
        assert all(entry.path == "broken" or isinstance(entry.path, Unknown) for entry in entries)
