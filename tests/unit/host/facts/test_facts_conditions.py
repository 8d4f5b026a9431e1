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
from gdsdeploy.host.facts.proof import proofs
from gdsdeploy.host.facts.storage import (
    CACHE,
    CHECKSUMS,
    COW,
    FILESYSTEM,
    INLINE,
    LVM,
    MULTI,
    RAID,
    READ_AHEAD,
    REPLICATION,
    SERVED,
    TIERING,
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


@pytest.mark.parametrize(
    ("options", "transport"),
    [
        ("rw,vers=4.1,proto=rdma,port=20049", "RDMA"),
        ("rw,vers=3,proto=tcp,nconnect=8", "vers=3 proto=tcp nconnect=8"),
    ],
)
def test_nfs_says_its_transport_and_leaves_the_rest_to_its_server(options: str, transport: str) -> None:
    results = conditions_of(
        line("nfs4", options), files={"/proc/modules": "rpcrdma 1 0 - Live 0x0\nnfsv4 1 0 - Live 0x0\n"}
    )
    assert results[TRANSPORT].state == transport
    assert results[TRANSPORT].evidence[1] == "/proc/modules: nfsv4, rpcrdma"
    assert results[CACHE].state == "off"
    for name in {*FILESYSTEM, RAID} - {CACHE}:
        state = results[name].state
        assert isinstance(state, Unknown)
        assert state.reason == "the servers of nfs4 decide it, and do not say"


@pytest.mark.parametrize("kind", sorted(SERVED))
def test_every_network_filesystem_is_known_by_its_mount(kind: str) -> None:
    results = conditions_of(line(kind, "rw"))
    assert isinstance(results[RAID].state, Unknown)
    assert results[TRANSPORT].evidence[0].endswith(f"type {kind} (rw,noatime)")
    if kind not in ("nfs", "nfs4"):
        assert isinstance(results[TRANSPORT].state, Unknown)


@pytest.mark.parametrize(
    ("kind", "option"), [("nfs4", "fsc"), ("nfs", "fsc=data"), ("ceph", "fsc"), ("9p", "cache=fscache")]
)
def test_a_mount_with_fscache_has_a_second_cache(kind: str, option: str) -> None:
    result = conditions_of(line(kind, f"rw,{option}"))[CACHE]
    assert (result.state, result.evidence[0].endswith(f"type {kind} (rw,noatime,{option}): fscache")) == (
        "possible",
        True,
    )
    assert conditions_of(line(kind, "rw"))[CACHE].state == "off"


def test_the_page_pool_of_spectrum_scale_serves_some_direct_io() -> None:
    result = conditions_of(line("gpfs", "rw"))[CACHE]
    assert (result.state, "page pool" in result.evidence[0]) == ("possible", True)


@pytest.mark.parametrize(
    ("version", "state"), [("2.2.7-1\n", "on"), ("2.3.0-rc1\n", "possible"), ("3.0.0\n", "possible")]
)
def test_zfs_before_2_3_serves_direct_io_from_its_cache(version: str, state: str) -> None:
    assert conditions_of(line("zfs", "rw"), files={"/sys/module/zfs/version": version})[CACHE].state == state
    assert isinstance(conditions_of(line("zfs", "rw"))[CACHE].state, Unknown)


def lustre(checksums: list[str], layout: dict[str, Any]) -> dict[str, Condition]:
    folder = "/sys/fs/lustre/osc"
    names = [f"fs-OST000{number}-osc-ffff" for number in range(len(checksums))]
    return conditions_of(
        line("lustre", "rw,flock"),
        files={f"{folder}/{name}/checksums": value for name, value in zip(names, checksums, strict=True)},
        listings={folder: names},
        commands={"lfs-getstripe:/mnt": {"argv": [], "status": 0, "stderr": "", "seconds": 0.1, **layout}},
    )


#: As lfs prints the default layout of a folder, with and without a part on the metadata servers.
ON_MDT = """/mnt
  lcm_layout_gen:    0
      lcme_id:             N/A
      stripe_count:  0       stripe_size:   65536       pattern:       mdt       stripe_offset: 0
      stripe_count:  4       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1
"""
STRIPED = "stripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"


def test_lustre_shows_checksums_and_data_on_metadata_servers() -> None:
    results = lustre(["0", "1"], {"stdout": ON_MDT})
    assert (results[CHECKSUMS].state, results[INLINE].state) == ("possible", "possible")
    assert results[INLINE].evidence == ("lfs getstripe -d /mnt: pattern mdt",)
    results = lustre(["0", "0"], {"stdout": STRIPED})
    assert (results[CHECKSUMS].state, results[INLINE].state) == ("off", "off")


def test_lustre_that_does_not_answer_leaves_it_open() -> None:
    results = lustre([], {"stdout": "", "status": 124, "stderr": "timed out"})
    assert isinstance(results[INLINE].state, Unknown)
    assert isinstance(results[CHECKSUMS].state, Unknown)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("cache 253:1 253:2 253:3", TIERING),
        ("writecache s 8:1 8:2", TIERING),
        ("thin 253:4 1", COW),
        ("snapshot 253:1", COW),
    ],
)
def test_the_table_of_device_mapper_shows_what_a_volume_s_name_does_not(table: str, name: str) -> None:
    result = stacked("LVM-abc", tables=f"other: 0 8 linear 8:1 0\nlab-data: 0 204800 {table} 0\n")
    assert (result[name].state, result[name].evidence[0]) == ("on", f"dmsetup table: dm-0: {table.split()[0]}")
    assert {stacked("LVM-abc", tables="lab-data: 0 8 linear 8:1 0\n")[other].state for other in (TIERING, COW)} == {
        "off"
    }


