"""From modules that DKMS builds to those of packages, and from one kernel's to the next's: the real apt decides.

The packages are small, with the names, relations and file conflicts of Ubuntu's archive and of NVIDIA's repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.platform import stack_platform_for
from tests.pins import test_apt_apply
from tests.pins.test_apt_apply import pack

OLD, NEW = "580.142-0ubuntu0.24.04.1", "580.159.03-0ubuntu0.24.04.1"
A, B = "6.17.0-1026-nvidia", "6.17.0-1032-nvidia"
#: A repository in /srv, and what scripts call.
MACHINE = rf"""
{{
    for version in 580.142 580.159.03; do
        full=$version-0ubuntu0.24.04.1
        deb nvidia-firmware-580-$version $full "" "" "" /srv/firmware/$version/gsp.bin
        deb nvidia-kernel-common-580 $full "Depends: nvidia-firmware-580-$version
Provides: nvidia-kernel-common"
        deb libnvidia-compute-580 $full
        common="Depends: nvidia-kernel-common-580 (<= $version-1), nvidia-kernel-common-580 (>= $version)"
        deb nvidia-dkms-580-open $full "$common"
        deb nvidia-driver-580-open $full "Depends: nvidia-dkms-580-open (<= $version-1)"
    done
    # As NVIDIA's repository has it: the same file in a package of another name.
    deb nvidia-kernel-common-580 580.159.03-1ubuntu1 "Depends: nvidia-firmware-580 (= 580.159.03-1ubuntu1)"
    deb nvidia-firmware-580 580.159.03-1ubuntu1 "" "" "" /srv/firmware/580.159.03/gsp.bin
    for kernel in {A}:580.142 {B}:580.159.03; do
        release=${{kernel%:*}} version=${{kernel#*:}}
        common="Depends: nvidia-kernel-common-580 (<= $version-1), nvidia-kernel-common-580 (>= $version)"
        deb linux-image-$release 1
        deb linux-modules-nvidia-fs-$release 1 "Depends: linux-image-$release
Provides: nvidia-fs-dkms"
        deb linux-modules-nvidia-580-open-$release 1 "$common, linux-image-$release"
    done
}} >Packages
say() {{ name=$1; shift; python3 "$program" apply --json --desired "$documents/$name" "$@" || :; echo; }}
state() {{
    dpkg-query -W -f '${{db:Status-Abbrev}}|${{Package}}=${{Version}}\n' | sed 's/ *|/|/' \
        | grep '|\(nvidia\|libnvidia\|linux-\(image\|modules-nvidia\).*-nvidia\)' | tr '\n' ' '; echo
}}
"""


def packages_at(version: str, *names: str) -> list[dict[str, str]]:
    return [{"package": name, "version": version} for name in names]


def document(driver: list[dict[str, str]], kernel: list[dict[str, str]], leaving: bool = True) -> dict[str, Any]:
    """Both transactions of a host, in the roles' order."""
    names = stack_platform_for("ubuntu-24.04").displaced_packages("580") if leaving else ()
    more = {
        "manager": "apt",
        "superseded": packages_at("", *names),
        "locked": [p["package"] for p in [*driver, *kernel]],
    }
    return {
        "version": 1,
        "resources": [
            {"resource": "packages", "instance": "driver", "desired": {**more, "packages": driver}},
            {"resource": "packages", "instance": "kernel", "desired": {**more, "packages": kernel}},
        ],
    }


def userland(version: str) -> list[dict[str, str]]:
    number = version.partition("-")[0]
    return packages_at(version, "nvidia-kernel-common-580", "libnvidia-compute-580", f"nvidia-firmware-580-{number}")


def kernel(release: str, version: str = "1") -> list[dict[str, str]]:
    modules = packages_at(version, f"linux-modules-nvidia-580-open-{release}")
    return [*packages_at("1", f"linux-image-{release}", f"linux-modules-nvidia-fs-{release}"), *modules]


DOCUMENTS = {
    "built": document(
        [*userland(OLD), *packages_at(OLD, "nvidia-dkms-580-open")], packages_at("1", f"linux-image-{A}"), False
    ),
    "built-new": document(
        [*userland(NEW), *packages_at(NEW, "nvidia-dkms-580-open")], packages_at("1", f"linux-image-{B}"), False
    ),
    "packaged-old": document(userland(OLD), kernel(A)),
    "packaged-new": document(userland(NEW), kernel(B)),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("program"), DOCUMENTS)


def run(program: Path, script: str) -> list[str]:
    return test_apt_apply.run(program, script, MACHINE)


def converge(program: Path, *names: str, before: str = "") -> tuple[list[str], list[str]]:
    return test_apt_apply.converge(program, *names, before=before, machine=MACHINE)


FRESH = [
    f"hi|libnvidia-compute-580={NEW}", f"hi|linux-image-{B}=1", f"hi|linux-modules-nvidia-580-open-{B}=1",
    f"hi|linux-modules-nvidia-fs-{B}=1", f"hi|nvidia-firmware-580-580.159.03={NEW}",
    f"hi|nvidia-kernel-common-580={NEW}",
]  # fmt: skip


def test_a_fresh_host_gets_kernel_and_modules_after_the_userland(program: Path) -> None:
    _, state = converge(program, "packaged-new")
    assert state == FRESH


def test_dkms_leaves_for_packages_of_another_driver(program: Path) -> None:
    done, state = converge(program, "built", "packaged-new")
    assert f"remove nvidia-dkms-580-open {OLD}" in done
    # The kernel before stays, as on any host: it may be the one that runs.
    assert set(state) == {*FRESH, f"hi|linux-image-{A}=1", f"ii|nvidia-firmware-580-580.142={OLD}"}


def test_dkms_leaves_although_the_userland_is_there_already(program: Path) -> None:
    done, state = converge(program, "built-new", "packaged-new")
    assert f"remove nvidia-dkms-580-open {NEW}" in done
    assert state == FRESH


def test_kernel_and_driver_move_together(program: Path) -> None:
    """The modules of the kernel before exclude the new userland: they leave, and their kernel stays."""
    done, state = converge(program, "packaged-old", "packaged-new")
    assert f"unhold linux-modules-nvidia-580-open-{A} held" in done
    assert f"remove linux-modules-nvidia-580-open-{A} 1" in done
    assert f"hi|linux-image-{A}=1" in state
    assert set(FRESH) <= set(state)


def test_removal_takes_the_modules_of_the_kernel_that_runs_and_leaves_the_kernel(program: Path) -> None:
    """They need the userland, which leaves."""
    script = f"""
    say packaged-new >/dev/null
    PYTHONPATH=$program python3 - <<'END'
import os, types
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
os.uname = lambda: types.SimpleNamespace(release="{B}", machine="x86_64")
registry.resource("packages").revert(ManagedHost())
END
    state; cat /var/lib/gdsdeploy/installed
    """
    state, *recorded = run(program, script)
    assert state.split() == [f"ii|linux-image-{B}=1"]
    assert recorded == [f"linux-image-{B}"]


def test_and_back(program: Path) -> None:
    done, state = converge(program, "packaged-old", "packaged-new", "packaged-old")
    assert f"downgrade nvidia-kernel-common-580 {NEW} {OLD}" in done
    assert f"remove linux-modules-nvidia-580-open-{B} 1" in done
    assert f"hi|linux-modules-nvidia-580-open-{A}=1" in state
    assert f"hi|nvidia-kernel-common-580={OLD}" in state


NVIDIAS = (
    "apt-get -qq install nvidia-kernel-common-580=580.159.03-1ubuntu1 nvidia-firmware-580 >/dev/null 2>&1\n"
)  # fmt: skip


def test_the_firmware_of_nvidias_repository_leaves_for_the_archives(program: Path) -> None:
    """They have the same file under two names, and dpkg refuses the second."""
    done, state = converge(program, "packaged-new", before=NVIDIAS)
    assert "remove nvidia-firmware-580 580.159.03-1ubuntu1" in done
    assert state == FRESH


def test_a_metapackage_that_needs_dkms_is_named_and_nothing_changes(program: Path) -> None:
    script = f"apt-get -qq install nvidia-driver-580-open={OLD} nvidia-dkms-580-open={OLD} \
        nvidia-kernel-common-580={OLD} >/dev/null 2>&1\nstate; say packaged-new; state"
    before, answer, after = run(program, script)
    error = json.loads(answer)["error"]
    assert error["kind"] == "refused"
    assert f"nvidia-driver-580-open {OLD}" in error["message"]
    assert "removes: [nvidia-driver-580-open]" in error["hint"]
    assert before == after
