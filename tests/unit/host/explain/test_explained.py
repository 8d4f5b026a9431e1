"""What is said of a host: causes have words and are documented, and all of it is data and text.

tests/cases/explain has the faults with their causes; process.yml there has what is said of a process.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.explain import NoSuchMountError, as_document, explain, render, render_process
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.model import causes
from gdsdeploy.host.subjects import programs, rdma, topology
from gdsdeploy.host.subjects.condition import Cause, listed_cause, numbers
from gdsdeploy.host.subjects.stack import stack
from tests.unit.host import cases
from tests.unit.host.checks.changes import GOOD
from tests.unit.host.explain.capable_host import (
    BARE,
    MOUNT,
    PROVISIONED,
    capable,
    with_gpu,
    with_libcufile,
)
from tests.unit.host.explain.faults import FAULTS, explained
from tests.unit.host.patches import patched
from tests.unit.host.test_tables import helps_without_a_fleet
from tests.unit.rdma_host import CARDS, PCI, host, place

DOCS = Path(__file__).parents[4] / "docs" / "explain.md"


@cache
def seen_on_hosts() -> tuple[Cause, ...]:
    """Every cause of every host with one fault."""
    paths = [explained(fault.document()) for fault in FAULTS.values()]
    return tuple(cause for path in paths for cause in (*path.causes, *path.suspects, *path.notes))


def test_a_cause_has_words() -> None:
    for cause in seen_on_hosts():
        assert all((cause.what, cause.fix, cause.evidence)), cause
        assert "{" not in cause.what + cause.fix, cause
        assert helps_without_a_fleet(cause.fix), cause
        assert not re.search(r"https?:|www\.", cause.reference), "documents are named, not linked"


#: What a host may lack: the patch that takes it away.
LACKING: dict[str, dict[str, Any]] = {
    "libcufile": {"commands": {"ldconfig": {"stdout": ""}}},
    "a driver": {"files": {"/proc/driver/nvidia/version": {"error": "ENOENT"}}},
}


@pytest.mark.parametrize("part", LACKING)
def test_of_a_part_that_is_not_there_no_version_is_named(part: str) -> None:
    for name, fault in cases.read("explain/faults_p2pdma").items():
        document = {**fault.document()}
        for section, entries in LACKING[part].items():
            document[section] = {**document[section], **entries}
        text = render(explain(facts_from(document), (), MOUNT))
        assert not re.search(r"\bNone\b", text), (name, text)


def test_what_keeps_any_program_from_the_gpu_comes_first() -> None:
    document = with_gpu(capable())
    assert explain(facts_from(document), ()).first == ()
    without = patched(document, {"files": {"/proc/driver/nvidia/version": {"$set": {"error": "ENOENT"}}}})
    (cause,) = explain(facts_from(without), ()).first
    assert cause.what.startswith("the nvidia module is not loaded")
    wsl = patched(PROVISIONED, {"files": {"/proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2\n"}})
    assert explain(facts_from(PROVISIONED), ()).first[0].id == "gpu.none"
    assert explain(facts_from(wsl), ()).first == (), "WSL has GPUs that are no PCI devices"


#: fstab's lines of a host on which nothing is mounted at /srv.
FSTAB = {"excerpts": {"/etc/fstab": {"pattern": "^[^#]", "lines": ["UUID=1 / ext4", "UUID=2 /srv/the\\040data xfs"]}}}
GONE = {"error": "ENOENT"}


@pytest.mark.parametrize(
    ("links", "path", "says"),
    [
        (
            {"/mnt/nvme/a/b": GONE, "/mnt/nvme/a": GONE, "/mnt/nvme": "/mnt/nvme"},
            "/mnt/nvme/a/b",
            "there is no /mnt/nvme/a/b, and its nearest parent that exists is /mnt/nvme; these are mounted: /, /mnt",
        ),
        ({"/srv/the data/x": GONE, "/srv/the data": "/srv/the data"}, "/srv/the data/x", "and this isn't mounted"),
        ({"/srv/the data": "/srv/the data"}, "/srv/the data", "/etc/fstab has 'UUID=2 /srv/the\\\\040data xfs'"),
    ],
)
def test_of_what_is_not_there_it_says_what_is(links: dict[str, Any], path: str, says: str) -> None:
    document = patched(PROVISIONED, {"links": links, **FSTAB})
    with pytest.raises(NoSuchMountError) as raised:
        explain(facts_from(document), (), path)
    assert says in str(raised.value)


def test_a_path_lies_on_the_mount_where_its_links_end() -> None:
    document = patched(PROVISIONED, {"links": {"/data/x": "/mnt/nvme/x"}, **FSTAB})
    (explained_mount,) = explain(facts_from(document), (), "/data/x").mounts
    assert (explained_mount.mount.mount_point, explained_mount.requested) == ("/mnt/nvme", "/data/x")


@pytest.mark.parametrize("options", ["rw\n", "rw\ndata=writeback\n", "rw\ndata=journal\n"])
def test_nobody_can_unmount_the_root(options: str) -> None:
    document = patched(PROVISIONED, {"files": {"/proc/fs/ext4/vda1/options": options}})
    (root,) = explain(facts_from(document), (), "/").mounts
    (fix,) = [cause.fix for cause in root.path.causes if cause.id == "ext4.not-ordered"]
    assert fix.startswith("use another mount, or ")
    assert "unmount" not in fix


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
    # By tests of their own, below.
    elsewhere = {"nvidia-peermem.other-rdma-core", "storage.spread"}
    elsewhere |= {f"rdma.{name}" for name in ("link-down", "policy", "no-routing")}
    assert documented == {general(ident) for ident in cases.causes()} | elsewhere


#: Fixes that name this host's own file, disk, bridge or container, where a log's can't.
OF_THE_HOST = {
    *("cufile.denied", "cufile.no-compat", "cufile.p2pdma-half-set", "cufile.refused", "driver.no-static-bar1"),
    *("filesystem.kind", "filesystem.not-taken", "gpu.small-bar1", "nvidia-fs.device-denied", "nvidia-fs.not-loaded"),
    *(
        "nvme.no-hooks",
        "platform.acs",
        "platform.iommu",
        "storage.device-mapper",
        "storage.no-nvme",
        "udev.no-database",
    ),
    "driver.iomap-wc",
    # In a container; and what the kernel's message says.
    *("nvidia-fs.no-devices", "driver.reported-fault", "nvidia-fs.reported-fault"),
}


def in_the_table() -> list[Cause]:
    """Those that logs show as well."""
    return [cause for cause in seen_on_hosts() if causes.has(cause.id)]


def test_references_agree() -> None:
    """Of a message with the number of an Xid, NVIDIA's catalog is the reference."""
    found = [cause for cause in in_the_table() if cause.reference != causes.row(cause.id).reference]
    assert {(cause.id, cause.reference) for cause in found} == {("driver.reported-fault", "NVIDIA Xid Errors")}


