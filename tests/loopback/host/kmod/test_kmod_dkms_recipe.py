"""The recipes that DKMS sources after the packages' own: rendered, then read by bash as DKMS does."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import _parser
from gdsdeploy.host.apply import recipes

DESIRED = recipes.Desired(
    driver_version="550.163.01",
    driver_flavour="open",
    driver_tree="/usr/src/nvidia-current-open-550.163.01",
    driver_dkms_name="nvidia-current-open",
    nvidia_fs_version="2.19.7",
    nvidia_fs_tree="/usr/src/nvidia-fs-2.19.7",
)
TEXTS = {"nvidia-fs": recipes.nvidia_fs(DESIRED), "driver": recipes.driver(DESIRED), "nothing": recipes.NOTHING}
#: What Debian's nvidia-fs-dkms says in its own dkms.conf.
STOCK = 'BUILD_DEPENDS[0]="nvidia-current"\nMAKE[0]="make KVER=${kernelver}"\nPACKAGE_VERSION="550.163.01"\n'


#: A function of DKMS from 3.2 on, which skips kernels that are left out; 3.0 fails.
SKIPS = "autoinstall() { local -a skipped_modules; }; "


def read_recipe(
    folder: Path, *names: str, recipe: str = "nvidia-fs", stock: str = STOCK, skips: str = SKIPS
) -> list[str]:
    (folder / "conf").write_text(stock + TEXTS[recipe])
    script = f"set -eu; {skips}kernelver=6.12.94+deb13-amd64; . {folder}/conf; printf '%s\\n' " + " ".join(names)
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_drivers_name_in_dkms_replaces_the_packages(tmp_path: Path) -> None:
    assert read_recipe(tmp_path, '"${BUILD_DEPENDS[*]}"', '"$BUILD_DEPENDS_REBUILD"') == ["nvidia-current-open", "yes"]


def test_ubuntus_data_centre_driver_is_the_one_that_nvidia_fs_waits_for(tmp_path: Path) -> None:
    """NVIDIA's own dkms.conf says nvidia, and DKMS from 3.1.4 on refuses to build without a package of that name."""
    recipe = recipes.nvidia_fs(replace(DESIRED, driver_dkms_name="nvidia-srv", driver_tree="/usr/src/nvidia-srv-1"))
    stock = 'BUILD_DEPENDS[0]="nvidia"\n' + recipe
    dependency, make = read_recipe(tmp_path, '"${BUILD_DEPENDS[@]}"', '"${MAKE[0]}"', recipe="nothing", stock=stock)
    assert dependency == "nvidia-srv"
    assert "--driver-tree /usr/src/nvidia-srv-1 " in make


