"""The recipe that DKMS sources after the package's own: rendered, then read by bash as DKMS does."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path

import jinja2

from gdsdeploy.host.kmod import cli

TEMPLATE = Path(__file__).parents[4] / "templates" / "dkms-nvidia-fs.conf.j2"
VALUES = {
    "gds_modules_driver_dkms_name": "nvidia-current-open",
    "gds_modules_driver_tree": "/usr/src/nvidia-current-open-550.163.01",
    "gds_modules_driver_version": "550.163.01",
    "gds_modules_driver_flavour": "open",
}
#: What Debian's nvidia-fs-dkms says in its own dkms.conf.
STOCK = 'BUILD_DEPENDS[0]="nvidia-current"\nMAKE[0]="make KVER=${kernelver}"\n'


def sourced(folder: Path, *names: str) -> list[str]:
    text = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(
        TEMPLATE.read_text()
    )
    (folder / "conf").write_text(STOCK + text.render(VALUES))
    script = f"set -eu; kernelver=6.12.94+deb13-amd64; . {folder}/conf; printf '%s\\n' " + " ".join(names)
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_drivers_name_in_dkms_replaces_the_packages(tmp_path: Path) -> None:
    assert sourced(tmp_path, '"${BUILD_DEPENDS[*]}"', '"$BUILD_DEPENDS_REBUILD"') == ["nvidia-current-open", "yes"]


def test_the_command_is_one_that_the_program_takes(tmp_path: Path) -> None:
    words = shlex.split(sourced(tmp_path, '"${MAKE[0]}"')[0])
    assert words[:2] == ["/usr/bin/python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"]
    # DKMS puts its own options into commands that begin with make.
    assert not words[0].startswith("make")
    parser = argparse.ArgumentParser()
    cli.add_parsers(parser.add_subparsers())
    # DKMS appends this for kernels that clang compiled.
    arguments = parser.parse_args([*words[2:], "LLVM=1"])
    assert arguments.kernel == "6.12.94+deb13-amd64"
    assert arguments.driver_tree == "/usr/src/nvidia-current-open-550.163.01"
    assert (arguments.driver_version, arguments.driver_flavour) == ("550.163.01", "open")
    assert (arguments.source, arguments.output, arguments.variables) == (".", "nvidia-fs.ko", ["LLVM=1"])
