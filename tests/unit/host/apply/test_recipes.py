"""DKMS recipes as files; what bash makes of them is in ``kmod/test_kmod_dkms_recipe.py``."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.host.apply import recipes
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.recipes import Recipes
from tests.unit.host.apply.kernel_hosts import apply, short

DRIVER = {
    "driver_version": "550.163.01",
    "driver_flavour": "open",
    "driver_tree": "/usr/src/nvidia-current-open-550.163.01",
    "driver_dkms_name": "nvidia-current-open",
}
FS = {"nvidia_fs_version": "2.19.7", "nvidia_fs_tree": "/usr/src/nvidia-fs-2.19.7"}


def test_one_recipe_for_each_package(tmp_path: Path) -> None:
    changes = apply(tmp_path, "recipes", {**DRIVER, **FS}).changes
    wrote = [name for kind, name, _ in short(changes) if kind == "write"]
    assert wrote == ["/etc/dkms/nvidia-fs.conf", "/etc/dkms/nvidia-current-open.conf"]
    assert apply(tmp_path, "recipes", {**DRIVER, **FS}).changes == []
    assert [
        change.subject for change in apply(tmp_path, "recipes", {**DRIVER, "driver_flavour": "proprietary"}).changes
    ] == ["/etc/dkms/nvidia-current-open.conf"]


def test_no_links_to_modules_of_other_kernels_are_made(tmp_path: Path) -> None:
    apply(tmp_path, "recipes", {**DRIVER, **FS})
    texts = [path.read_text() for path in (tmp_path / "etc/dkms").glob("nvidia*.conf")]
    assert len(texts) == 2
    assert all('\nNO_WEAK_MODULES="yes"\n' in text for text in texts)


def test_sources_are_recognized_by_the_version_that_dkms_has(tmp_path: Path) -> None:
    """Debian 12's package of nvidia-fs 2.13.5 has the version 2.13 in its dkms.conf and in its folder's name."""
    apply(tmp_path, "recipes", {**DRIVER, "nvidia_fs_version": "2.13.5", "nvidia_fs_tree": "/usr/src/nvidia-fs-2.13"})
    text = (tmp_path / "etc/dkms/nvidia-fs.conf").read_text()
    assert 'if [ "${PACKAGE_VERSION:-}" != "2.13" ]' in text


def test_without_nvidia_fs_there_is_none_for_it(tmp_path: Path) -> None:
    apply(tmp_path, "recipes", DRIVER)
    assert [path.name for path in (tmp_path / "etc/dkms").iterdir()] == ["nvidia-current-open.conf"]


def test_a_host_that_receives_its_modules_builds_for_no_kernel(tmp_path: Path) -> None:
    """NVIDIA's rpms bring DKMS and the source to every host, and build in their scriptlets."""
    received = {**DRIVER, **FS, "source": "receive"}
    apply(tmp_path, "recipes", {**DRIVER, **FS})
    apply(tmp_path, "recipes", received)
    texts = {path.read_text() for path in (tmp_path / "etc/dkms").glob("nvidia*.conf")}
    assert texts == {recipes.NOTHING}
    assert apply(tmp_path, "recipes", received).changes == []
    assert len(apply(tmp_path, "recipes", {**DRIVER, **FS}).changes) == 2, "a host may build again"


def entry(root: Path, name: str, version: str, *, source: bool) -> Path:
    """A version in DKMS, built for one kernel, whose source tree is there or gone."""
    folder = root / "var/lib/dkms" / name / version
    (folder / "6.1.0/x86_64/module").mkdir(parents=True)
    tree = root / f"usr/src/{name}-{version}"
    if source:
        tree.mkdir(parents=True)
    (folder / "source").symlink_to(f"/usr/src/{name}-{version}")
    (folder.parent / f"kernel-6.1.0-{version}").symlink_to(f"{version}/6.1.0/x86_64")
    return folder


def test_entries_of_dkms_whose_source_is_gone_are_deleted(tmp_path: Path) -> None:
    """``dkms remove`` fails at them, and with it the prerm of a package."""
    whole = entry(tmp_path, "nvidia-current-open", "550.163.01", source=True)
    lost = entry(tmp_path, "nvidia-current-open", "535.1", source=False)
    other = entry(tmp_path, "nvidia-srv", "570.1", source=False)
    foreign = entry(tmp_path, "zfs", "2.3.1", source=False)
    changes = apply(tmp_path, "recipes", {**DRIVER, **FS}).changes
    assert [(change.subject, change.reason) for change in changes if change.kind == "delete"] == [
        (f"/var/lib/dkms/{name}", "no-source")
        for name in (
            *("nvidia-current-open/535.1", "nvidia-current-open/kernel-6.1.0-535.1"),
            *("nvidia-srv/570.1", "nvidia-srv/kernel-6.1.0-570.1"),
        )
    ]
    assert [path.exists() for path in (whole, lost, other, foreign)] == [True, False, False, True]
    assert (whole.parent / "kernel-6.1.0-550.163.01").is_symlink()
    assert not (whole.parent / "kernel-6.1.0-535.1").is_symlink()
    assert apply(tmp_path, "recipes", {**DRIVER, **FS}).changes == []


def test_recipes_of_others_stay(tmp_path: Path) -> None:
    apply(tmp_path, "recipes", {**DRIVER, **FS})
    for name in ("framework.conf", "zfs.conf"):
        (tmp_path / "etc/dkms" / name).write_text("# somebody else's\n")
    # An older version left one that no record has.
    (tmp_path / "etc/dkms/old.conf").write_text("# Rendered by gdsdeploy; changes here are overwritten.\n")
    predicted = Recipes().revert(ManagedHost(check=True, root=str(tmp_path)))
    done = Recipes().revert(ManagedHost(root=str(tmp_path)))
    assert predicted == done
    assert len(done) == 3
    assert sorted(path.name for path in (tmp_path / "etc/dkms").iterdir()) == ["framework.conf", "zfs.conf"]
