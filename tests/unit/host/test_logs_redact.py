"""``--redact``: what identifies a site is gone, what a reader needs stays, and the same thing has the same stand-in."""

from __future__ import annotations

import re

import pytest

from gdsdeploy.host.logs.files import answer_to
from gdsdeploy.host.logs.redact import redacted

PASTE = """\
alice@gpu7:~$ ssh bob@storage9.rack2.corp.example.com   # mail alice.smith@example.org
Nov 26 12:00:00 gpu7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
Nov 26 12:00:01 gpu7 kernel: mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged
Nov 26 12:00:02 gpu7 sshd[123]: Accepted publickey for user alice from 10.20.30.40 port 22
gpu7:1234:1299 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:10.20.30.41<0>
rdma_dev_addr_list: 10.20.30.40 fe80::1234:56ff:fe78:9abc 2001:470:1:2::5
    link/ether b8:ce:f6:12:34:56 brd ff:ff:ff:ff:ff:ff
    GPU UUID                              : GPU-5a6b7c8d-1234-5678-9abc-def012345678
    Serial Number                         : 1654922007536
node_guid: b8ce:f603:0012:3456  wwn 0x5000c500a1b2c3d4  /dev/disk/by-id/wwn-0x5000c500a1b2c3d4
cuFileHandleRegister failed for /home/alice/data/train.bin at /mnt/nvme, err 5027
err=5030 on node12.rack3.site9.example, GPU serial 1320921000123; ask carol@site9.example
GDS release version: 1.13.0.11  nvidia_fs version: 2.25.7  kernel 6.8.0-45-generic  see docs.nvidia.com and github.com
"""
SECRET = (
    "alice", "gpu7", "bob", "storage9", "rack2", "smith", "10.20.30.40", "10.20.30.41", "fe80::1234:56ff:fe78:9abc",
    "2001:470", "b8:ce:f6", "5a6b7c8d", "1654922007536", "b8ce:f603", "5000c500a1b2c3d4",
    "node12", "rack3", "site9", "1320921000123", "carol",
)  # fmt: skip
NEEDED = (
    "PCI:0000:3b:00): 79", "0000:5e:00.0", "1.13.0.11", "2.25.7", "6.8.0-45-generic", "err 5027", "mlx5_0", "NVRM",
    "/mnt/nvme", "docs.nvidia.com", "github.com", "train.bin",
)  # fmt: skip


@pytest.mark.parametrize("word", SECRET)
def test_what_identifies_a_site_is_gone(word: str) -> None:
    assert word in PASTE
    assert word not in redacted([("paste", PASTE.encode())])


@pytest.mark.parametrize("word", NEEDED)
def test_what_a_reader_needs_stays(word: str) -> None:
    assert word in PASTE
    assert word in redacted([("paste", PASTE.encode())])


def test_the_same_thing_has_the_same_stand_in_in_all_files() -> None:
    text = redacted([("one", PASTE.encode()), ("two", b"on gpu7, with 10.20.30.40\n")])
    (stand_in,) = set(re.findall(r"(\S+) kernel: ", text))
    (address,) = set(re.findall(r"for user \S+ from (\S+) port", text))
    assert text.endswith(f"on {stand_in}, with {address}\n")
    assert text.count("==> ") == 2


def test_redacting_changes_no_answer() -> None:
    before, after = (
        answer_to([("paste", data)]) for data in (PASTE.encode(), redacted([("paste", PASTE.encode())]).encode())
    )
    assert [cause.id for cause in before.causes] == [cause.id for cause in after.causes]
    assert [part.kind for part in before.parts] == [part.kind for part in after.parts]
