"""Our recipes with the real dkms: what it registers, rebuilds, and must not lose."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdsdeploy import run
from gdsdeploy.host.apply import recipes as apply_recipes

if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

pytestmark = pytest.mark.kbuild

DRIVER, NVIDIA_FS = "nvidia-standin/1.2.3", "nvidia-fs/2.19.7"
NEXT = "nvidia-standin/1.2.4"


def desired_recipes(version: str, target: str) -> apply_recipes.Desired:
    """target: the only kernel that a builder builds for."""
    return apply_recipes.Desired(
        driver_version=version,
        driver_flavour="open",
        driver_tree=f"/usr/src/nvidia-standin-{version}",
        driver_dkms_name="nvidia-standin",
        nvidia_fs_version="2.19.7",
        nvidia_fs_tree="/usr/src/nvidia-fs-2.19.7",
        kernel_release=target,
        target_only=bool(target),
    )


def driver_recipe(version: str = "1.2.3", target: str = "") -> str:
    return apply_recipes.driver(desired_recipes(version, target))


def recipes(host: Builder, version: str = "1.2.3", edit: tuple[str, str] = ("", ""), target: str = "") -> None:
    """What the role leaves in /etc/dkms."""
    desired = desired_recipes(version, target)
    texts = {"nvidia-fs": apply_recipes.nvidia_fs(desired), "nvidia-standin": apply_recipes.driver(desired)}
    for name, text in texts.items():
        host.write(f"/etc/dkms/{name}.conf", text.replace(*edit) if edit[0] else text)


def provide(host: Builder, *words: str, version: str = "1.2.3", status: int = 0) -> subprocess.CompletedProcess[str]:
    """What the role runs."""
    argv = ["kmod", "dkms", "--json", "--kernel", host.kernel, "--driver", f"nvidia-standin/{version}"]
    argv += ["--nvidia-fs", NVIDIA_FS, "--driver-tree", f"/usr/src/nvidia-standin-{version}"]
    argv += ["--driver-version", version, "--driver-flavour", "open", *words]
    return host.gdsdeploy(*argv, status=status)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def next_driver(host: Builder, *, fits: bool) -> None:
    """Another driver's source arrives, as a package would bring it; nvidia-fs compiles against it, or does not.

    From now on one kernel is enough.
    """
    host.run("rm", "-f", f"/usr/lib/modules/{host.other_kernel}/build")
    folder = "/usr/src/nvidia-standin-1.2.4"
    host.run("cp", "-r", "/usr/src/nvidia-standin-1.2.3", folder)
    host.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", f"{folder}/Kbuild", f"{folder}/dkms.conf")
    if not fits:
        host.run("sed", "-i", "s/nvidia_p2p_put_pages/nvidia_p2p_drop_pages/", f"{folder}/nvidia/nv-p2p.h")
        host.run("sed", "-i", "s/nvidia_p2p_put_pages/nvidia_p2p_drop_pages/", f"{folder}/nvidia/nv-p2p.c")


def installed_module(host: Builder, kernel: str = "") -> str:
    """The nvidia-fs that modprobe would load, or empty."""
    files = host.run("sh", "-c", f"find /usr/lib/modules/{kernel or host.kernel} -name 'nvidia-fs.ko*'").stdout.split()
    assert len(files) <= 1
    return files[0] if files else ""


def driver_of(host: Builder, file: str) -> str:
    return host.run("modinfo", "-F", "gdsdeploy_driver", file).stdout.strip()


@pytest.fixture(scope="module")
def registered_modules(
    kbuild_base: Path, make_host: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Builder]:
    """A host on which the role's command has run once."""
    host = make_host(kbuild_base, tmp_path_factory.mktemp("dkms") / "host")
    host.run("cp", "-r", "/usr/src/driver", "/usr/src/nvidia-standin-1.2.3")
    host.run("cp", "-r", "/usr/src/nvidia-fs", "/usr/src/nvidia-fs-2.19.7")
    for name in (DRIVER, NVIDIA_FS):
        host.run("dkms", "add", name)
    recipes(host)
    host.write("/build/first.json", provide(host).stdout)
    yield host
    run.run(run.as_root(["rm", "-rf", "--one-file-system", str(host.folder)]), doing="remove what a test built")


@pytest.fixture
def host(registered_modules: Builder, copy_host: Any, tmp_path: Path) -> Iterator[Builder]:
    yield from copy_host(registered_modules, tmp_path / "host")


