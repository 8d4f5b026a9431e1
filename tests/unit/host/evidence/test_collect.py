"""What is recorded of configurations that users may have named, of package repositories, and of modules' audits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import cufile
from gdsdeploy.host import checks, process
from gdsdeploy.host.boot.grub import MenuGrub
from gdsdeploy.host.errors import HostError
from gdsdeploy.host.evidence.recorder import NOTHING, EvidenceRequest, Recorder, request_for
from gdsdeploy.host.facts import as_dict, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.host.subjects import boot, driver, kernel, packages, storage
from gdsdeploy.host.subjects.cufile_json import LIMIT, SECTIONS, record_configuration
from gdsdeploy.host.subjects.environment import relevant
from gdsdeploy.host.subjects.modules import collect_audits
from gdsdeploy.host.subjects.register import Collector
from tests.unit.host import cases, hosts
from tests.unit.host.kmod.kmod_elf import VERMAGIC
from tests.unit.host.kmod.kmod_root import EXPECTED, RELEASE, Root


def recorded(folder: Path, text: str | bytes) -> Any:
    file = folder / "own.json"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    recorder = Recorder()
    key = record_configuration(recorder, str(file))
    return recorder.document["configs"][key]


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('{"properties": {"force_compat_mode": true}}', {"properties": {"force_compat_mode": True}}),
        ('// a comment\n{"fs": {} /* and */ } and more', {"fs": {}}),
        ("{}", {}),
        ("[]", {}),
        ('{"properties": null}', {}),
        ('{"auths": {"registry": {"auth": "c2VjcmV0"}}, "logging": {}}', {"logging": {}}),
    ],
)
def test_only_known_sections_are_recorded(tmp_path: Path, text: str, config: Any) -> None:
    assert recorded(tmp_path, text) == {"config": config}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " // nothing\n",
        "{",
        '{"properties": {"a": 1,}}',
        '{"denylist": {"drivers": ["nvme",]}}',
        "\ufeff{}",
        "root:$6$hash:19000:0:99999:7:::\n",
        '{"properties": 5}',
        "[1]",
    ],
)
def test_a_file_that_libcufile_refuses_is_broken_and_its_content_unrecorded(tmp_path: Path, text: str) -> None:
    record = recorded(tmp_path, text)
    assert set(record) == {"broken"}
    assert "hash" not in str(record)


@pytest.mark.parametrize("text", ['{"properties": {"io_batchsize": 007}}', '{"properties": {"a": -}}'])
def test_what_libcufile_may_accept_is_neither(tmp_path: Path, text: str) -> None:
    assert set(recorded(tmp_path, text)) == {"error"}


def test_other_than_a_small_regular_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"{}" + b" " * LIMIT)
    recorder = Recorder()
    for name in ("pipe", "large", "gone", "."):
        record_configuration(recorder, str(tmp_path / name))
    records = {Path(key).name: record for key, record in recorder.document["configs"].items()}
    assert records.pop("gone") == {"error": "ENOENT"}
    assert all(set(record) == {"error"} for record in records.values())
    assert records["pipe"] == {"error": "it isn't a regular file"}
    assert records["large"] == {"error": "EFBIG"}


def test_links_of_a_container_lead_into_the_container(tmp_path: Path) -> None:
    secret = tmp_path / "outside.json"
    secret.write_text('{"properties": {"outside": 1}}')
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/cufile.json").symlink_to(secret)
    recorder = Recorder()
    key = record_configuration(recorder, "/etc/cufile.json", str(root))
    assert recorder.document["configs"] == {key: {"error": "ENOENT"}}
    assert key == f"{root}/etc/cufile.json"


def test_no_other_variable_is_recorded() -> None:
    environment = {"CUFILE_X": "/a b", "KVIKIO_COMPAT_MODE": "ON", "AWS_SECRET": "x"}
    assert relevant(environment) == {"CUFILE_X": "/a b"}


def test_the_sections_are_those_that_releases_read() -> None:
    keys = yaml.safe_load((Path(str(cufile.__file__)).parent / "keys.yml").read_text())
    assert {row["key"].partition(".")[0] for row in keys} == set(SECTIONS)


FILES = {
    "etc/os-release": 'VERSION_ID="9.5"\n',
    "etc/apt/sources.list": "deb [arch=amd64 signed-by=/keys/a.gpg] http://a.example x main\n",
    "etc/apt/sources.list.d/b.sources": "Types: deb\nSigned-By: /keys/b.asc\n",
    "etc/apt/sources.list.d/c.list.save": "deb [signed-by=/keys/c.gpg] http://c.example x main\n",
    "etc/yum.repos.d/d.repo": "[d]\ngpgkey=file:///keys/d-$releasever https://e.example/e, file:///keys/e\n",
    "etc/dnf/vars/site": "mirror\n",
    "keys/a.gpg": "a", "keys/b.asc": "b", "keys/c.gpg": "c", "keys/d-9": "d",
    "root/secret": "s",
}  # fmt: skip


def sources(root: Path, request: EvidenceRequest) -> dict[str, Any]:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    recorder = Recorder(root=str(root))
    packages.collect_sources(recorder, request)
    return recorder.finish()


def test_sources_and_the_keys_that_they_name(tmp_path: Path) -> None:
    document = sources(tmp_path, EvidenceRequest(sources=True))
    texts = {path for path, text in document["files"].items() if isinstance(text, str)}
    assert texts == {f"/{name}" for name in FILES if name.startswith("etc/") and not name.endswith(".save")}
    keys = {path: bytes.fromhex(text) for path, text in document["binaries"].items() if isinstance(text, str)}
    assert keys == {"/keys/a.gpg": b"a", "/keys/b.asc": b"b", "/keys/d-9": b"d"}


def test_nothing_unless_it_is_asked_for(tmp_path: Path) -> None:
    document = sources(tmp_path, EvidenceRequest())
    assert document["files"] == document["binaries"] == {}


OTHER = "6.12.107+deb13-amd64"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """This machine runs RELEASE, and boots it next."""
    root = Root(tmp_path)
    root.nvidia()
    root.nvidia_fs()
    monkeypatch.setattr("gdsdeploy.host.kmod.kernel.Kernel", lambda release: Kernel(release, str(tmp_path)))
    boots_next(monkeypatch, RELEASE)
    return root


def boots_next(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(MenuGrub, "kernels", lambda _: {"default": release, "next": release})


def collected(expectation: Expectation | None = EXPECTED) -> dict[str, Any]:
    recorder = Recorder()
    recorder.document["host"]["uname"]["release"] = RELEASE
    collect_audits(recorder, NOTHING if expectation is None else request_for(expectation))
    section: dict[str, Any] = recorder.document["audits"]
    return section


def judge(expectation: Expectation = EXPECTED) -> dict[str, Finding]:
    results = checks.run(facts_from({"audits": collected(expectation)}), expectation)
    return {finding.check: finding for finding in results if finding.check.startswith("modules.")}


def test_a_kernel_whose_modules_cannot_be_read_does_not_pass(root: Root) -> None:
    for file in root.modules.glob("kernel/**/*.ko"):
        file.write_bytes(file.read_bytes()[:200])
    for finding in judge().values():
        assert finding.verdict == UNKNOWN
        assert "the audit is incomplete" in finding.found
        assert finding.hint == "make these files readable, or reinstall the packages they are of"


def test_good_modules_pass(root: Root) -> None:
    results = judge()
    assert [finding.verdict for finding in results.values()] == [PASS, PASS]
    assert results["modules.running"].found == f"nvidia, nvidia_fs on kernel {root.release}"
    # What is no fault is shown all the same.
    assert [line for line in results["modules.running"].evidence if "[vm-io]" in line]


def test_a_file_that_the_kernel_would_refuse(root: Root) -> None:
    root.nvidia_fs(imports={"nvidia_p2p_get_pages": 1})
    finding = judge()["modules.running"]
    assert finding.verdict == FAIL
    assert finding.found.startswith(f"nvidia_fs on kernel {RELEASE}: was built against other versions")
    assert finding.hint.startswith("rebuild it")
    assert any("error [symbol-crc]" in line for line in finding.evidence)


def test_the_next_boots_kernel_without_its_modules(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Root(tmp_path, OTHER, VERMAGIC.replace(RELEASE, OTHER))
    other.nvidia(vermagic=other.vermagic)
    boots_next(monkeypatch, OTHER)
    results = judge()
    assert results["modules.running"].verdict == PASS
    assert results["modules.next-boot"].verdict == FAIL
    assert f"kernel {OTHER} has no module nvidia_fs" in results["modules.next-boot"].found
    other.nvidia_fs(vermagic=other.vermagic)
    assert judge()["modules.next-boot"].verdict == PASS


def test_without_a_kernel_of_its_own_the_locks_is_audited(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    boots_next(monkeypatch, OTHER)
    expectation = replace(EXPECTED, own_kernel=False)
    audits = collected(expectation)
    assert "error" in audits["running"]
    assert audits["next"]["release"] == RELEASE
    assert [finding.verdict for finding in judge(expectation).values()] == [NOT_APPLICABLE, PASS]
    (root.modules / "updates/dkms/nvidia.ko").unlink()
    assert judge(expectation)["modules.next-boot"].verdict == FAIL


def test_a_peermem_that_has_to_work_and_is_a_stub(root: Root) -> None:
    root.module("updates/dkms/nvidia-peermem.ko", "nvidia_peermem", license="Dual BSD/GPL", info=[])
    assert judge()["modules.running"].verdict == PASS
    finding = judge(replace(EXPECTED, rdma="peermem"))["modules.running"]
    assert finding.verdict == FAIL
    assert "stub" in finding.found


def test_another_nvidia_fs_than_the_locks(root: Root) -> None:
    finding = judge(replace(EXPECTED, nvidia_fs_version="2.28.4"))["modules.running"]
    assert "nvidia_fs on kernel 6.12.94+deb13-amd64: is version 2.19.7, expected 2.28.4" in finding.found


def test_what_cannot_be_told_is_no_pass(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.nvidia_fs(info=[("version", "2.19.7")])
    finding = judge()["modules.running"]
    assert finding.verdict == UNKNOWN
    assert "doesn't record the driver source" in finding.found

    def no_boot_loader(_: object) -> None:
        raise HostError("there is no /boot/grub/grub.cfg")

    monkeypatch.setattr(MenuGrub, "kernels", no_boot_loader)
    assert "there is no /boot/grub/grub.cfg" in judge()["modules.next-boot"].found
    boots_next(monkeypatch, "")
    assert judge()["modules.next-boot"].verdict == UNKNOWN
    boots_next(monkeypatch, "9.9")
    assert "kernel 9.9 has no modules in" in judge()["modules.next-boot"].found


def test_without_an_expectation_what_is_there_is_audited(root: Root) -> None:
    assert [result["module"] for result in collected(None)["running"]["results"]] == ["nvidia", "nvidia_fs"]


def test_a_record_of_another_shape_is_no_pass() -> None:
    for results in ([{"module": "nvidia", "ok": True}], [1], None, [{"module": "nvidia", "ok": "yes", "findings": []}]):
        record = {"release": RELEASE, "results": results}
        expectation = replace(EXPECTED, nvidia_fs_version="")
        findings = checks.run(facts_from({"audits": {"running": record, "next": record}}), expectation)
        assert all(finding.verdict != PASS for finding in findings if finding.check.startswith("modules."))


STORED = [
    "XFS whose realtime files lie on a volume of LVM",
    "md RAID 0 over partitions of NVMe disks",
    "Lustre that starts by TCP and whose servers are on InfiniBand",
    "a volume of LVM with VDO that compresses",
    "NVMe over TCP",
]


@pytest.mark.parametrize("name", STORED)
def test_what_a_known_truth_has_of_storage_is_collected_from_such_a_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files, links and folders are made below a folder, and collected again."""
    case = cases.read("truth/storage")[name]
    before, document = hosts.named(case.host), case.document()
    changed = [
        (section, key, value)
        for section in ("links", "files", "listings")
        for key, value in document[section].items()
        if before[section].get(key) != value and key != "/proc/modules"
    ]
    for section, key, value in changed:
        path = tmp_path / key.lstrip("/")
        if section == "links":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(value)
            (path.parent / value).mkdir(parents=True, exist_ok=True)
        elif section == "listings":
            for entry in value:
                (path / entry).mkdir(parents=True, exist_ok=True)
        elif isinstance(value, str):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)
            if key.startswith("/sys/class/block/"):
                (tmp_path / "dev").mkdir(exist_ok=True)
                (tmp_path / "dev" / path.parent.name).touch()
    recorder = Recorder(root=str(tmp_path))
    monkeypatch.setattr(recorder, "command", lambda *_words, **_more: None)
    storage.collect_storage(recorder, EvidenceRequest(mounts=("/data",)))
    collected = recorder.finish()
    assert shown(collected) == shown(document)
    paths = [key for key in document["files"] if key.endswith("/ost_conn_uuid")]
    assert {key: collected["files"].get(key) for key in paths} == {key: document["files"][key] for key in paths}


