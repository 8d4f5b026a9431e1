"""Direct I/O over the layers that storage is built of, on a real NVMe disk and a real NFS server.

They are made on the VM's disk by the layers' own tools (dm-crypt, LVM, md, XFS, Btrfs, ext4, NFS), tried, and taken
away.  What the tools need is fetched on the light host, at native speed, and laid over the VM's files meanwhile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.subjects.odirect import ALIGNED, BUFFERED, BYPASSED, FELL_BACK, REFUSED
from gdsdeploy.zipapp import hostapp
from gdslab import LabHost
from tests.lab import fetched

pytestmark = pytest.mark.lab

LAYERS = (Path(__file__).parent / "storage_layers.sh").read_text()
PACKAGES = [
    *("cryptsetup-bin", "lvm2", "mdadm", "fdisk", "xfsprogs", "btrfs-progs"),
    *("nfs-kernel-server", "nfs-common", "rpcbind"),
]
PATIENCE = 600


@pytest.fixture(scope="module")
def trials(lab: Any) -> dict[str, dict[str, Any]]:
    """Name of the layer → the program's result."""
    vm: LabHost = lab.host("gpu1")
    light: LabHost = lab.host("build1")
    vm.wait_ssh(420)
    light.wait_ssh()
    with_tools = fetched.fetch(PACKAGES, vm, light, fetched.FILES)
    unpack = "mkdir -p /run/storage-tools && base64 -d | tar -xz -C /run/storage-tools"
    vm.ssh(["sudo", "sh", "-c", unpack], input=with_tools, timeout=PATIENCE)
    vm.ssh(["sudo", "tee", "/run/storage-tools/host.pyz"], input=hostapp.build())
    vm.ssh(["sudo", "umount", "/mnt/nvme"])
    argv = ["sudo", "unshare", "--mount", "bash", "-c", LAYERS, "layers", "/run/storage-tools"]
    try:
        done = vm.ssh([*argv, "/run/storage-tools/host.pyz"], timeout=PATIENCE)
    finally:
        again = "mke2fs -q -F -t ext4 -L nvme /dev/nvme0n1 && mount /mnt/nvme && rm -r /run/storage-tools /run/storage"
        vm.ssh(["sudo", "sh", "-c", again])
    entries = json.loads(done.stdout)["paths"]
    return {entry["path"].removeprefix("/run/storage/srv/"): entry for entry in entries}


def results(path: dict[str, Any]) -> set[str]:
    return {trial["result"] for trial in path["trials"] if trial["name"] in ALIGNED}


def condition(path: dict[str, Any], name: str) -> tuple[str | None, str]:
    (entries,) = [entry for entry in path["conditions"] if entry["name"] == name]
    return entries["state"], " ".join(entries["said"])


def test_each_mount_took_less_than_its_time(trials: dict[str, dict[str, Any]]) -> None:
    assert len(trials) == 11
    assert {name: trial["reason"] for name, trial in trials.items() if trial["reason"]} == {}
    # Software emulation is some twenty times slower than a machine.
    assert max(trial["seconds"] for trial in trials.values()) < 10


@pytest.mark.parametrize("name", ["stripe", "mirror", "crypt", "lvm", "cache", "plain"])
def test_layers_of_blocks_leave_direct_io_as_it_is(trials: dict[str, dict[str, Any]], name: str) -> None:
    assert results(trials[name]) == {BYPASSED}
    odd = {(trial["result"], trial["error"]) for trial in trials[name]["trials"] if "unaligned" in trial["name"]}
    assert (REFUSED, "EINVAL") in odd
    assert trials[name]["alignment"]["offset"] % 512 == 0


def test_each_layer_is_named_by_its_own_words(trials: dict[str, dict[str, Any]]) -> None:
    state, detail = condition(trials["crypt"], "encryption")
    assert (state, "CRYPT-LUKS2-" in detail) == ("on", True)
    state, detail = condition(trials["lvm"], "LVM")
    assert (state, "LVM-" in detail) == ("on", True)
    state, detail = condition(trials["cache"], "tiering")
    assert (state, detail) == ("on", "dmsetup table: dm-2: cache")
    for name, level in (("stripe", "raid0"), ("mirror", "raid1")):
        state, detail = condition(trials[name], "RAID or erasure coding")
        assert (state, detail.endswith("md/level: " + level)) == ("on", True)
    for name in ("RAID or erasure coding", "LVM", "multipath", "tiering", "encryption"):
        assert condition(trials["plain"], name)[0] == "off"


def test_journalled_data_and_checksums_go_through_the_cache(trials: dict[str, dict[str, Any]]) -> None:
    assert results(trials["journal"]) <= {BUFFERED, FELL_BACK}
    assert condition(trials["journal"], "data journalling")[0] == "on"
    assert condition(trials["btrfs"], "checksums")[0] == "on"
    # Kernels differ in this: 6.12 writes past the cache, later ones do not.
    assert results(trials["btrfs"]) <= {BYPASSED, BUFFERED, FELL_BACK}


def test_a_flag_for_journalled_data_is_nothing_beside_delayed_allocation(trials: dict[str, dict[str, Any]]) -> None:
    assert results(trials["plain/flagged"]) == {BYPASSED}
    assert condition(trials["plain/flagged"], "data journalling")[0] == "off"


@pytest.mark.parametrize("name", ["nfs4", "nfs3"])
def test_nfs_bypasses_the_client_s_cache_and_takes_any_alignment(trials: dict[str, dict[str, Any]], name: str) -> None:
    path = trials[name]
    assert (path["filesystem"], results(path) - {"not proven"}) == (name.removesuffix("3"), {BYPASSED})
    assert {trial["result"] for trial in path["trials"] if "unaligned" in trial["name"]} == {BYPASSED}
    assert "proto=tcp" in (condition(path, "transport")[0] or "")
    (journalling,) = [entry for entry in path["conditions"] if entry["name"] == "data journalling"]
    assert (journalling["state"], "the servers of nfs" in journalling["reason"]) == (None, True)
