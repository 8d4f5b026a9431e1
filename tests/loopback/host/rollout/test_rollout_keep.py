"""The modules of a kernel are kept as an archive that the same host takes back."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from gdsdeploy.host.archive import pack
from gdsdeploy.host.errors import AuditError
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, RELEASE, Root

PLACE = f"var/lib/gdsdeploy/rollout/plan-1/modules-{RELEASE}.tar"
FILES = ["nvidia-fs.ko", "nvidia.ko"]


@pytest.fixture
def host(tmp_path: Path) -> Root:
    """A host with the modules as DKMS builds them."""
    root = Root(tmp_path)
    root.nvidia()
    root.nvidia_fs()
    root.depmod()
    return root


def kernel(host: Root) -> Kernel:
    return Kernel(RELEASE, str(host.path))


def keep_modules(host: Root) -> tuple[bool, str]:
    answer = pack.keep("plan-1", RELEASE, str(host.path))
    assert answer["modules"] == FILES
    assert answer["archive"] == "/" + PLACE
    return answer["changed"], answer["from"]


def received(host: Root) -> None:
    """The same modules as if they had come from a host that builds."""
    archive = host.path / "received.tar"
    pack.pack(kernel(host), (), str(archive))
    shutil.rmtree(host.modules / "updates/dkms")
    pack.install(str(archive), kernel(host))


def test_modules_that_were_built_here_are_packed_once(host: Root) -> None:
    assert keep_modules(host) == (True, "packed")
    assert keep_modules(host) == (False, "kept")
    assert sorted(module["file"] for module in pack.verify(str(host.path / PLACE))["modules"]) == FILES


def test_an_archive_of_provisions_that_has_them_is_copied(host: Root) -> None:
    provisioned = host.path / f"var/lib/gdsdeploy/modules-{RELEASE}.tar"
    provisioned.parent.mkdir(parents=True)
    pack.pack(kernel(host), (), str(provisioned))
    before = provisioned.read_bytes()
    assert keep_modules(host) == (True, "provision")
    provisioned.write_bytes(b"the next driver's")
    assert (host.path / PLACE).read_bytes() == before, "provision may replace its own"


def test_an_archive_of_other_modules_is_not_taken_for_them(host: Root) -> None:
    provisioned = host.path / f"var/lib/gdsdeploy/modules-{RELEASE}.tar"
    provisioned.parent.mkdir(parents=True)
    pack.pack(kernel(host), (), str(provisioned))
    host.nvidia(imports={"kfree": KERNEL_EXPORTS["kfree"], "_printk": KERNEL_EXPORTS["_printk"], "drm_open": 0xD0})
    assert keep_modules(host) == (True, "packed")


def test_received_modules_are_kept_as_they_came(host: Root) -> None:
    received(host)
    assert keep_modules(host) == (True, "installed")
    archive, other = str(host.path / PLACE), (host.path / "received.tar").read_bytes()
    assert pack.verify(archive) == pack.read_manifest(str(host.path / "received.tar"))
    assert Path(archive).read_bytes() == other


def test_received_modules_that_somebody_changed_are_audited_again(host: Root) -> None:
    received(host)
    module = host.modules / "updates/gdsdeploy/nvidia.ko"
    module.write_bytes(module.read_bytes() + b"\0")
    assert keep_modules(host) == (True, "packed")


def test_modules_that_fail_their_audit_are_not_kept(host: Root) -> None:
    host.nvidia(vermagic="5.10.0 SMP mod_unload modversions ")
    with pytest.raises(AuditError, match="vermagic"):
        keep_modules(host)
    assert not (host.path / PLACE).exists()


def test_what_was_kept_is_taken_back(host: Root) -> None:
    keep_modules(host)
    shutil.rmtree(host.modules / "updates/dkms")
    pack.install(str(host.path / PLACE), kernel(host))
    assert sorted(pack.module_digests(kernel(host))) == FILES


def test_a_kernel_without_nvidias_modules_has_nothing_to_keep(host: Root) -> None:
    shutil.rmtree(host.modules / "updates")
    answer = pack.keep("plan-1", RELEASE, str(host.path))
    assert (answer["changed"], answer["archive"], answer["modules"]) == (False, "", [])
    assert pack.keep("plan-1", "9.9.9", str(host.path))["archive"] == "", "nor one that is not installed"


def test_a_full_disk_leaves_nothing_behind(host: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    received(host)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep_modules(host)
    assert list((host.path / PLACE).parent.iterdir()) == []


def test_what_an_earlier_rollout_kept_goes_once_there_is_newer(host: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack.keep("plan-1", RELEASE, str(host.path))["archive"]
    with monkeypatch.context() as patch:
        patch.setattr(pack, "pack", _fails)
        with pytest.raises(OSError, match="full"):
            pack.keep("plan-2", RELEASE, str(host.path))
    assert (host.path / first[1:]).is_file(), "nothing newer was kept"
    second = pack.keep("plan-2", RELEASE, str(host.path))["archive"]
    assert (host.path / second[1:]).is_file()
    assert not (host.path / first[1:]).parent.exists()


def _fails(*_: object) -> None:
    raise OSError(28, "the disk is full")


def test_forget(host: Root) -> None:
    keep_modules(host)
    assert pack.forget_kept("plan-1", str(host.path))["changed"]
    assert not (host.path / PLACE).parent.exists()
    assert pack.forget_kept("plan-1", str(host.path))["changed"] is False