def test_the_command_is_one_that_the_program_takes(tmp_path: Path) -> None:
    words = shlex.split(read_recipe(tmp_path, '"${MAKE[0]}"')[0])
    assert words[:4] == ["/usr/bin/python3", "-I", "-S", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"]
    # DKMS puts its own options into commands that begin with make.
    assert not words[0].startswith("make")
    # DKMS appends this for kernels that clang compiled.
    arguments = _parser("kmod").parse_args([*words[4:], "LLVM=1"])
    assert arguments.kernel == "6.12.94+deb13-amd64"
    assert arguments.driver_tree == "/usr/src/nvidia-current-open-550.163.01"
    assert (arguments.driver_version, arguments.driver_flavour) == ("550.163.01", "open")
    assert (arguments.source, arguments.output, arguments.words) == (".", "nvidia-fs.ko", ["nvidia-fs", "LLVM=1"])
    assert arguments.log == "/var/log/gdsdeploy/kmod/6.12.94+deb13-amd64/nvidia-fs.log"
    assert arguments.kept == "nvidia-fs"


#: As DKMS asks whether a kernel is excluded.
EXCLUDED = '"$([[ $kernelver =~ ${BUILD_EXCLUSIVE_KERNEL:-} ]] || echo excluded)"'


def test_no_kernel_is_one_to_build_for_where_modules_are_received(tmp_path: Path) -> None:
    assert read_recipe(tmp_path, EXCLUDED, recipe="nothing") == ["excluded"]


@pytest.mark.parametrize(("version", "result"), [("550.163.01", ""), ("535.261.03", "excluded")])
def test_sources_of_another_driver_are_built_for_no_kernel(tmp_path: Path, version: str, result: str) -> None:
    stock = f'PACKAGE_VERSION="{version}"\n'
    assert read_recipe(tmp_path, EXCLUDED, recipe="driver", stock=stock) == [result]
    assert read_recipe(tmp_path, EXCLUDED, recipe="driver", stock=stock, skips="") == [""]


@pytest.mark.parametrize("module", [recipes.driver, recipes.nvidia_fs])
@pytest.mark.parametrize(
    ("kernel", "result"),
    [("6.12.94+deb13-amd64", ""), ("6.1.0-50-amd64", "excluded"), ("6.12.94+deb13-amd64-rt", "excluded")],
)
def test_a_builder_builds_for_the_locked_kernel_alone(
    tmp_path: Path, module: Callable[[recipes.Desired], str], kernel: str, result: str
) -> None:
    """The headers of earlier locks are on it, and Debian 13's DKMS builds for each kernel with headers."""
    (tmp_path / "driver").mkdir()
    locked = replace(DESIRED, driver_tree=str(tmp_path / "driver"), kernel_release="6.12.94+deb13-amd64")
    version = "550.163.01" if module is recipes.driver else "2.19.7"
    for desired, expected in ((replace(locked, target_only=True), result), (locked, "")):
        (tmp_path / "conf").write_text(f'PACKAGE_VERSION="{version}"\n' + module(desired))
        script = f"set -eu; {SKIPS}kernelver={kernel}; . {tmp_path}/conf; printf '%s\\n' {EXCLUDED}"
        done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
        assert done.stdout.splitlines() == [expected]


@pytest.mark.parametrize(
    ("version", "tree", "result"), [("2.19.7", True, ""), ("2.13.5", True, "excluded"), ("2.19.7", False, "excluded")]
)
def test_nvidia_fs_waits_for_the_source_of_its_driver(tmp_path: Path, version: str, tree: bool, result: str) -> None:
    if tree:
        (tmp_path / "driver").mkdir()
    text = recipes.nvidia_fs(replace(DESIRED, driver_tree=str(tmp_path / "driver")))
    (tmp_path / "conf").write_text(f'PACKAGE_VERSION="{version}"\n' + text)
    script = f"set -eu; {SKIPS}kernelver=r; . {tmp_path}/conf; printf '%s\\n' {EXCLUDED}"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [result]


def test_the_drivers_command_builds_the_version_that_dkms_was_asked_for(tmp_path: Path) -> None:
    words = shlex.split(read_recipe(tmp_path, '"${MAKE[0]}"', recipe="driver")[0])
    arguments = _parser("kmod").parse_args([*words[4:], "LLVM=1"])
    assert (arguments.driver_version, arguments.driver_tree, arguments.output) == ("550.163.01", ".", ".")
    assert (arguments.words, arguments.peermem) == (["driver", "LLVM=1"], "stub")
    assert arguments.kept == "nvidia-current-open"


def test_what_runs_after_an_install_is_found_from_wherever_the_source_is(tmp_path: Path) -> None:
    # DKMS looks below the source's own folder for its scripts, and takes the words after the first as arguments.
    for recipe, name in (("nvidia-fs", "nvidia-fs"), ("driver", "nvidia-current-open")):
        program, *words = read_recipe(tmp_path, '"$POST_INSTALL"', recipe=recipe)[0].split(" ")
        for place in ("/usr/src/nvidia-fs-2.19.7", "/var/lib/dkms/nvidia-fs/2.19.7/source"):
            assert os.path.normpath(f"{place}/{program}") == "/usr/bin/python3"
        assert words[:2] == ["-I", "-S"]
        arguments = _parser("kmod").parse_args(words[3:])
        assert (arguments.action, arguments.names, arguments.kernel) == ("save", [name], "6.12.94+deb13-amd64")


@pytest.mark.parametrize(("stock", "initramfs"), [(STOCK, ""), (STOCK + "REMAKE_INITRD=yes\n", "no")])
def test_no_initramfs_is_made_for_nvidia_fs(tmp_path: Path, stock: str, initramfs: str) -> None:
    assert read_recipe(tmp_path, '"${REMAKE_INITRD:-}"', stock=stock) == [initramfs]
