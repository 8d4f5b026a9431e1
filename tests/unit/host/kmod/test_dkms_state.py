"""What DKMS has done, read from its folders; dkms 3.2.2 says the same of these, in other words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host.evidence import NOTHING
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.kmod.packaged import DIFFERS, dkms_status
from gdsdeploy.host.subjects import packages
from tests.unit.host.kmod.kmod_elf import SIGNATURE, write_module

KERNEL, NEWER = "6.12.94+deb13-amd64", "6.12.117+deb13-amd64"
INSTALLED = [
    f"nvidia-current-open/550.163.01, {NEWER}, x86_64: built",
    f"nvidia-current-open/550.163.01, {KERNEL}, x86_64: installed",
    "nvidia-fs/2.19.7: added",
]


def build(root: Path, name: str, version: str, release: str, files: tuple[str, ...] = ()) -> Path:
    folder = root / "var/lib/dkms" / name / version / release / "x86_64/module"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("built " + file)
    return folder.parent


def add(root: Path, name: str, version: str) -> None:
    source = root / "usr/src" / f"{name}-{version}"
    source.mkdir(parents=True)
    folder = root / "var/lib/dkms" / name / version
    folder.mkdir(parents=True, exist_ok=True)
    # As dkms makes it; absolute, so it means the root's own tree.
    (folder / "source").symlink_to(f"/usr/src/{name}-{version}")


def host(root: Path) -> Path:
    """A driver that is installed for one kernel and built for another, and an nvidia-fs that is neither."""
    add(root, "nvidia-current-open", "550.163.01")
    add(root, "nvidia-fs", "2.19.7")
    built = build(root, "nvidia-current-open", "550.163.01", KERNEL, ("nvidia-current-open.ko.xz", "nvidia-uvm.ko.xz"))
    build(root, "nvidia-current-open", "550.163.01", NEWER)
    link = root / f"var/lib/dkms/nvidia-current-open/kernel-{KERNEL}-x86_64"
    link.symlink_to(f"550.163.01/{KERNEL}/x86_64")
    modules = root / "lib/modules" / KERNEL
    (modules / "updates/dkms").mkdir(parents=True)
    names = [path.name for path in (built / "module").iterdir()]
    for name in names:
        (modules / "updates/dkms" / name).write_text("built " + name)
    (modules / "modules.dep").write_text("".join(f"updates/dkms/{name}:\n" for name in names))
    return root


def test_added_built_and_installed(tmp_path: Path) -> None:
    assert dkms_status(str(host(tmp_path))) == INSTALLED


def changed(root: Path) -> Path:
    return root / "lib/modules" / KERNEL / "updates/dkms/nvidia-uvm.ko.xz"


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another file of the same size": (lambda root: changed(root).write_text("BUILT nvidia-uvm.ko.xz"), "DIFF"),
    "a longer file": (lambda root: changed(root).write_text("another one, longer than before"), "DIFF"),
    "no file": (lambda root: changed(root).unlink(), "DIFF"),
    "depmod doesn't list it": (
        lambda root: (root / f"lib/modules/{KERNEL}/modules.dep").write_text("kernel/other.ko:\n"),
        "DIFF",
    ),
    "no build": (
        lambda root: [path.unlink() for path in root.glob(f"var/lib/dkms/nvidia-*/*/{KERNEL}/x86_64/module/*")],
        "DIFF",
    ),
    "no link": (lambda root: next(root.glob("var/lib/dkms/*/kernel-*")).unlink(), "built"),
    "a link to the build of another version": (lambda root: relink(root, f"535.1/{KERNEL}/x86_64"), "built"),
    "a link that is no link": (lambda root: relink(root, ""), "built"),
}


def relink(root: Path, target: str) -> None:
    link = next(root.glob("var/lib/dkms/*/kernel-*"))
    link.unlink()
    if target:
        link.symlink_to(target)
    else:
        link.mkdir()


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_shows(tmp_path: Path, name: str) -> None:
    change, state = CHANGES[name]
    change(host(tmp_path))
    state = state.replace("DIFF", "installed (Diff between built and installed module!)")
    assert dkms_status(str(tmp_path))[1] == INSTALLED[1].replace("installed", state)


@pytest.mark.parametrize(("build_id", "state"), [(b"1" * 20, "installed"), (b"2" * 20, f"installed {DIFFERS}")])
def test_a_signature_that_came_later_is_no_difference(tmp_path: Path, build_id: bytes, state: str) -> None:
    built = next(host(tmp_path).glob(f"var/lib/dkms/*/*/{KERNEL}/x86_64/module/nvidia-uvm*"))
    write_module(built.with_name("nvidia-uvm.ko"), build_id=b"1" * 20)
    built.unlink()
    changed(tmp_path).unlink()
    write_module(changed(tmp_path).with_name("nvidia-uvm.ko"), build_id=build_id, signature=SIGNATURE)
    dep = tmp_path / f"lib/modules/{KERNEL}/modules.dep"
    dep.write_text(dep.read_text().replace("uvm.ko.xz", "uvm.ko"))
    assert dkms_status(str(tmp_path))[1] == INSTALLED[1].replace("installed", state)


def test_a_version_without_its_source_is_broken(tmp_path: Path) -> None:
    (host(tmp_path) / "usr/src/nvidia-fs-2.19.7").rmdir()
    assert dkms_status(str(tmp_path))[2] == "nvidia-fs/2.19.7: broken"
    (tmp_path / "usr/src/nvidia-fs-2.19.7").mkdir()
    (tmp_path / "var/lib/dkms/nvidia-fs/2.19.7/source").unlink()
    assert dkms_status(str(tmp_path))[2] == "nvidia-fs/2.19.7: broken"
    (tmp_path / "usr/src/nvidia-fs-2.19.7").rmdir()
    assert len(dkms_status(str(tmp_path))) == 2, "a folder of nobody's"


def test_an_empty_tree_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dkms").mkdir(parents=True)
    (tmp_path / "var/lib/dkms/dkms_dbversion").write_text("2.0.0\n")
    assert dkms_status(str(tmp_path)) == []


def test_a_kernel_that_is_gone_has_no_difference(tmp_path: Path) -> None:
    modules = host(tmp_path) / "lib/modules" / KERNEL
    modules.rename(tmp_path / "elsewhere")
    assert dkms_status(str(tmp_path)) == INSTALLED


def test_the_evidence_has_the_lines(tmp_path: Path) -> None:
    recorder = Recorder(60, root=str(host(tmp_path)))
    packages.collect_packages(recorder, NOTHING)
    assert "dkms" not in recorder.document["commands"], "no program was started"
    assert facts_from(recorder.document).packages.dkms == tuple(INSTALLED)