def test_every_kernel_with_headers_gets_both_and_a_second_run_does_nothing(host: Builder) -> None:
    first = json.loads(host.run("cat", "/build/first.json").stdout)
    assert first["changed"]
    assert [(entry["kernel_release"], entry["package"]) for entry in first["done"]] == [
        (kernel, package) for kernel in (host.kernel, host.other_kernel) for package in (DRIVER, NVIDIA_FS)
    ]
    status = host.run("dkms", "status").stdout
    assert status.count(": installed") == 4
    for kernel in (host.kernel, host.other_kernel):
        assert host.run("modinfo", "-F", "vermagic", installed_module(host, kernel)).stdout.split()[0] == kernel
        assert host.path(f"/var/log/gdsdeploy/kmod/{kernel}/nvidia-fs.log").stat().st_size > 1000
    assert answer(provide(host)) == {"changed": False, "done": [], "notes": []}


def test_a_builder_builds_for_the_target_alone(host: Builder) -> None:
    for name in (NVIDIA_FS, DRIVER):
        host.run("dkms", "unbuild", name, "-k", host.other_kernel)
    assert answer(provide(host, "--check", "--target-only"))["changed"] is False
    assert {step["kernel_release"] for step in answer(provide(host, "--check"))["done"]} == {host.other_kernel}
    # As packages' scripts do, which build while packages are installed: before Ansible's own step.
    recipes(host, target=host.kernel)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    host.run("dkms", "build", DRIVER, "-k", host.other_kernel, status=77)
    assert installed_module(host, host.other_kernel) == ""
    recipes(host)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    assert installed_module(host, host.other_kernel)


def test_a_kernel_that_an_upgrade_brings_gets_nothing_of_the_driver_that_it_replaces(host: Builder) -> None:
    """DKMS runs when the kernel is installed, before the next driver's source is there."""
    for name in (NVIDIA_FS, DRIVER):
        host.run("dkms", "unbuild", name, "-k", host.other_kernel)
    recipes(host, "1.2.4")
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    lib = host.lib(host.other_kernel)
    assert host.run("sh", "-c", f"find {lib} -name 'nvidia*.ko*'").stdout == ""
    recipes(host)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    assert driver_of(host, installed_module(host, host.other_kernel)) == "1.2.3"


