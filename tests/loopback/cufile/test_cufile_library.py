"""What real libraries do with cufile.json, with two of them, and with memory that is registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.model import known_keys
from gdsdeploy.host.gdscheck import document, reader
from gdsdeploy.host.subjects.condition import numbers
from gdsdeploy.host.subjects.cufile_json import SHOWN, differences, given_keys, merged, read_configuration, same
from gdsdeploy.host.subjects.libcufile import registration_error
from tests.cufile import libraries, standin
from tests.cufile.effective import effective
from tests.cufile.gdschecks import HOOKS, SYSFS, program, started
from tests.loopback.host.odirect.filesystems import inside

H200 = Path(__file__).parents[2] / "evidence" / "h200"


def test_a_mount_table_is_compared_as_a_whole(tmp_path: Path) -> None:
    table = {str(tmp_path): {"rdma_dev_addr_list": ["192.0.2.1", "192.0.2.2"]}}
    logged = {"fs.nfs.mount_table": f"{tmp_path}: 192.0.2.1"}
    found, _ = differences({"fs": {"nfs": {"mount_table": table}}}, logged)
    assert [value.key for value in found] == ["fs.nfs.mount_table"]


def test_the_names_that_the_library_uses_are_those_of_the_keys() -> None:
    assert SHOWN.keys() <= known_keys().keys()
    printed = {key for answer in _defaults() for key in answer}
    assert set(SHOWN.values()) - printed == {
        "properties.gpu_bounce_buffer_slab_size_kb",
        "properties.gpu_bounce_buffer_slab_count",
    }, "these two are logged only where they are set"


def _defaults() -> list[dict[str, str]]:
    return [dict(libraries.library(version).ask("{}").effective) for version in ("1.4.0.31", "1.20.0.107")]


@pytest.mark.parametrize(
    ("value", "logged", "equal"),
    [
        (True, "true", True),
        (True, "1", True),
        (False, "true", False),
        (128, "128", True),
        (128, "12", False),
        ([4, 64], "4 64 ", True),
        ([4, 64], "64 4", False),
        (["P2P"], "P2P", True),
        ("RoundRobin", "roundrobin", False),
        ({"/a": {"rdma_dev_addr_list": ["192.0.2.2", "192.0.2.1", "192.0.2.2"]}}, "/a: 192.0.2.1 192.0.2.2", True),
        # So 1.4 to 1.20 log two mounts of one filesystem, and an empty row.
        (
            {"/a": {"rdma_dev_addr_list": ["1.2.3.4"]}, "/b": {"rdma_dev_addr_list": ["1.2.3.5"]}},
            "/a /b: 1.2.3.4 1.2.3.5",
            True,
        ),
        ({"/a": {"rdma_dev_addr_list": ["1.2.3.4"]}, "/b": {"rdma_dev_addr_list": []}}, "/b: ; /a: 1.2.3.4", True),
        ({"/a": {"rdma_dev_addr_list": ["1.2.3.4"]}, "/b": {"rdma_dev_addr_list": ["1.2.3.5"]}}, "/a: 1.2.3.4", False),
        ({"/a": {"rdma_dev_addr_list": ["1.2.3.4"]}}, "/a: 1.2.3.5", False),
    ],
)
def test_values_are_compared_as_they_are_logged(value: object, logged: str, equal: bool) -> None:
    assert same(value, logged) is equal


def test_keys_are_given_by_their_dotted_names() -> None:
    document = {"fs": {"nfs": {"mount_table": {"/a": {}}, "use_pci_p2pdma": True}}, "denylist": {"drivers": []}}
    assert dict(given_keys(document)) == {
        "fs.nfs.mount_table": {"/a": {}},
        "fs.nfs.use_pci_p2pdma": True,
        "denylist.drivers": [],
    }


@pytest.mark.parametrize("version", ["1.15.1.6", "1.20.0.107"])
def test_a_real_gpu_and_the_stand_in_say_the_same(version: str) -> None:
    """On a host with an H200 its file was rendered and shown to the library, with the real libcuda."""
    real = json.loads((H200 / f"effective-{version}.json").read_text())
    assert (real["accepted"], real["error"], real["problem"]) == (True, 0, None)
    content = (H200 / f"rendered-{version}.json").read_bytes()
    (result,) = effective(libraries.library(version), {"file": content}, folders=["/var/log/cufile"])
    assert json.loads(result.to_json())["values"] == real["values"]
    assert len(real["values"]) > 30


# -- The rules of facts/overlay.py, compared with what real libraries do with two configurations.


RELEASES = ("1.9.1.3", "1.15.1.6", "1.20.0.107")
#: /etc/cufile.json, then the file over it.
PAIRS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"properties": {"force_compat_mode": True, "io_batchsize": 7}}, {"properties": {"force_compat_mode": False}}),
    ({"properties": {"force_compat_mode": True}}, {"properties": {"force_compat_mode": None}}),
    ({"properties": {"io_batchsize": 7}}, {"properties": {"force_compat_mode": True}}),
    ({"properties": {"io_batchsize": 7}}, {"properties": None, "unknown": {"io_batchsize": 9}}),
    ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": ["nfs"]}}),
    ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": []}}),
    ({}, {"denylist": {"drivers": ["nvme"]}}),
)
LOGGED = ("properties.force_compat_mode", "properties.max_batch_io_size")


def ask(version: str, base: str, over: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit status and the parsed output of gdscheck with both files."""
    named = folder / "over.json"
    named.write_text(over)
    argv = ["/usr/bin/env", f"CUFILE_ENV_PATH_JSON={named}", str(program("debian-13")), "-p"]
    printed = started(argv, version, config=base, proc=HOOKS, sys_files=SYSFS)
    return printed.status, document.document(reader.read_recording(printed.text.encode(), printed.status), "live")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("base", "over"), PAIRS, ids=json.dumps)