@pytest.mark.parametrize(("name", "condition"), [("bcache0", TIERING), ("drbd1", REPLICATION)])
def test_a_device_over_disks_is_known_by_its_name(name: str, condition: str) -> None:
    result = stacked("", name)
    assert (result[condition].state, result[condition].evidence) == ("on", (f"/sys/dev/block/253:0: {name}",))


def test_read_ahead_is_shown_and_decides_nothing() -> None:
    assert stacked("LVM-abc")[READ_AHEAD].state == "128 KiB, for buffered reads only"


def stacked(uuid: Any, name: str = "dm-0", tables: str | None = None) -> dict[str, Condition]:
    link = "/sys/dev/block/253:0"
    texts: dict[str, Any] = {f"{link}/dm/uuid": uuid, f"/proc/fs/ext4/{name}/options": "rw\ndata=ordered\n"}
    texts |= {f"{link}/dm/name": "lab-data\n", f"{link}/queue/read_ahead_kb": "128\n"}
    shown = {"argv": [], "status": 0, "stdout": tables or "", "stderr": "", "seconds": 0.1}
    absent: dict[str, Any] = {f"{link}/partition": {"error": "ENOENT"}}
    return conditions_of(
        line("ext4", "rw", "253:0", "/dev/mapper/data"),
        files={**texts, **absent},
        links={link: f"../../devices/virtual/block/{name}"},
        listings={f"{link}/slaves": []},
        commands={} if tables is None else {"dmsetup-table": shown},
        inodes={"/mnt": 0x80000},
        features={name: {"compat": 0, "incompat": 0, "ro_compat": 0}},
    )


@pytest.mark.parametrize(
    ("uuid", "name"),
    [("mpath-3600", MULTI), ("LVM-abc", LVM), ("CRYPT-LUKS2-ab", "encryption"), ("VDO-1", "deduplication")],
)
def test_device_mapper_says_what_it_is(uuid: str, name: str) -> None:
    result = stacked(uuid)
    assert (result[name].state, result[name].evidence) == ("on", (f"/sys/dev/block/253:0/dm/uuid: {uuid}",))
    others = {LVM, MULTI, RAID, "encryption", "deduplication"} - {name}
    assert {result[other].state for other in others} == {"off"}


def test_a_layer_that_does_not_say_is_not_taken_for_none() -> None:
    result = stacked({"error": "EACCES"})
    for name in (LVM, MULTI, RAID, "encryption", "checksums"):
        assert isinstance(result[name].state, Unknown), name
    assert result["data journalling"].state == "off"


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
