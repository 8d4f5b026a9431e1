"""Filesystems whose data libcufile itself moves by RDMA: each condition taken away on a host that has them all."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

from gdsdeploy.host.explain import COMPAT, NVIDIA_FS, Path, as_document, explain
from gdsdeploy.host.explain.cause import DMABUF, PEERMEM
from gdsdeploy.host.explain.kinds import Kind
from gdsdeploy.host.explain.nvidia_fs import HOOKS
from gdsdeploy.host.facts import Unknown, facts_from
from tests.unit.host.explain.capable_host import (
    MOUNT,
    Change,
    Document,
    absent,
    both,
    capable,
    config,
    driver,
    file,
    mountinfo,
    with_gpu,
)
from tests.unit.host.explain.test_explain_causes import RDMA_FAULTS
from tests.unit.rdma_host import information

ADDRESS = "192.0.2.1"
CORE = "0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]"
ADAPTER = "0000000000000000 t mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]"
PEER_MEMORY = "0000000000000000 T ib_register_peer_memory_client\t[ib_uverbs]"
STATE = "/sys/class/infiniband/mlx5_0/ports/1/state"
WEKA, GPFS = ("wekafs", "weka", "WekaFS"), ("gpfs", "gpfs", "IBM Spectrum Scale")


def settings(peer_type: str = "dmabuf", addresses: object = (ADDRESS,), **fs: object) -> Change:
    return config(properties={"rdma_peer_type": peer_type, "rdma_dev_addr_list": list(addresses)}, fs=fs)  # type: ignore[call-overload]


def row(label: str, value: str) -> Change:
    """What libcufile logs of a filesystem, in both of its runs."""

    def change(document: Document) -> None:
        for name in ("cufile-open", "cufile-open-control"):
            run = document["commands"][name]
            run["log"] = re.sub(rf"(:\d+ {label}) *: .*", rf"\1 : {value}", run["log"])

    return change


def symbols_gone(*lines: str) -> Change:
    def change(document: Document) -> None:
        excerpt = document["excerpts"]["/proc/kallsyms"]
        excerpt["lines"] = [line for line in excerpt["lines"] if line not in lines]

    return change


def peermem(document: Document) -> None:
    """nvidia-peermem is loaded and registered, and chosen."""
    document["files"]["/proc/modules"] += "nvidia_peermem 16384 0 - Live 0x0\n"
    document["listings"]["/sys/kernel/mm/memory_peers"] = ["nv_mem"]
    settings("nvidia_peermem")(document)


def unregistered(document: Document) -> None:
    peermem(document)
    symbols_gone(CORE)(document)
    document["listings"]["/sys/kernel/mm/memory_peers"] = []


def with_rdma(filesystem: str = "wekafs", by: str = "dmabuf") -> Document:
    """A GPU and an adapter with a link; core, driver and configuration allow both mechanisms."""
    document = with_gpu(capable())
    folder = "/sys/class/infiniband/mlx5_0"
    document["listings"]["/sys/class/infiniband"] = ["mlx5_0"]
    document["listings"] |= {folder + "/device/net": ["ens1"], folder + "/ports": ["1"]}
    document["links"][folder + "/device"] = "../../../0000:00:02.0"
    document["files"][STATE] = "4: ACTIVE\n"
    rows = [{"ifname": "ens1", "addr_info": [information(ADDRESS + "/24")]}]
    document["commands"]["ip-address"] = {
        "argv": [],
        "status": 0,
        "stdout": json.dumps(rows),
        "stderr": "",
        "seconds": 0,
    }
    excerpt = document["excerpts"]["/proc/kallsyms"]
    excerpt["pattern"] += r"|ib_umem_dmabuf_get\b|reg_user_mr_dmabuf\b"
    excerpt["lines"] += [CORE, ADAPTER, PEER_MEMORY]
    mountinfo(" ext4 ", f" {filesystem} ")(document)
    settings()(document)
    row("--rdma library", "Loaded (libcufile_rdma.so)")(document)
    if by == "nvidia_peermem":
        peermem(document)
    for _, _, label in (WEKA, GPFS):
        row(label, f"{by}, compat")(document)
    row("Userspace RDMA", "Supported")(document)
    return document


def path_at(document: Document) -> Path:
    return explain(facts_from(document), (), MOUNT).mounts[0].path


def kinds(document: Document) -> dict[str, Kind]:
    return {kind.label: kind for kind in explain(facts_from(document), ()).kinds}


@pytest.mark.parametrize("filesystem", ["wekafs", "gpfs", "mmfs"])
@pytest.mark.parametrize(("by", "path"), [("dmabuf", DMABUF), ("nvidia_peermem", PEERMEM)])
def test_with_everything_in_place_data_goes_through_the_adapter(filesystem: str, by: str, path: str) -> None:
    result = path_at(with_rdma(filesystem, by))
    assert (result.path, result.causes, result.suspects) == (path, (), ()), result
    assert "cufile.no-rdma-writes" in [note.id for note in result.notes]


def test_hooks_and_nvidia_fs_are_not_asked_for() -> None:
    document = with_rdma("gpfs")
    absent("files", "/sys/module/nvidia_fs/version")(document)
    assert path_at(document).path == DMABUF


@dataclass(frozen=True)
class Fault:
    id: str
    change: Change
    words: str = ""
    by: str = "dmabuf"


FAULTS = {
    "no adapter": Fault("rdma.no-adapter", lambda d: d["listings"].__setitem__("/sys/class/infiniband", [])),
    "no address": Fault("rdma.no-addresses", settings(addresses=())),
    "no file": Fault("rdma.no-addresses", absent("files", "/etc/cufile.json")),
    "another host's address": Fault("rdma.foreign-addresses", settings(addresses=["192.0.2.77"]), "192.0.2.77"),
    "another filesystem's address": Fault(
        "rdma.no-addresses", settings(addresses=(), nfs={"rdma_dev_addr_list": [ADDRESS]})
    ),
    "no link": Fault("rdma.no-link", file(STATE, "1: DOWN\n"), "mlx5_0"),
    "proprietary driver": Fault(
        "driver.proprietary",
        driver("x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025"),
        by="dmabuf",
    ),
    "core without DMA-BUF": Fault("rdma.no-dmabuf", symbols_gone(CORE)),
    "adapter without DMA-BUF": Fault("rdma.adapter-no-dmabuf", symbols_gone(ADAPTER)),
    "old kernel": Fault("kernel.no-dmabuf", lambda d: d["host"]["uname"].__setitem__("release", "5.10.0-1")),
    "core without PeerDirect": Fault(
        "rdma.no-peer-memory", both(symbols_gone(CORE, PEER_MEMORY), lambda d: None), by="nvidia_peermem"
    ),
    "loaded, but not registered": Fault("peermem.not-registered", unregistered, by="nvidia_peermem"),
    "another mechanism would do": Fault(
        "rdma.other-peer-type",
        lambda d: d["listings"].__setitem__("/sys/kernel/mm/memory_peers", []),
        "it can use dmabuf",
        by="nvidia_peermem",
    ),
}


def test_every_documented_fault_is_here() -> None:
    assert {fault.id for fault in FAULTS.values()} - {"driver.proprietary"} == RDMA_FAULTS


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_cause_first(name: str) -> None:
    fault = FAULTS[name]
    document = with_rdma(by=fault.by)
    fault.change(document)
    row("WekaFS", "compat")(document)
    result = path_at(document)
    assert (result.path, result.causes[0].id) == (COMPAT, fault.id), result
    assert fault.words in result.causes[0].what
    assert all(cause.evidence and cause.fix for cause in result.causes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_libcufile_contradicts_is_no_verdict(name: str) -> None:
    fault = FAULTS[name]
    document = with_rdma(by=fault.by)
    fault.change(document)
    result = path_at(document)
    assert isinstance(result.path, Unknown), result
    assert {"cufile.other-row", fault.id} <= {cause.id for cause in result.suspects}


@pytest.mark.parametrize(
    ("fs", "path"),
    [
        ({"weka": {"rdma_dev_addr_list": [ADDRESS]}}, DMABUF),
        ({"weka": {"mount_table": {MOUNT: {"rdma_dev_addr_list": [ADDRESS]}}}}, DMABUF),
        ({"weka": {"mount_table": {MOUNT: [ADDRESS]}}}, DMABUF),
        ({"weka": {"mount_table": {"/mnt/other": [ADDRESS]}}}, COMPAT),
        # The mount's own row counts, not the list of its filesystem.
        ({"weka": {"mount_table": {MOUNT: ["192.0.2.77"]}, "rdma_dev_addr_list": [ADDRESS]}}, COMPAT),
        ({"weka": ["damaged"], "gpfs": None}, COMPAT),
    ],
)
def test_addresses_of_the_filesystem_and_of_the_mount_count(fs: dict[str, object], path: str) -> None:
    document = with_rdma()
    settings(addresses=(), **fs)(document)
    if path == COMPAT:
        row("WekaFS", "compat")(document)
    assert path_at(document).path == path


@pytest.mark.parametrize("filesystem", [WEKA, GPFS])
@pytest.mark.parametrize("value", ["compat", "Unsupported", "p2pdma, compat"])
def test_libcufile_that_reports_no_direct_path_leaves_it_open(filesystem: tuple[str, str, str], value: str) -> None:
    document = with_rdma(filesystem[0])
    row(filesystem[2], value)(document)
    result = path_at(document)
    assert isinstance(result.path, Unknown), result
    assert f"libcufile reports {filesystem[2]}: {value}, but the evidence" in result.path.reason
    assert [cause.id for cause in result.suspects] == ["cufile.other-row"]
    assert any("rdma library" in line for line in result.suspects[0].evidence) or len(result.suspects[0].evidence) == 3


def test_libcufile_without_its_rdma_library_is_named() -> None:
    document = with_rdma()
    row("WekaFS", "compat")(document)
    row("--rdma library", "Not Loaded (libcufile_rdma.so)")(document)
    (cause,) = path_at(document).suspects
    assert cause.id == "cufile.no-rdma-library"
    assert "rdma library: Not Loaded (libcufile_rdma.so)" in "\n".join(cause.evidence)


@pytest.mark.parametrize(
    ("by", "value", "path"),
    [
        ("nvidia_peermem", "true", DMABUF),
        ("nvidia_peermem", "True", DMABUF),
        ("dmabuf", "1", DMABUF),
        ("nvidia_peermem", "0", PEERMEM),
    ],
)
def test_a_variable_chooses_over_the_file(by: str, value: str, path: str) -> None:
    document = with_rdma(by=by)
    document["environment"]["CUFILE_DMABUF_ENABLE"] = value
    assert path_at(document).path == path


def test_a_variable_that_chooses_an_unusable_mechanism_is_named() -> None:
    document = with_rdma()
    document["environment"]["CUFILE_DMABUF_ENABLE"] = "FALSE"
    result = path_at(document)
    assert (result.path, result.causes[0].id) == (COMPAT, "rdma.other-peer-type"), result
    assert result.causes[0].fix.endswith("remove CUFILE_DMABUF_ENABLE from the environment of this program")
    assert result.causes[0].evidence == ("the environment of this program: CUFILE_DMABUF_ENABLE=FALSE",)


def test_a_program_whose_variable_chooses_an_unusable_mechanism() -> None:
    document = with_rdma()
    program = {
        "pid": 7, "program": "etl", "unit": "/", "container": False, "libraries": ["/usr/lib/libcufile.so.1.9.1"],
        "wheels": {}, "base": "/etc/cufile.json", "variables": {"CUFILE_DMABUF_ENABLE": "false"},
    }  # fmt: skip
    document["processes"]["libcufile"]["programs"] = [program]
    (listed,) = as_document(explain(facts_from(document), (), MOUNT))["processes"]
    assert (listed["differs"], listed["causes"][0]["id"]) == (True, "rdma.other-peer-type")
    assert listed["configuration"] == "/etc/cufile.json with CUFILE_DMABUF_ENABLE=false"
    program["variables"] = {"CUFILE_DMABUF_ENABLE": "true"}
    (listed,) = as_document(explain(facts_from(document), (), MOUNT))["processes"]
    assert (listed["differs"], listed["causes"]) == (True, [])


def test_older_releases_say_supported() -> None:
    document = with_rdma()
    row("WekaFS", "Supported")(document)
    assert path_at(document).path == DMABUF


def test_without_a_gpu_the_row_does_not_count() -> None:
    document = with_rdma()
    row("WekaFS", "Unsupported")(document)
    for address in list(document["listings"]["/sys/bus/pci/devices"]):
        if "06.0" in address:
            document["listings"]["/sys/bus/pci/devices"].remove(address)
    assert path_at(document).path == DMABUF


def test_what_was_not_collected_is_unknown() -> None:
    document = with_rdma()
    del document["commands"]["ip-address"]
    assert isinstance(path_at(document).path, Unknown)


def test_spectrum_scale_without_rdma_takes_nvidia_fs_where_it_has_hooks() -> None:
    document = with_rdma("gpfs")
    both(settings(addresses=()), row("IBM Spectrum Scale", "compat"))(document)
    result = path_at(document)
    assert (result.path, [cause.id for cause in result.causes]) == (
        COMPAT,
        ["rdma.no-addresses", "mmfslinux.no-hooks"],
    )
    document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0 T {HOOKS['mmfslinux'][0]}\t[mmfslinux]")
    document["files"]["/proc/driver/nvidia-fs/modules"] += "mmfslinux: 1\n"
    row("IBM Spectrum Scale", "nvfs, compat")(document)
    for run in (document["commands"][name] for name in ("cufile-open", "cufile-open-control")):
        run["log"] = run["log"].replace(" nvidia_fs minimum", " nvidia_fs version:  2.26 nvidia_fs minimum")
    assert path_at(document).path == NVIDIA_FS


@pytest.mark.parametrize(
    ("filesystem", "section", "key"),
    [("wekafs", "weka", "rdma_write_support"), ("gpfs", "gpfs", "gds_write_support")],
)
def test_writes_need_the_key_of_the_filesystem(filesystem: str, section: str, key: str) -> None:
    document = with_rdma(filesystem)
    notes = {note.id: note.what for note in path_at(document).notes}
    assert f"fs.{section}.{key} isn't true" in notes["cufile.no-rdma-writes"]
    settings(**{section: {key: True}})(document)
    assert path_at(document).notes == ()


def test_the_kinds_ask_what_the_mounts_ask() -> None:
    document = with_rdma()
    by_label = kinds(document)
    assert {by_label[name].path.path for name in ("WekaFS", "IBM Spectrum Scale", "Userspace RDMA")} == {DMABUF}
    assert (by_label["WekaFS"].present, by_label["IBM Spectrum Scale"].present) == (True, False)
    both(unregistered, row("Userspace RDMA", "Unsupported"), row("WekaFS", "compat"))(document)
    kind = kinds(document)["Userspace RDMA"]
    assert (kind.path.path, kind.path.causes[0].id) == (COMPAT, "peermem.not-registered"), "loaded, but of no use"
    assert kinds(document)["WekaFS"].path.path == COMPAT


def test_the_rows_of_each_release() -> None:
    document = with_rdma()
    assert list(kinds(document)) == [
        "NVMe", "NVMeOF", "SCSI", "ScaleFlux CSD", "NVMesh", "DDN EXAScaler", "NFS", "BeeGFS", "ScaTeFS",
        "IBM Spectrum Scale", "VIRTIOFS", "PanFS", "WekaFS", "Userspace RDMA",
    ]  # fmt: skip
    assert not {"VIRTIOFS", "PanFS", "ScaTeFS"} & set(kinds(capable())), "libcufile 1.9.1 prints none of them"
    mountinfo(" wekafs ", " fuse.fsx_lustre ")(document)
    by_label = kinds(document)
    assert (by_label["FSx Lustre"].present, by_label["DDN EXAScaler"].present) == (True, False)
    assert [cause.id for cause in by_label["FSx Lustre"].path.causes] == ["lnet.no-hooks"]


def test_drivers_that_are_loaded_mean_storage_of_their_kind() -> None:
    document = with_rdma()
    assert kinds(document)["NVMesh"].present is False
    document["files"]["/proc/modules"] += "nvmeib_common 16384 0 - Live 0x0\nsfxvdriver 16384 0 - Live 0x0\n"
    by_label = kinds(document)
    assert (by_label["NVMesh"].present, by_label["ScaleFlux CSD"].present, by_label["SCSI"].present) == (
        True,
        True,
        False,
    )
    assert [cause.id for cause in by_label["NVMesh"].path.causes] == ["nvmeib_common.no-hooks"]


def test_fsx_for_lustre_has_the_path_of_lustre() -> None:
    document = with_rdma("fuse.fsx_lustre")
    assert [cause.id for cause in path_at(document).causes] == ["lnet.no-hooks"]
    document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0 T {HOOKS['lnet'][0]}\t[lnet]")
    document["files"]["/proc/driver/nvidia-fs/modules"] += "lnet: 1\n"
    assert path_at(document).path == NVIDIA_FS


def release(version: str) -> Change:
    """libcufile of this release, by the name of its file."""

    def change(document: Document) -> None:
        run = document["commands"]["cufile-open"]
        first = run["stdout"].splitlines()[0]
        loaded = "gdsdeploy: loaded /usr/lib/libcufile.so." + version
        run["stdout"] = run["stdout"].replace(first, loaded)

    return change


@pytest.mark.parametrize(
    ("filesystem", "version", "path", "cause"),
    [
        ("tmpfs", "1.15.1", "broken", "filesystem.not-taken"),
        ("tmpfs", "1.16.1", COMPAT, "filesystem.kind"),
        ("overlay", "1.15.1", "broken", "filesystem.not-taken"),
        ("overlay", "1.16.1", COMPAT, "filesystem.kind"),
        ("zfs", "1.16.1", "broken", "filesystem.not-taken"),
        ("zfs", "1.17.1", COMPAT, "filesystem.kind"),
        ("btrfs", "1.16.1", "broken", "filesystem.not-taken"),
        ("btrfs", "1.17.1", COMPAT, "filesystem.kind"),
        ("fuse.sshfs", "1.4.0", COMPAT, "filesystem.kind"),
        ("panfs", "1.18.0", COMPAT, "filesystem.newer-library"),
        ("virtiofs", "1.15.1", COMPAT, "filesystem.newer-library"),
        ("virtiofs", "1.16.1", COMPAT, "filesystem.p2pdma-only"),
    ],
)
def test_a_filesystem_needs_a_release_that_knows_it(filesystem: str, version: str, path: str, cause: str) -> None:
    document = with_rdma(filesystem)
    release(version)(document)
    result = path_at(document)
    assert (result.path, result.causes[0].id) == (path, cause), result


def test_panfs_is_known_and_its_path_is_not_guessed() -> None:
    document = with_rdma("panfs")
    release("1.19.0")(document)
    result = path_at(document)
    assert isinstance(result.path, Unknown)
    assert (
        result.path.reason == "what panfs needs for its direct path isn't documented; libcufile reports PanFS: compat"
    )