def shown(document: Any) -> Any:
    """What is known of the mount, but for what only the filesystem itself or device mapper says."""

    def kept(value: Any) -> Any:
        if isinstance(value, list):
            return [kept(one) for one in value]
        return {key: kept(one) for key, one in value.items() if key not in ASKED} if isinstance(value, dict) else value

    return kept(as_dict(storage.StorageFacts(Document(document)).mounts["/data"]))


#: Facts of a mount and its devices for which a filesystem or dmsetup is asked.
ASKED = ("flags", "ext4_features", "ext4_options", "dm_targets", "line")


@pytest.mark.parametrize(
    ("gpus", "manager", "uptime", "answers", "asked"),
    [
        (1, False, 9000, ["N/A, N/A"], 0),
        (1, True, 9000, ["N/A, N/A"], 1),
        (2, False, 9000, ["Completed, Success"], 1),
        (2, True, 9000, ["In Progress, N/A"], 1),
        (2, True, 60, ["In Progress, N/A", "Not Started, N/A", "Completed, Success"], 3),
        (2, True, 60, ["In Progress, N/A"], 6),
    ],
)
def test_nvidia_smi_is_asked_for_the_fabric_where_there_may_be_one_and_again_while_the_host_boots(
    gpus: int,
    manager: bool,
    uptime: int,
    answers: list[str],
    asked: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[str] = []

    def run(argv: Sequence[str], *_: Any, **__: Any) -> process.Output:
        runs.append(argv[0])
        return process.Output(0, f"00000000:1B:00.0, {answers[min(len(runs), len(answers)) - 1]}\n", "")

    for number in range(gpus):
        (tmp_path / f"proc/driver/nvidia/gpus/0000:{number}b:00.0").mkdir(parents=True)
    if manager:
        (tmp_path / "usr/bin").mkdir(parents=True)
        (tmp_path / "usr/bin/nv-fabricmanager").touch()
    (tmp_path / "proc/uptime").write_text(f"{uptime}.17 1.0\n")
    recorder = Recorder(root=str(tmp_path))
    recorder.text("/proc/uptime")
    slept: list[float] = []
    monkeypatch.setattr("gdsdeploy.host.subjects.driver.time.sleep", slept.append)
    monkeypatch.setattr("gdsdeploy.host.evidence.recorder.process.run", run)
    driver.collect_fabric(recorder)
    assert len(runs) == asked
    assert sum(slept) < 40
    states = driver.DriverFacts(Document(recorder.document)).fabric
    assert [", ".join(state) for state in states.values()] == answers[-1:] * bool(asked)


@pytest.mark.parametrize(
    ("collect", "answers", "program", "is_started"),
    [
        (kernel.collect_kernel, {"dmesg": "[    0.000000] Linux version 6.12.94\n"}, "journalctl", False),
        (kernel.collect_kernel, {"dmesg": "[   90.000000] usb 1-1: new device\n"}, "journalctl", True),
        (kernel.collect_kernel, {"dmesg": "[    0.100000] x86/fpu: xstate\n"}, "journalctl", True),
        (boot.collect_boot, {"is-system-running": "running\n"}, "list-units", False),
        (boot.collect_boot, {"is-system-running": "degraded\n"}, "list-units", True),
        (boot.collect_boot, {}, "list-units", True),
    ],
)
def test_a_program_is_started_unless_another_ones_answer_has_its_own(
    collect: Collector,
    answers: dict[str, str],
    program: str,
    is_started: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def run(argv: Sequence[str], *_: Any, **__: Any) -> process.Output:
        started.append(argv[1] if argv[0] == "systemctl" else argv[0])
        return process.Output(0, answers.get(started[-1], ""), "")

    monkeypatch.setattr("gdsdeploy.host.evidence.recorder.process.run", run)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    collect(Recorder(root=str(tmp_path)), NOTHING)
    assert (program in started) == is_started
