from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply.boot_default import BootDefault
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.boot import grub
from gdsdeploy.host.boot.loader import loader
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.kernel_hosts import KERNEL_COMES, apply, check, predicted, short
from tests.unit.host.kmod.kmod_root import EXPECTED, RELEASE, Root

OTHER = "6.1.0-50-amd64"
DESIRED = {"release": RELEASE}
ADMITTED = [("boot", RELEASE, "default")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host that boots the other kernel, by entries as on RHEL; the locked one has good modules."""
    host = Root(tmp_path)
    host.nvidia()
    host.nvidia_fs()
    host.etc("etc/gdsdeploy/expectation.json", EXPECTED.to_json())
    for release in (OTHER, RELEASE):
        host.etc(f"boot/loader/entries/m-{release}.conf", f"version {release}\nlinux /vmlinuz-{release}\n")
    host.etc("boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry=m-{OTHER}\n".ljust(1024, "#"))
    return tmp_path


def bad_modules(root: Path) -> None:
    for path in root.rglob("nvidia-fs.ko"):
        path.unlink()


def test_the_locked_kernel_becomes_the_default_once(root: Path) -> None:
    changes = check(root, "boot_default", DESIRED).changes
    assert (short(changes), changes[0].before) == (ADMITTED, OTHER)
    assert loader(str(root)).kernels()["default"] == OTHER
    assert short(apply(root, "boot_default", DESIRED).changes) == ADMITTED
    assert loader(str(root)).kernels()["default"] == RELEASE
    assert apply(root, "boot_default", DESIRED).changes == []


def test_a_kernel_without_good_modules_does_not(root: Path) -> None:
    bad_modules(root)
    assert "has no module nvidia_fs" in check(root, "boot_default", DESIRED).unknown[0]
    with pytest.raises(ApplyError, match="is not admitted: it has no module nvidia_fs") as caught:
        apply(root, "boot_default", DESIRED)
    assert (caught.value.kind, "as before" in caught.value.hint) == ("modules", True)
    assert loader(str(root)).kernels()["default"] == OTHER


@pytest.mark.parametrize("name", ["modules", "expectation"])
def test_what_comes_before_decides_later(root: Path, name: str) -> None:
    bad_modules(root)
    assert short(predicted(root, "boot_default", DESIRED, Change("place", "x", resource=name))) == ADMITTED


def test_a_kernel_that_is_yet_to_be_installed(root: Path) -> None:
    (root / f"boot/loader/entries/m-{RELEASE}.conf").unlink()
    result = check(root, "boot_default", DESIRED)
    assert (result.changes, f"no entry for kernel {RELEASE}" in result.unknown[0]) == ([], True)
    assert short(predicted(root, "boot_default", DESIRED, KERNEL_COMES)) == ADMITTED


def test_a_host_without_an_expectation_is_not_judged_good(root: Path) -> None:
    (root / "etc/gdsdeploy/expectation.json").unlink()
    assert "expectation" in check(root, "boot_default", DESIRED).unknown[0]


def test_the_choice_is_given_back_to_grub(tmp_path: Path) -> None:
    (tmp_path / "boot/grub").mkdir(parents=True)
    (tmp_path / "boot/grub/grub.cfg").write_text("menuentry x --id x {\nlinux /vmlinuz-1\n}\n")
    host = ManagedHost(check=True, root=str(tmp_path))
    assert BootDefault().revert(host) == []
    (tmp_path / grub.DEFAULTS.lstrip("/")).parent.mkdir(parents=True)
    (tmp_path / grub.DEFAULTS.lstrip("/")).write_text("GRUB_DEFAULT=saved\n")
    assert [change.kind for change in BootDefault().revert(host)] == ["boot"]
    assert (tmp_path / grub.DEFAULTS.lstrip("/")).exists()
