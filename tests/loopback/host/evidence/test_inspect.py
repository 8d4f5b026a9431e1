"""What is read without words: inode flags, superblocks, configuration space; of real files where they can be made."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.evidence.storage import mount_of
from gdsdeploy.host.io import reading


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


@pytest.mark.parametrize(
    ("path", "mount"),
    [("/", "/"), ("/mnt/a b", "/mnt/a b"), ("/mnt/a b/c", "/mnt/a b"), ("/mnt/a bc", "/"), ("/mntx", "/"), ("x", "")],
)
def test_the_mount_of_a_path(path: str, mount: str) -> None:
    text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /mnt/a\\040b rw - ext4 /dev/sda2 rw\nodd\n"
    assert mount_of(path, text) == mount