def is_of_the_row(cause: Cause) -> bool:
    """Whether its fix is the row's, with any words where the row has braces."""
    words = re.split(r"\{\w+(?:\|[^}]*)?\}", causes._rows()[cause.id].fix)
    return re.fullmatch(".+".join(map(re.escape, words)), cause.fix) is not None


def test_fixes_agree_but_for_those_that_name_what_the_host_has() -> None:
    differing = {cause.id for cause in in_the_table() if not is_of_the_row(cause)}
    assert differing <= OF_THE_HOST
    assert len({cause.id for cause in in_the_table()} - differing) > 25


def test_a_row_gives_title_fix_and_reference() -> None:
    row = causes.row("nvme.ofed-unused")
    assert listed_cause("nvme.ofed-unused", ("x",)) == Cause(row.id, row.title, row.fix, ("x",), row.reference)
    assert listed_cause("nvme.ofed-unused", (), "here").what == "here"
    with pytest.raises(KeyError):
        listed_cause("no.such-cause")


def test_as_data() -> None:
    facts = facts_from(PROVISIONED)
    report = as_document(explain(facts, stack(facts)))
    assert json.loads(json.dumps(report)) == report
    keys = {"version", "host", "collected_at", "stack", "first", "mounts", "kinds", "processes", "foreign", "unseen"}
    assert set(report) == keys
    assert [cause["id"] for cause in report["first"]] == ["gpu.none"]
    assert [name for name, _ in report["stack"]] == ["os", "kernel", "driver", "nvidia-fs", "libcufile"]
    mount = next(entry for entry in report["mounts"] if entry["mount"] == "/mnt/nvme")
    assert (mount["path"], mount["gpu"], mount["devices"]) == ("compat", False, ["nvme0n1"])
    assert set(mount["causes"][0]) == {"id", "what", "fix", "evidence", "reference"}
    assert "not proven" not in {entry["path"] for entry in report["mounts"]}


def test_what_was_said_in_full_is_not_said_again() -> None:
    text = " ".join(render(explain(facts_from(with_libcufile(BARE)), ())).split())
    assert text.count("[nvidia.not-installed] seen modprobe nvidia-current-open: ") == 1
    assert text.count("[nvidia.not-installed], see above") == 1
    assert text.count("do install it: your distribution's package") == 2, "once for the driver and once for nvidia-fs"


