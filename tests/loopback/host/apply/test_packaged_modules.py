"""Modules that locked packages bring: what has precedence over them leaves, and they are audited."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import host as hosts
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.apply.packages.managers import Installed, Package, manager
from gdsdeploy.host.apply.packages.transaction import Desired as Packages, plan
from gdsdeploy.host.apply.reboot import Desired as Reboot, causes
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.kmod.kernel import override_line
from gdsdeploy.host.process import Output
from tests.unit.host.apply.kernel_hosts import KERNEL_COMES, apply, check, predicted, short, tree_of
from tests.unit.host.kmod.kmod_root import RELEASE, VERSION
from tests.unit.host.kmod.packaged_root import DRIVER, DRIVER_FILE, PackagedRoot

DKMS = f"nvidia/{VERSION}"
UNINSTALL = ("unbuild", DKMS, "shadows")
RECEIVED = ("delete", f"/lib/modules/{RELEASE}/updates/gdsdeploy", "shadows")


def desired(root: PackagedRoot, **changes: Any) -> dict[str, Any]:
    return {
        "source": "packaged",
        "kernel_release": RELEASE,
        "driver_version": VERSION,
        "driver_flavour": "open",
        "driver_tree": "",
        "driver_dkms_name": "",
        "nvidia_fs_version": "2.19.7",
        "names": ["nvidia", "nvidia-fs"],
        "packaged": [asdict(file) for file in root.files],
        **changes,
    }


@pytest.fixture
def root(tmp_path: Path) -> PackagedRoot:
    return PackagedRoot(tmp_path)


def received(root: PackagedRoot) -> None:
    """What a host has left that received its modules before."""
    root.nvidia("updates/gdsdeploy/nvidia.ko")
    text = "# Rendered by gdsdeploy\n" + override_line("updates/gdsdeploy/nvidia.ko", RELEASE)
    root.etc(f"etc/depmod.d/gdsdeploy-{RELEASE}.conf", text)
    root.depmod()


def test_a_host_whose_packages_are_in_place_needs_nothing(root: PackagedRoot) -> None:
    before = tree_of(root.path)
    assert check(root.path, "modules", desired(root)).changes == []
    assert apply(root.path, "modules", desired(root)).changes == []
    assert tree_of(root.path) == before


def test_what_the_host_received_before_leaves(root: PackagedRoot) -> None:
    received(root)
    before = tree_of(root.path)
    assert short(check(root.path, "modules", desired(root)).changes) == [RECEIVED]
    assert tree_of(root.path) == before, "a look changes nothing"
    assert short(apply(root.path, "modules", desired(root)).changes) == [RECEIVED]
    assert not (root.modules / "updates/gdsdeploy").exists()
    assert not (root.path / f"etc/depmod.d/gdsdeploy-{RELEASE}.conf").exists()
    assert DRIVER_FILE in (root.modules / "modules.dep").read_text()
    assert check(root.path, "modules", desired(root)).changes == []


def test_what_dkms_has_installed_leaves_for_this_kernel(root: PackagedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.built_by_dkms()
    assert short(check(root.path, "modules", desired(root)).changes) == [UNINSTALL]
    run, calls = hosts.process.run, []

    def uninstall(argv: list[str], *rest: Any, **more: Any) -> Output:
        """In DKMS's place."""
        if argv[0] != "dkms":
            return run(argv, *rest, **more)
        calls.append(argv)
        (root.modules / "updates/dkms/nvidia.ko").unlink()
        (root.path / f"var/lib/dkms/nvidia/kernel-{RELEASE}-x86_64").unlink()
        return Output(0, "", "")

    monkeypatch.setattr(hosts.process, "run", uninstall)
    assert short(apply(root.path, "modules", desired(root)).changes) == [UNINSTALL]
    assert calls == [["dkms", "uninstall", DKMS, "-k", RELEASE]]
    assert check(root.path, "modules", desired(root)).changes == []


def test_an_index_that_was_never_written_is_written(root: PackagedRoot) -> None:
    """dpkg left the package unconfigured, so that depmod never ran."""
    (root.modules / "modules.dep").write_text("")
    assert short(check(root.path, "modules", desired(root)).changes) == [
        ("index", f"/lib/modules/{RELEASE}/modules.dep", "depmod-stale")
    ]
    apply(root.path, "modules", desired(root))
    assert check(root.path, "modules", desired(root)).changes == []


def test_a_file_of_nobody_that_has_precedence_is_refused_by_name(root: PackagedRoot) -> None:
    """It may be an administrator's: gdsdeploy doesn't delete what neither it nor DKMS put there."""
    own = root.nvidia("updates/nvidia.ko")
    root.depmod()
    assert short(check(root.path, "modules", desired(root)).changes) == [("audit", "nvidia", "shadowed")]
    with pytest.raises(ApplyError, match=r"updates/nvidia\.ko has precedence over") as error:
        apply(root.path, "modules", desired(root))
    assert error.value.hint == f"remove updates/nvidia.ko, then run depmod -a {RELEASE}"
    assert own.exists()


def test_modules_that_fail_their_audit_are_refused(root: PackagedRoot) -> None:
    other = desired(root, driver_version="580.159.03")
    assert ("audit", "nvidia", "driver-version") in short(check(root.path, "modules", other).changes)
    with pytest.raises(ApplyError, match=r"nvidia: \[driver-version\] is driver 550\.163\.01, expected 580\.159\.03"):
        apply(root.path, "modules", other)


def test_packages_that_are_to_come_are_not_judged_before(root: PackagedRoot) -> None:
    (root.modules / DRIVER_FILE).unlink()
    assert ("audit", "nvidia", "missing") in short(predicted(root.path, "modules", desired(root)))
    assert predicted(root.path, "modules", desired(root), KERNEL_COMES) == []


def test_a_kernel_that_is_to_come_needs_no_answer(tmp_path: Path) -> None:
    root = PackagedRoot(tmp_path)
    wish = desired(root, kernel_release="6.12.107+deb13-amd64")
    assert predicted(root.path, "modules", wish, KERNEL_COMES) == []
    assert check(root.path, "modules", wish).unknown


def test_another_build_of_the_modules_needs_a_reboot() -> None:
    wish = Reboot(RELEASE, ["nvidia"])
    now = {"causes": [], "unloaded": [], "running": RELEASE}
    comes = Change("upgrade", DRIVER, "1", "2", "version", resource="packages.kernel")
    assert [cause["id"] for cause in causes(wish, now, [comes])] == ["replaced"]
    assert causes(wish, now, [Change("upgrade", "libc6", "1", "2", resource="packages.kernel")]) == []


def test_modules_of_an_earlier_kernel_lose_their_hold_with_the_userland() -> None:
    """They need the userland that moves; the kernel itself keeps its hold, because it runs."""
    ours = [f"linux-image-{RELEASE}", DRIVER]
    installed = {name: Installed(("1",), True) for name in ours}
    wish = Packages("apt", packages=[Package("nvidia-utils-580", "2")], locked=["nvidia-utils-580"])
    assert list(plan(manager("apt"), wish, installed, ours, {}).obsolete) == [DRIVER]