@pytest.mark.parametrize(("release", "skips"), [("bookworm_base", False), ("kbuild_base", True)])
def test_a_kernel_that_is_left_out_fails_no_package_of_a_kernel(
    release: str, skips: bool, make_host: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With DKMS 3.0 and 3.2, whose hook of kernels' packages passes on how DKMS ended."""
    host: Builder = make_host(request.getfixturevalue(release), tmp_path / "host")
    host.run("cp", "-a", "/usr/src/driver", "/usr/src/nvidia-standin-1.2.3")
    host.run("dkms", "add", DRIVER)
    for text in (driver_recipe(target="6.9.9-amd64"), driver_recipe(version="1.2.4")):
        host.write("/etc/dkms/nvidia-standin.conf", text)
        host.run("/etc/kernel/postinst.d/dkms", host.kernel)
        assert (installed_driver(host) == "") is skips
        if not skips:
            host.run("dkms", "unbuild", DRIVER, "-k", host.kernel)
    host.write("/etc/dkms/nvidia-standin.conf", driver_recipe(target=host.kernel))
    host.run("/etc/kernel/postinst.d/dkms", host.kernel)
    assert installed_driver(host)


def installed_driver(host: Builder) -> str:
    """The driver's module that modprobe would load, or empty."""
    return host.run("sh", "-c", f"find /usr/lib/modules/{host.kernel} -name 'nvidia.ko*'").stdout


def test_the_stock_recipe_cannot_be_built_with_the_open_drivers_name(host: Builder) -> None:
    host.run("rm", "/etc/dkms/nvidia-fs.conf")
    host.run("dkms", "unbuild", NVIDIA_FS, "-k", host.kernel)
    done = host.run("dkms", "build", NVIDIA_FS, "-k", host.kernel, status=13)
    assert "missing BUILD_DEPENDS: nvidia-current" in done.stdout + done.stderr


def test_a_new_driver_on_the_same_kernel_brings_a_new_nvidia_fs(host: Builder) -> None:
    next_driver(host, fits=True)
    recipes(host, "1.2.4")
    host.run("dkms", "install", NEXT, "-k", host.kernel)
    assert driver_of(host, installed_module(host)) == "1.2.4"
    assert answer(provide(host, "--check", version="1.2.4")) == {
        "changed": False,
        "done": [],
        "notes": [f"kernel {host.other_kernel} has no headers: nothing is built for it"],
    }


def test_without_our_recipe_the_old_one_stays_for_the_new_driver_and_is_rebuilt_by_what_it_says(host: Builder) -> None:
    # As with a DKMS that does not know BUILD_DEPENDS_REBUILD.
    next_driver(host, fits=True)
    recipes(host, "1.2.4", edit=('BUILD_DEPENDS_REBUILD="yes"\n', ""))
    host.run("dkms", "install", NEXT, "-k", host.kernel)
    assert driver_of(host, installed_module(host)) == "1.2.3"
    assert f"{NVIDIA_FS}, {host.kernel}, x86_64: installed" in host.run("dkms", "status").stdout
    done = answer(provide(host, version="1.2.4"))["done"]
    assert {"kernel_release": host.kernel, "package": NVIDIA_FS, "action": "rebuild"}.items() <= done[0].items()
    assert "driver 1.2.3" in done[0]["why"]
    assert driver_of(host, installed_module(host)) == "1.2.4"


def test_dkms_itself_loses_the_old_module_when_its_rebuild_fails(host: Builder) -> None:
    next_driver(host, fits=False)
    recipes(host, "1.2.4", edit=(" --kept nvidia-fs", ""))
    host.run("sh", "-c", f"dkms install {NEXT} -k {host.kernel} || true")
    assert installed_module(host) == ""


def test_a_failed_rebuild_leaves_the_old_module_where_it_was(host: Builder) -> None:
    before, content = installed_module(host), host.run("sha256sum", installed_module(host)).stdout
    next_driver(host, fits=False)
    recipes(host, "1.2.4")
    host.run("sh", "-c", f"dkms install {NEXT} -k {host.kernel} || true")
    assert f"{NVIDIA_FS}, {host.kernel}, x86_64: installed" not in host.run("dkms", "status").stdout
    assert installed_module(host) == before
    assert host.run("sha256sum", before).stdout == content
    assert host.run("modprobe", "--show-depends", "-S", host.kernel, "nvidia-fs").stdout.count("nvidia-fs.ko") == 1
    # Why is said, and still is when it is asked for later.
    error = provide(host, version="1.2.4", status=1).stderr
    assert error.startswith("error: nvidia-fs")
    assert "implicit declaration of function" in error
    assert f"/var/log/gdsdeploy/kmod/{host.kernel}/nvidia-fs.log" in error
    assert host.gdsdeploy("kmod", "why", status=1).stderr.split(" (")[0] == error.split(" (")[0]
    assert installed_module(host) == before
    # With a source that fits, DKMS installs in its place; it refuses to beside a file of the same version.
    host.run("rm", "-r", "/usr/src/nvidia-standin-1.2.4")
    next_driver(host, fits=True)
    host.run("dkms", "uninstall", NEXT, "-k", host.kernel)
    host.run("dkms", "unbuild", NEXT, "-k", host.kernel)
    assert answer(provide(host, version="1.2.4"))["changed"]
    assert driver_of(host, installed_module(host)) == "1.2.4"
    assert ": installed" in host.run("dkms", "status", "-m", "nvidia-fs", "-k", host.kernel).stdout


def test_a_driver_that_does_not_compile_leaves_what_worked(host: Builder) -> None:
    before = host.run("sh", "-c", f"cd /usr/lib/modules/{host.kernel}; find . -name 'nvidia*.ko*' | sort").stdout
    host.run("sh", "-c", "echo 'int broken' >> /usr/src/nvidia-standin-1.2.3/nvidia/nv.c")
    host.run("dkms", "unbuild", DRIVER, "-k", host.kernel)
    error = provide(host, status=1).stderr
    assert error.startswith("error: driver 1.2.3 (open) doesn't build for kernel")
    assert "nvidia/nv.c:" in error
    assert "the previous modules are back in place: updates/dkms/nvidia.ko" in error
    after = host.run("sh", "-c", f"cd /usr/lib/modules/{host.kernel}; find . -name 'nvidia*.ko*' | sort").stdout
    assert after == before


def test_another_kernel_that_cannot_be_built_for_is_noted_once(host: Builder) -> None:
    host.run("dkms", "unbuild", NVIDIA_FS, "-k", host.other_kernel)
    # The kernel has headers, and they lack what a module needs.
    host.run("rm", f"/usr/lib/modules/{host.other_kernel}/build/Module.symvers")
    first = answer(provide(host))
    assert not first["changed"]
    assert host.other_kernel in first["notes"][0]
    assert "is not tried again" in answer(provide(host))["notes"][0]


def test_peermem_that_would_be_a_stub_is_refused_before_anything_is_built(host: Builder) -> None:
    error = provide(host, "--peermem", status=1).stderr
    assert "would be a stub that fails to load with 'Invalid argument'" in error
    assert "install OFED or DOCA" in error