def test_two_files_are_what_the_rules_make_of_them(
    version: str, base: dict[str, Any], over: dict[str, Any], tmp_path: Path
) -> None:
    _, both = ask(version, json.dumps(base), json.dumps(over), tmp_path)
    _, one = ask(version, json.dumps(merged(base, over)), "{}", tmp_path)
    assert both["verdict"] == one["verdict"]
    assert both["storage"] == one["storage"]
    assert {key: both["config"][key] for key in LOGGED} == {key: one["config"][key] for key in LOGGED}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"properties": {"io_batchsize": 007}}',
        "",
        "{",
        '{"properties": {"io_batchsize": 7,}}',
        '{"denylist": {"drivers": ["nvme",]}}',
        '{"properties": 5}',
        "root:x:0:0",
    ],
)
def test_a_file_that_is_recorded_as_broken_is_refused(version: str, text: str, tmp_path: Path) -> None:
    status, _ = ask(version, "{}", text, tmp_path)
    try:
        record = read_configuration(str(tmp_path / "over.json"))
    except ValueError:
        return  # undecided
    assert ("broken" in record) == (status != 0), record


@pytest.mark.parametrize("version", RELEASES)
def test_a_missing_file_is_ignored(version: str) -> None:
    argv = ["/usr/bin/env", "CUFILE_ENV_PATH_JSON=/nowhere/over.json", str(program("debian-13")), "-p"]
    assert started(argv, version, config="{}", proc=HOOKS, sys_files=SYSFS).status == 0


# -- Which filesystems each real libcufile takes files of, and the error that it returns for the others.


#: Makes the mounts without a disk, and udev's records of the disks if asked to; then registers a file on each.
BODY = r"""
library, with_udev, standin = sys.argv[5:8]
os.mkdir("tmpfs")
run("mount", "-t", "tmpfs", "tests", "tmpfs")
for name in ("lower", "upper", "scratch"):
    os.mkdir("ext4/" + name)
os.mkdir("overlay")
layers = "lowerdir=ext4/lower,upperdir=ext4/upper,workdir=ext4/scratch"
run("mount", "-t", "overlay", "overlay", "-o", layers, "overlay")
names = ("ext4", "xfs", "btrfs", "tmpfs", "overlay")
os.makedirs("/run/udev", exist_ok=True)
run("mount", "-t", "tmpfs", "tests", "/run/udev")
if with_udev == "yes":
    os.mkdir("/run/udev/data")
    for name in names:
        number = os.stat(name).st_dev
        with open(f"/run/udev/data/b{os.major(number)}:{os.minor(number)}", "w") as file:
            file.write("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=%s\n" % name)
os.mkdir("work")
request = {
    "library": library, "standin": standin, "work": os.path.join(folder, "work"),
    "folders": {name: os.path.join(folder, name) for name in names},
}
argv = [sys.executable, "-m", "tests.cufile.register", json.dumps(request)]
done = subprocess.run(argv, capture_output=True, text=True, cwd=sys.argv[1])
answer = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-2000:]}
"""


#: Filesystem without a disk of its own → the first release that takes its files.
SINCE = {"tmpfs": "1.16", "overlay": "1.16", "btrfs": "1.17"}
#: Releases on both sides of each change.
CASES = [(version, "yes") for version in ("1.9.1.3", "1.14.1.1", "1.15.1.6", "1.16.1.26", "1.17.1.22", "1.20.0.107")]
CASES += [(version, "no") for version in ("1.14.1.1", "1.20.0.107")]


def measured(folder: Path, version: str, udev: str) -> dict[str, list[int | None]]:
    library = libraries.library(version)
    words = (str(library.path), udev, str(standin.libcuda(library.path)))
    answer: dict[str, list[int | None]] = inside(folder, ["ext4", "xfs", "btrfs"], BODY, *words)
    return answer


@pytest.mark.parametrize(("version", "udev"), CASES)
def test_registration_is_as_the_rules_say(tmp_path: Path, version: str, udev: str) -> None:
    answers = measured(tmp_path, version, udev)
    error = registration_error(version)
    on_disk = 0 if udev == "yes" else error
    expected = {name: [0, 0 if numbers(version) >= numbers(since) else error] for name, since in SINCE.items()}
    assert answers == {"ext4": [0, on_disk], "xfs": [0, on_disk], **expected}, json.dumps(answers)
