"""What the recorder writes down and what is read without words, and that nothing it meets can stop or swamp it."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.host.evidence.recorder import NOTHING, Recorder, TimeLimitError, _busy, matching_lines, time_limit
from gdsdeploy.host.io import reading
from gdsdeploy.host.io.mounts import Mounts, id_of
from gdsdeploy.host.subjects.rdma import collect_fit
from tests.patience import SURELY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path


def recorder(root: Path) -> Recorder:
    return Recorder(root=str(root))


def test_a_file_is_kept_verbatim(root: Path) -> None:
    (root / "proc" / "version").write_text("a\n\tb \n")
    record = recorder(root)
    assert record.text("/proc/version") == "a\n\tb \n"
    assert record.document["files"] == {"/proc/version": "a\n\tb \n"}


def test_absence_differs_from_failure(root: Path) -> None:
    (root / "proc" / "folder").mkdir()
    record = recorder(root)
    assert record.text("/proc/none") is None
    assert record.text("/proc/folder") is None
    assert record.document["files"] == {"/proc/none": {"error": "ENOENT"}, "/proc/folder": {"error": "EISDIR"}}


def test_a_long_file_is_cut_and_marked(root: Path) -> None:
    (root / "proc" / "long").write_text("x" * 11)
    record = recorder(root)
    assert record.text("/proc/long", limit=10) is None
    assert record.document["files"]["/proc/long"] == {"error": "longer than 10 bytes", "text": "x" * 10}
    assert record.text("/proc/long") is None, "what was recorded first stays"


def test_what_is_no_text_becomes_some(root: Path) -> None:
    (root / "proc" / "odd").write_bytes(b"\xff\x00a")
    record = recorder(root)
    assert record.text("/proc/odd") == "\ufffd\x00a"
    json.dumps(record.document)


def test_bytes_links_names_and_excerpts(root: Path) -> None:
    (root / "proc" / "note").write_bytes(b"\x01\xff")
    (root / "proc" / "link").symlink_to("../elsewhere")
    (root / "proc" / "plain").write_text("one\ntwo nvfs\n")
    with gzip.open(root / "proc" / "config.gz", "wt") as file:
        file.write("CONFIG_A=y\nCONFIG_B=y\n")
    record = recorder(root)
    record.binary("/proc/note")
    record.binary("/proc/none")
    assert record.link("/proc/link") == "../elsewhere"
    assert record.link("/proc/note") is None
    assert record.names("/proc", "p*") == ["plain"]
    assert record.names("/none") == []
    record.excerpt("/proc/plain", "nvfs")
    record.excerpt("/proc/config.gz", "CONFIG_B")
    record.excerpt("/proc/none", "x")
    document = record.document
    assert document["binaries"] == {"/proc/note": "01ff", "/proc/none": {"error": "ENOENT"}}
    assert document["links"] == {"/proc/link": "../elsewhere", "/proc/note": {"error": "EINVAL"}}
    assert document["listings"] == {"/proc/p*": ["plain"], "/none": {"error": "ENOENT"}}
    assert document["excerpts"]["/proc/plain"] == {"pattern": "nvfs", "lines": ["two nvfs"]}
    assert document["excerpts"]["/proc/config.gz"]["lines"] == ["CONFIG_B=y"]
    assert document["excerpts"]["/proc/none"] == {"error": "ENOENT"}


def test_a_damaged_archive_is_a_failure_of_its_own(root: Path) -> None:
    (root / "proc" / "config.gz").write_bytes(b"no gzip")
    record = recorder(root)
    record.excerpt("/proc/config.gz", "x")
    assert "error" in record.document["excerpts"]["/proc/config.gz"]


def test_a_program_is_recorded_with_its_end(root: Path) -> None:
    record = recorder(root)
    record.command("false", ["sh", "-c", "echo out; echo err >&2; exit 3"])
    record.command("none", ["/no/such/program"])
    record.command("lines", ["printf", "a1\\nb\\na2\\n"], pattern="^a")
    commands = record.document["commands"]
    assert {key: commands["false"][key] for key in ("status", "stdout", "stderr")} == {
        "status": 3,
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert commands["none"]["status"] == 127
    assert commands["lines"]["stdout"] == "a1\na2\n"


def test_a_program_that_hangs_or_floods_is_ended(root: Path) -> None:
    record = recorder(root)
    begin = time.monotonic()
    record.command("hangs", ["sleep", "600"], timeout=0.5)
    record.command("floods", ["head", "-c", "3000000", "/dev/zero"], timeout=600)
    assert time.monotonic() - begin < SURELY
    assert record.document["commands"]["hangs"]["status"] == 124
    assert "longer than" in record.document["commands"]["floods"]["error"]
    assert len(json.dumps(record.document)) < 2_000_000


def test_a_collector_that_fails_leaves_a_gap_and_the_rest(root: Path) -> None:
    record = recorder(root)

    def fails() -> None:
        record.text("/proc/none")
        raise OSError(5, "Input/output error")

    record.attempt("fails", fails, 5)
    record.attempt("hangs", lambda: time.sleep(600), 0.3)
    record.attempt("works", lambda: record.names("/proc") and None, 5)
    assert [gap["collector"] for gap in record.document["gaps"]] == ["fails", "hangs"]
    assert record.document["gaps"][0]["reason"] == "OSError: [Errno 5] Input/output error"
    assert "stopped after" in record.document["gaps"][1]["reason"]
    assert "/proc" in record.document["listings"]


def test_a_bug_is_not_hidden_as_a_gap(root: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        recorder(root).attempt("bug", lambda: 1 / 0 and None, 5)


def test_when_the_time_is_up_nothing_more_is_begun(root: Path) -> None:
    record = Recorder(total=0.0, root=str(root))
    record.attempt("late", lambda: pytest.fail("it ran"), 5)
    assert record.document["gaps"] == [{"collector": "late", "reason": "no time left"}]


def test_a_read_that_blocks_is_interrupted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    record = recorder(tmp_path)
    record.attempt("blocked", lambda: record.text("/pipe") and None, 0.3)
    assert record.document["gaps"][0]["collector"] == "blocked"


def test_the_limit_is_given_back(root: Path) -> None:
    with pytest.raises(TimeLimitError), time_limit(0.1, 5):
        time.sleep(5)
    time.sleep(0.2)


def test_what_computes_is_not_stopped_for_being_slow_until_all_time_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "gdsdeploy.host.evidence.recorder._busy"
    monkeypatch.setattr(busy, time.monotonic)
    with time_limit(0.1, 600):
        time.sleep(0.5)
    with pytest.raises(TimeLimitError), time_limit(0.1, 0.2):
        time.sleep(600)
    # All time up to a moment is spent computing, and none afterwards.
    begin = time.monotonic()
    monkeypatch.setattr(busy, lambda: min(time.monotonic(), begin + 0.5))
    with pytest.raises(TimeLimitError), time_limit(0.1, 600):
        time.sleep(600)
    assert 0.5 <= time.monotonic() - begin < SURELY


def test_time_on_the_processor_is_that_of_programs_too() -> None:
    before = _busy()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert 0.25 < _busy() - before < 10


def test_outside_the_main_thread_there_is_no_limit_and_no_error() -> None:
    done: list[bool] = []

    def work() -> None:
        with time_limit(0.05, 5):
            time.sleep(0.1)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


LINES = st.lists(st.text(alphabet="ab x=", max_size=6), max_size=8)


@given(LINES, st.sampled_from(["a", "^a", "b$", "ab|x", "^(# )?x=", "^[ ]*b"]), st.booleans())
def test_matching_all_lines_at_once_equals_one_by_one(lines: list[str], pattern: str, ended: bool) -> None:
    text = "\n".join(lines) + ("\n" if ended else "")
    assert matching_lines(text.encode(), pattern) == [line for line in text.split("\n") if re.search(pattern, line)]


def test_the_flags_of_a_real_folder(tmp_path: Path) -> None:
    flags = reading.inode_flags(str(tmp_path))
    shown = subprocess.run(["lsattr", "-d", str(tmp_path)], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    letters = {"e": 0x80000, "c": 0x4, "E": 0x800, "j": 0x4000, "V": 0x100000, "N": 0x10000000}
    assert {letter for letter, bit in letters.items() if flags & bit} == set(shown) & set(letters)


def test_flags_that_were_set_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "journalled"
    path.touch()
    if subprocess.run(["chattr", "+j", str(path)], capture_output=True, check=False).returncode:
        # Without privileges, or on a filesystem without a journal, any other flag that this one has will do.
        subprocess.run(["chattr", "+d", str(path)], capture_output=True, check=True)
        assert reading.inode_flags(str(path)) & 0x40
    else:
        assert reading.inode_flags(str(path)) & 0x4000


def test_a_fifo_does_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    recorder = Recorder(root=str(tmp_path))
    recorder.value("inodes", "/fifo", reading.inode_flags)
    recorder.value("inodes", "/none", reading.inode_flags)
    assert recorder.document["inodes"]["/none"] == {"error": "ENOENT"}


@pytest.mark.parametrize(
    ("options", "has"),
    [((), 0), (("-O", "inline_data"), 0x8000), (("-O", "encrypt"), 0x10000), (("-O", "^extents,^64bit"), 0)],
)
def test_the_features_of_a_real_filesystem(tmp_path: Path, options: tuple[str, ...], has: int) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(image)], check=True, capture_output=True)
    features = reading.ext4_features(str(image))
    assert features["incompat"] & (0x8000 | 0x10000) == has


def test_what_is_no_ext4_has_no_features(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(4096))
    (tmp_path / "short").write_bytes(bytes(10))
    recorder = Recorder(root=str(tmp_path))
    for name in ("zeros", "short"):
        recorder.value("features", name, reading.ext4_features, f"/{name}")
        assert recorder.document["features"][name] == {"error": "no ext4 superblock"}


def space(*capabilities: tuple[int, bytes], size: int = 4096) -> bytes:
    """A PCI configuration space with extended capabilities, each linked to the next."""
    config = bytearray(size)
    at = 0x100
    for number, (ident, body) in enumerate(capabilities, 1):
        after = at + 0x40 if number < len(capabilities) else 0
        struct.pack_into("<I", config, at, ident | 1 << 16 | after << 20)
        config[at + 4 : at + 4 + len(body)] = body
        at = after
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "control"),
    [
        (space((0x0001, b""), (0x000D, struct.pack("<HH", 0x5F, 0x1D))), 0x1D),
        (space((0x000D, struct.pack("<HH", 0x5F, 0))), 0),
        (space((0x0001, b""), (0x0003, b"")), reading.NO_ACS),
        (space(size=256), reading.NO_ACS),
        # A chain without an end, as broken hardware has it.
        (space((0x0001, b""))[:0x100] + struct.pack("<I", 0x0001 | 0x100 << 20) + bytes(4096 - 0x104), reading.NO_ACS),
    ],
)
def test_access_control_of_a_bridge(tmp_path: Path, config: bytes, control: int) -> None:
    (tmp_path / "config").write_bytes(config)
    assert reading.acs_control(str(tmp_path / "config")) == control


@pytest.mark.parametrize(
    ("capabilities", "type_"),
    # As lspci -xxx shows a root port (01 power management, 10 PCI Express of version 2, type 4), a downstream port, an
    # old PCI bridge, and a chain without an end.
    [
        ({0x34: [0x40], 0x40: [0x01, 0x60], 0x60: [0x10, 0x00, 0x42, 0x01]}, 4),
        ({0x34: [0x80], 0x80: [0x10, 0x40, 0x62, 0x00]}, 6),
        ({0x34: [0x40], 0x40: [0x0D, 0x00]}, reading.NO_TYPE),
        ({0x34: [0x40], 0x40: [0x01, 0x40]}, reading.NO_TYPE),
    ],
)
def test_type_of_a_bridge(tmp_path: Path, capabilities: dict[int, list[int]], type_: int) -> None:
    config = bytearray(256)
    for at, content in capabilities.items():
        config[at : at + len(content)] = bytes(content)
    (tmp_path / "config").write_bytes(config)
    assert reading.port_type(str(tmp_path / "config")) == type_


def test_access_control_is_for_root(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(bytes(64))
    recorder = Recorder(root=str(tmp_path))
    recorder.value("acs", "0000:00:01.0", reading.acs_control, "/config")
    assert recorder.document["acs"] == {"0000:00:01.0": {"error": "EACCES"}}


def test_every_bridge_of_this_machine_has_an_answer() -> None:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        if (device / "class").read_text().startswith("0x0604"):
            assert reading.acs_control(str(device / "config")) >= reading.NO_ACS


def test_who_may_open(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    recorder = Recorder(root=str(tmp_path))
    for name in ("/there", "/gone"):
        recorder.value("opens", name, reading.try_open)
    assert recorder.document["opens"] == {"/there": "ok", "/gone": {"error": "ENOENT"}}


ROOT = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
NVME = "2 1 259:0 / /mnt/a\\040b rw - ext4 /dev/nvme0n1 rw\n"
COVER = "3 1 0:61 / /mnt rw - nfs4 server:/home rw,proto=tcp\n"


@pytest.mark.parametrize(
    ("text", "path", "ident"),
    [
        *((ROOT + NVME + "odd\n", path, "1") for path in ("/", "/mnt/a bc", "/mntx", "//mnt//a")),
        *((ROOT + NVME, path, "2") for path in ("/mnt/a b", "/mnt/a b/c", "/mnt/a b/")),
        (ROOT + NVME, "x", None),
        # A later mount above it covers it; one on top of it does, too; one that the later mount has itself doesn't.
        (ROOT + NVME + COVER, "/mnt/a b", "3"),
        (COVER + NVME + ROOT, "/mnt/a b/c", "3"),
        (ROOT + NVME + "3 2 0:61 / /mnt/a\\040b rw - tmpfs tmpfs rw\n", "/mnt/a b", "3"),
        (ROOT + COVER + NVME.replace("2 1", "2 3"), "/mnt/a b", "2"),
        (ROOT + "9 1 0:9 / / rw - tmpfs tmpfs rw\n" + NVME, "/mnt/a b", "9"),
        # A process whose root is a folder, an initramfs that is its own parent, and what no kernel prints.
        (NVME, "/mnt/a b", "2"),
        (NVME, "/", None),
        ("1 1 0:2 / / rw - rootfs rootfs rw\n" + NVME, "/mnt/a b", "2"),
        ("1 2 8:1 / / rw - ext4 a rw\n2 1 8:1 / / rw - ext4 a rw\n1 2 8:1 / / rw - ext4 a rw\n", "/", None),
        ("", "/", None),
    ],
)
def test_the_mount_of_a_path(text: str, path: str, ident: str | None) -> None:
    row = Mounts(text).at(path)
    assert (row.id if row else None) == ident


def test_a_covered_mount_is_told_from_none() -> None:
    mounts = Mounts(ROOT + NVME + COVER)
    assert sorted(mounts.visible) == ["/", "/mnt"]
    assert (mounts.is_hidden("/mnt/a b"), mounts.is_hidden("/srv")) == (True, False)


def test_every_mount_of_this_machine_is_the_one_that_the_kernel_finds() -> None:
    mounts = Mounts(Path("/proc/self/mountinfo").read_text())
    for point, row in mounts.visible.items():
        if row.filesystem != "autofs":
            descriptor = os.open(point, os.O_PATH)
            assert id_of(descriptor) == row.id
            os.close(descriptor)


def test_the_interfaces_in_a_ports_table_are_kept_once(root: Path) -> None:
    """Most entries aren't in use; reading one fails, here because it is a folder."""
    port = "sys/class/infiniband/mlx5_0/ports/1"
    table = root / port / "gid_attrs" / "ndevs"
    for name in map(str, range(8, 256)):
        (table / name).mkdir(parents=True)
    for number, name in enumerate(("ens1", "ens1", "ens1.100", "ens1", "ens1", "ens1.100", "bond0", "ens1")):
        (table / str(number)).write_text(name + "\n")
    (root / port / "state").write_text("4: ACTIVE\n")
    record = recorder(root)
    collect_fit(record, NOTHING)
    assert record.document["excerpts"][f"/{port}/gid_attrs/ndevs"]["lines"] == ["bond0", "ens1", "ens1.100"]
    assert record.document["files"][f"/{port}/state"] == "4: ACTIVE\n"
