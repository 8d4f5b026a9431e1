"""Options of kernel modules as a resource, and the initramfs that has a copy of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply import restore
from gdsdeploy.host.apply.driver_options import Desired as DriverDesired, DriverOptions
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.module_options import PATH, Desired, ModuleOptions
from gdsdeploy.host.errors import DesiredError
from tests.unit.host.apply.apply_tree import Systemctl, apply, check, differing, tree

RELEASE, OTHER, WITHOUT_MODULES = "6.12.94-1", "6.12.90-1.x86_64", "6.1.0-1"
DESIRED = Desired(RELEASE, {"nvme_core": {"multipath": "N", "io_timeout": "60"}, "ib_core": {"recv_queue_size": "512"}})
TEXT = """\
# Rendered by gdsdeploy; changes here are overwritten.
options ib_core recv_queue_size=512
options nvme_core io_timeout=60 multipath=N
"""
DEBIAN = {RELEASE: ["update-initramfs", "-u", "-k", RELEASE], OTHER: ["update-initramfs", "-u", "-k", OTHER]}
RHEL = {release: ["dracut", "--force", f"/boot/initramfs-{release}.img", release] for release in (RELEASE, OTHER)}


@pytest.fixture(params=["update-initramfs", "dracut"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, list[str]]]:
    """A host with two kernels, and an initramfs of a third whose modules are gone."""
    name = "initrd.img-{}" if request.param == "update-initramfs" else "initramfs-{}.img"
    paths = [f"usr/sbin/{request.param}", "boot/initramfs-0-rescue-x.img", "boot/initramfs-6.12.94-1kdump.img"]
    paths += [f"boot/{name.format(release)}" for release in (RELEASE, OTHER, WITHOUT_MODULES)]
    paths += [f"lib/modules/{release}/modules.dep" for release in (RELEASE, OTHER)]
    for path in [*paths, "etc/modprobe.d/x.conf", "var/lib/gdsdeploy/x"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path, DEBIAN if request.param == "update-initramfs" else RHEL


def test_the_first_run_the_second_one_and_a_removal(
    host: tuple[Path, dict[str, list[str]]], systemctl: Systemctl
) -> None:
    root, argv = host
    before = tree(root)
    predicted = check(root, ModuleOptions(), DESIRED).changes
    assert [(change.kind, change.subject) for change in predicted] == [("write", PATH), ("initramfs", RELEASE)]
    assert (differing(before, tree(root)), systemctl.calls) == (set(), [])
    assert apply(root, ModuleOptions(), DESIRED) == predicted
    assert ((root / PATH[1:]).read_text(), systemctl.calls) == (TEXT, [argv[RELEASE]])
    assert apply(root, ModuleOptions(), DESIRED) == []
    prediction = ModuleOptions().revert(ManagedHost(check=True, root=str(root)))
    assert systemctl.calls == [argv[RELEASE]]
    changes = ModuleOptions().revert(ManagedHost(root=str(root)))
    # Every kernel that was installed meanwhile has a copy, too.
    assert [(change.kind, change.subject) for change in changes] == [
        ("delete", PATH), ("initramfs", OTHER), ("initramfs", RELEASE),
    ]  # fmt: skip
    assert prediction == changes
    assert systemctl.calls[1:] == [argv[OTHER], argv[RELEASE]]
    assert differing(before, tree(root)) == set()
    assert ModuleOptions().revert(ManagedHost(root=str(root))) == []


def test_a_profile_without_options_takes_the_file_away(
    host: tuple[Path, dict[str, list[str]]], systemctl: Systemctl
) -> None:
    root, argv = host
    assert apply(root, ModuleOptions(), Desired(RELEASE)) == []
    apply(root, ModuleOptions(), DESIRED)
    changes = apply(root, ModuleOptions(), Desired(RELEASE))
    assert [change.kind for change in changes] == ["delete", "initramfs"]
    assert systemctl.calls == [argv[RELEASE], argv[RELEASE]]
    assert not (root / PATH[1:]).exists()


def test_a_kernel_that_is_not_installed_yet_makes_its_own_initramfs(tmp_path: Path, systemctl: Systemctl) -> None:
    assert [change.kind for change in apply(tmp_path, ModuleOptions(), DESIRED)] == ["write"]
    assert systemctl.calls == []


def test_the_removal_of_the_drivers_file_takes_nvmes_option_out_of_the_initramfs(
    host: tuple[Path, dict[str, list[str]]], systemctl: Systemctl
) -> None:
    root, argv = host
    apply(root, DriverOptions(), DriverDesired(RELEASE))
    DriverOptions().revert(ManagedHost(root=str(root)))
    assert systemctl.calls == [argv[RELEASE]], "nothing of NVMe was in it"
    apply(root, DriverOptions(), DriverDesired(RELEASE, p2pdma=True))
    DriverOptions().revert(ManagedHost(root=str(root)))
    assert systemctl.calls[2:] == [argv[OTHER], argv[RELEASE]]


def test_a_rollback_makes_the_initramfs_of_the_file_from_before(
    host: tuple[Path, dict[str, list[str]]], systemctl: Systemctl
) -> None:
    root, argv = host
    apply(root, ModuleOptions(), DESIRED)
    desired = restore.Desired("apt", "remove", files=[restore.FileBefore(PATH)], new_kernels=[OTHER])
    predicted = check(root, restore.Restore(), desired).changes
    assert [(change.kind, change.subject) for change in predicted] == [("delete", PATH), ("initramfs", RELEASE)]
    assert apply(root, restore.Restore(), desired) == predicted
    assert systemctl.calls == [argv[RELEASE], argv[RELEASE]]
    assert apply(root, restore.Restore(), desired) == []


@pytest.mark.parametrize(
    "options",
    [{"a b": {"x": "1"}}, {"a": {"x y": "1"}}, {"a": {"x": "1 y=2"}}, {"a": {"x": 'q"'}}, {"a": {"x": "\\"}}, {"": {}}],
)
def test_what_would_become_another_line_or_word(tmp_path: Path, options: dict[str, dict[str, str]]) -> None:
    with pytest.raises(DesiredError):
        apply(tmp_path, ModuleOptions(), Desired(RELEASE, options))
