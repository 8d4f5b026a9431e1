"""Faults that a kernel can really be made to have: mounts in a mount namespace of their own, which vanish with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy.host.explain import explain
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.host.subjects.path import Path as Taken

ROOT = Path(__file__).parents[4]
#: Runs as root in the namespace; a loop device is given back with the last mount of it.
MAKE = r"""
set -eu
cd "$1"
made() { name=$1; shift; truncate -s 8M "$name.img"; mkfs.ext4 -q -F "$@" "$name.img"; mkdir "$name"; }
made journalled;           mount -o loop,data=journal journalled.img journalled
made writeback;            tune2fs -o journal_data_writeback writeback.img >&2; mount -o loop writeback.img writeback
made bare -O ^has_journal; mount -o loop bare.img bare
made inline -O inline_data,encrypt -I 256
mount -o loop,data=ordered inline.img inline
printf small > inline/small
head -c 65536 /dev/zero > inline/large
mkdir inline/secret; "$2" -c "$3" inline/secret
mkdir memory upper work layers 'with space'
mount -t tmpfs none memory
mount -t overlay -o lowerdir=inline,upperdir=upper,workdir=work none layers
mount --bind inline 'with space'
exec "$2" -c "$4" "$1"
"""
#: Gives a folder the encryption that its files inherit (linux/fscrypt.h); the key is in the kernel's memory alone.
ENCRYPT = """
import fcntl, os, struct, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
key = bytearray(struct.pack("=II32sII32s", 2, 0, b"", 64, 0, b"") + os.urandom(64))
fcntl.ioctl(folder, 0xC0506617, key, True)
fcntl.ioctl(folder, 0x800C6613, struct.pack("=BBBBB3s16s", 2, 1, 4, 0, 0, b"", bytes(key[8:24])))
"""
COLLECT = """
import json, sys
from gdsdeploy.host.evidence import EvidenceRequest, collect
names = ("inline/small", "inline/large", "inline/secret", "inline/none", "layers/small")
print(json.dumps(collect(EvidenceRequest(mounts=tuple(sys.argv[1] + "/" + name for name in names)))))
"""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostFacts, Path]:
    folder = tmp_path_factory.mktemp("mounts")
    # Apart from programs of other tests, which may have loaded libcufile.
    apart = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = ["unshare", "--mount", "--propagation", "private", *apart, "sh", "-c", MAKE, "sh", folder, sys.executable]
    done = subprocess.run(
        [*argv, ENCRYPT, COLLECT],
        cwd=ROOT, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return facts_from(json.loads(done.stdout)), folder


def explain_path(mounted: tuple[HostFacts, Path], name: str) -> Taken:
    facts, folder = mounted
    return explain(facts, (), f"{folder}/{name}").mounts[0].path


def cause(path: Taken, ident: str) -> str:
    """The words and evidence of a cause or note, empty where it is none of them."""
    every = (*path.causes, *path.suspects, *path.notes)
    return next(("\n".join((note.what, *note.evidence)) for note in every if note.id == ident), "")


def test_journal_modes(mounted: tuple[HostFacts, Path]) -> None:
    assert "data=journal" in cause(explain_path(mounted, "journalled"), "ext4.not-ordered")
    shown = cause(explain_path(mounted, "writeback"), "ext4.not-ordered")
    assert "mounted with data=writeback" in shown
    assert "/proc/fs/ext4/loop" in shown, "the default of the superblock is in no mount option"
    assert "has no journal" in cause(explain_path(mounted, "bare"), "ext4.not-ordered")
    assert cause(explain_path(mounted, "inline"), "ext4.not-ordered") == ""


def test_a_loop_device_is_no_disk(mounted: tuple[HostFacts, Path]) -> None:
    assert "isn't an NVMe disk (loop)" in cause(explain_path(mounted, "inline"), "storage.no-nvme")


def test_files_with_their_data_elsewhere(mounted: tuple[HostFacts, Path]) -> None:
    assert "has its data in its inode" in cause(explain_path(mounted, "inline/small"), "filesystem.inline-data")
    assert "has its data in its inode" not in cause(explain_path(mounted, "inline/large"), "filesystem.inline-data")
    assert "is encrypted (fscrypt)" in cause(explain_path(mounted, "inline/secret"), "filesystem.encrypted")
    assert "is encrypted" not in cause(explain_path(mounted, "inline/large"), "filesystem.encrypted")


def test_features_of_the_superblock(mounted: tuple[HostFacts, Path]) -> None:
    facts, folder = mounted
    mount = facts.storage.mount_of(f"{folder}/inline")
    assert mount.device.ext4_features == ("inline_data", "encrypt")  # type: ignore[union-attr]
    plain = facts.storage.mount_of(f"{folder}/journalled")
    assert plain.device.ext4_features == ()  # type: ignore[union-attr]


def test_layers_and_memory(mounted: tuple[HostFacts, Path]) -> None:
    assert "for overlay: it combines several folders" in cause(explain_path(mounted, "layers/small"), "filesystem.kind")
    assert "for tmpfs: its data is already in memory" in cause(explain_path(mounted, "memory"), "filesystem.kind")
    assert "isn't an NVMe disk (loop)" in cause(explain_path(mounted, "with space"), "storage.no-nvme")


def test_all_at_once(mounted: tuple[HostFacts, Path]) -> None:
    facts, folder = mounted
    mounts = {mount.mount.mount_point for mount in explain(facts, ()).mounts}
    named = {"journalled", "writeback", "bare", "inline", "layers", "with space"}
    assert {f"{folder}/{name}" for name in named} <= mounts
    assert f"{folder}/memory" not in mounts, "memory holds no data that a GPU reads from a disk"


def test_nothing_of_it_is_left(mounted: tuple[HostFacts, Path]) -> None:
    _, folder = mounted
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    for name in Path("/sys/block").glob("loop*/loop/backing_file"):
        assert str(folder) not in name.read_text()