def test_what_was_not_proven_says_why() -> None:
    document = cases.read("explain/faults_gpus")["IOMMU of the disk"].document()
    explanation = explain(facts_from(document), (), "/mnt/nvme")
    assert isinstance(explanation.mounts[0].path.path, Unknown)
    text = render(explanation)
    assert "/mnt/nvme  NOT PROVEN: an IOMMU is between 0000:00:02.0" in text
    assert "Not proven because of this:\n  1. an IOMMU" in text
    assert "Kinds of storage" not in text


PID = 4711


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "a process that takes the direct path has no cause",
            (
                "process 4711 (train) of /system.slice/train.service: nvidia-fs\n",
                "since it opened cuFile: 40960 bytes read, 0 written, 0 of them through CPU memory",
            ),
        ),
        ("each cause of a process", ("CPU memory",)),
        ("files of a container are not those of the host", ("nothing that was examined explains",)),
    ],
)
def test_as_text(case: str, words: tuple[str, ...]) -> None:
    document = cases.read("explain/process")[case].document()
    text = render_process(programs.explain_process(facts_from(document), PID))
    assert text.startswith("process 4711 (train) of /system.slice/train.service: ")
    assert all(word in text for word in words), text


@pytest.mark.parametrize("known", [{"processes": {"$set": {}}}, {"processes": {"libcufile": {"$set": {}}}}])
def test_processes_that_are_not_known(known: Any) -> None:
    with pytest.raises(programs.NoSuchProcessError):
        programs.explain_process(facts_from(patched(GOOD, known)), PID)


def test_another_process() -> None:
    with pytest.raises(programs.NoSuchProcessError, match=r"no process 1 was seen .*4711"):
        programs.explain_process(facts_from(GOOD), 1)


@pytest.mark.parametrize(
    ("version", "pair"),
    [
        ("6.12.94+deb13-amd64", (6, 12)),
        ("6", (6,)),
        ("", ()),
        ("v6.x", (6,)),
        ("9" * 5000, ()),
        (f"6.{'9' * 5000}", (6,)),
        ("²", ()),
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_first_two_numbers(version: str, pair: tuple[int, ...]) -> None:
    assert numbers(version) == pair


Document = dict[str, Any]
#: The rules about nearness, and about adapters.
ADVICE = (topology.nearness_notes, rdma.adapter_notes, rdma.link_notes)


def noted(document: Document, **changed: Any) -> dict[str, Cause]:
    """Advice on the mount, whose device or itself is changed."""
    facts = facts_from(document)
    mount = facts.storage.mounts.get(MOUNT) or facts.storage.mounts["/"]
    return {note.id: note for rule in ADVICE for note in rule(facts, mount.but(**changed))}


def test_disks_near_to_different_gpus_are_told() -> None:
    document = host()
    device = facts_from(capable()).storage.mounts[MOUNT].device
    assert device is not None
    disks = [device.but(pci_address=address) for address in ("0000:15:00.0", "0000:25:00.0")]
    for disk, like in zip(disks, ("0000:10:00.0/0000:11:03.0", "0000:20:00.0/0000:21:03.0"), strict=True):
        place(document, f"{like}/{disk.pci_address}", like="0000:00:03.0")
        document["files"][f"{PCI}/{disk.pci_address}/class"] = "0x010802\n"
    top = disks[0].but(pci_address="", name="md0", kind="md", below=tuple(disks))
    notes = noted(document, device=top)
    assert "near different GPUs" in notes["storage.spread"].what
    assert notes["storage.spread"].evidence == ("topology: NVME0: PIX from GPU0", "topology: NVME1: PIX from GPU1")


def test_a_gpu_far_from_every_adapter_wants_routing() -> None:
    document = host(CARDS[:2])
    notes = noted(document, filesystem="gpfs", device=None)
    assert "dynamic routing is off" in notes["rdma.no-routing"].what


def test_several_adapters_want_a_policy_that_spreads() -> None:
    document = host()
    notes = noted(document, filesystem="wekafs", device=None)
    assert notes["rdma.policy"].what.startswith(
        "properties.rdma_load_balancing_policy is RoundRobin on a host with 2 GPUs"
    )
    document["files"]["/etc/cufile.json"] = json.dumps(
        {"properties": {"rdma_load_balancing_policy": "RoundRobinMaxMin", "rdma_dynamic_routing": True}}
    )
    assert noted(document, filesystem="wekafs", device=None) == {}
    assert noted(host(), filesystem="nfs", device=None) == {}, "its RDMA is the kernel's own"


def test_an_adapter_without_a_link_is_named() -> None:
    document = host()
    document["files"]["/sys/class/infiniband/mlx5_1/ports/1/state"] = "1: DOWN\n"
    assert noted(document, filesystem="gpfs", device=None)["rdma.link-down"].what == "no port of mlx5_1 is active"
