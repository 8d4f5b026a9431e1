"""The whole job on light hosts of other systems: lock, plan, provision, validate, plan again, remove.

Repositories, names and layout are the vendors', the content is Debian's (docs/lab.md); DKMS compiles the driver and
nvidia-fs.  The tests build on each other, in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import lab as labs
from gdsdeploy.lab.host import LabHost
from gdsdeploy.lab.kit import cuda, elversions, ubuntu
from gdsdeploy.lab.state import Lab
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from tests.lab.program import gdsdeploy
from tests.naming import unique

pytestmark = pytest.mark.lab

#: Every package with its state and version, then every file with mode and owner, but for what runs and is logged.
SNAPSHOT = r"""
if command -v dpkg-query >/dev/null; then
    dpkg-query --show --showformat='package ${db:Status-Abbrev}${Package} ${Version}\n'
else
    rpm -qa --queryformat 'package %{NAME} %{VERSION}-%{RELEASE}\n'
fi
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
    -o -path /var/log -o -path /var/cache -o -path /var/lib/apt/lists -o -path /home -o -path /root \) -prune \
    -o \( -type f -o -type l \) -printf 'file %M %u %p\n'
"""
#: What installing and removing packages leaves on any host: databases, backups of them, caches.
LEFT = re.compile(
    r"file \S+ root (/var/lib/(dpkg|apt|systemd|rpm|dnf)/|/etc/ld\.so\.cache|/etc/[a-z]+-$|.*/__pycache__/).*"
)
#: Tools that Ubuntu's hosts have from the beginning.  apt keeps them once they are there, since other packages suggest
#: them.
TOOLS = ("dpkg-dev", "gcc-12", "initramfs-tools", "linux-base", "lsb-release", "make", "patch", "xz-utils", "zstd")
INSTALL = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install "


@dataclass(frozen=True)
class Expected:
    """What the systems differ in.

    tree: of the driver's source.  packages: in the lock, by repository.  umbrellas: not in it.  modules: where DKMS
    puts them.  stays: lines of a snapshot that `gdsdeploy remove` leaves.
    """

    kernel: str
    tree: tuple[str, str]
    packages: dict[str, set[str]]
    umbrellas: set[str]
    modules: str
    stays: re.Pattern[str]


_GDS = {"nvidia-fs-dkms", "libcufile-12-4", "gds-tools-12-4"}
_UBUNTU, _ROCKY = ubuntu.RELEASES["ubuntu-24.04"], elversions.RELEASES[9]
EXPECTED = {
    "ubuntu-24.04": Expected(
        kernel=_UBUNTU.release,
        tree=(f"/usr/src/nvidia-{cuda.DRIVER}", "nvidia"),
        packages={
            "cuda": {"nvidia-dkms-550-open", "libnvidia-compute-550", *_GDS},
            "ubuntu": {f"linux-image-{_UBUNTU.release}", "dkms"},
        },
        umbrellas={"nvidia-open", "nvidia-driver-550-open"},
        modules="updates/dkms",
        stays=re.compile("nothing"),
    ),
    "rocky-9": Expected(
        kernel=_ROCKY.release,
        tree=(f"/usr/src/nvidia-open-{_ROCKY.driver}", "nvidia-open"),
        packages={
            "cuda": {"kmod-nvidia-open-dkms", "nvidia-driver-cuda", *_GDS},
            "baseos": {"kernel", "kernel-core", "kernel-modules-core", "kernel-devel"},
            "epel": {"dkms"},
        },
        umbrellas={"nvidia-open", "cuda-drivers"},
        modules="extra",
        # dnf's kernels and their record, its plugin, its keys, and what came along as a dependency.
        stays=re.compile(
            r"package (kernel|python3-dnf-plugin-versionlock|gpg-pubkey|ocl-icd|opencl-filesystem).*"
            rf"|file \S+ root (/boot|/usr/src/kernels|/usr/lib/modules)/.*{re.escape(_ROCKY.release)}.*"
            r"|file \S+ root (/etc/dnf/plugins/versionlock\.(conf|list)|/usr/lib/python3/dist-packages/dnf.*)"
            r"|file \S+ root (/var/lib/dkms/mok\..*|/var/lib/gdsdeploy/installed)"
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A running lab, its lock, and what its host had before."""

    lab: Lab
    target: Target
    before: frozenset[str]

    @property
    def expected(self) -> Expected:
        return EXPECTED[self.lab.system.os]

    @property
    def host(self) -> LabHost:
        return self.lab.host("node1")

    def snapshot(self) -> frozenset[str]:
        return snapshot(self.host)


def snapshot(host: LabHost) -> frozenset[str]:
    lines = host.ssh(["sudo", "sh", "-c", SNAPSHOT]).stdout.splitlines()
    return frozenset(line for line in lines if not LEFT.fullmatch(line))


@pytest.fixture(
    scope="module",
    params=[pytest.param(os, marks=pytest.mark.proves("provision", "stand-in", os=os)) for os in EXPECTED],
)
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    lab = Lab(unique("family"))
    try:
        gdsdeploy(
            "lab", "up", "--lab", lab.name, "--os", request.param, "--vm", "0", "--light", "0", "--node", "1", "--yes"
        )
        gdsdeploy("lock", lab.fleet_path)
        (target,) = lockfile.read(lockfile.beside(lab.fleet_path)).targets.values()
        if lab.system.family == "ubuntu":
            lab.host("node1").ssh(["sudo", "sh", "-c", f"{INSTALL} {' '.join(TOOLS)}"])
        yield Family(lab, target, snapshot(lab.host("node1")))
    finally:
        labs.down(lab)


@pytest.fixture(scope="module")
def provisioned(family: Family) -> dict[str, Any]:
    """What the first provision did on the host."""
    hosts: dict[str, Any] = json.loads(gdsdeploy("provision", family.lab.fleet_path, "--json").stdout)["hosts"]
    return hosts["node1"]


def test_the_host_is_one_of_its_family(family: Family) -> None:
    name = family.host.ssh(["sh", "-c", ". /etc/os-release; echo $ID-$VERSION_ID"]).stdout.strip()
    assert name.startswith(family.target.os)
    sources = family.host.ssh(["sh", "-c", "cat /etc/apt/sources.list.d/* /etc/yum.repos.d/*"], ok=range(2)).stdout
    assert "http://127.0.0.1:" in sources
    assert "debian" not in sources


def test_the_lock_has_the_vendors_names(family: Family) -> None:
    target, expected = family.target, family.expected
    assert target.kernel.release == expected.kernel
    assert (target.driver.source_tree, target.driver.dkms_name) == expected.tree
    for repository, names in expected.packages.items():
        assert names <= {package.package for package in target.packages if package.repository == repository}
    locked = {package.package for package in target.packages}
    assert not expected.umbrellas & locked, "the lock needs no umbrella"


def test_the_plan_names_what_is_to_come_and_changes_nothing(family: Family) -> None:
    plan = json.loads(gdsdeploy("plan", family.lab.fleet_path, "--json", status=32).stdout)["hosts"]["node1"]
    assert {action["role"] for action in plan["actions"]} >= {"gds_repo", "gds_kernel", "gds_driver", "gds_modules"}
    assert family.snapshot() == family.before


def test_provision_builds_the_modules_for_the_locked_kernel(family: Family, provisioned: dict[str, Any]) -> None:
    assert "gds_modules: Install the sources and tools" in provisioned["changed"]
    release, target = family.target.kernel.release, family.target
    folder = f"/lib/modules/{release}/{family.expected.modules}"
    assert target.nvidia_fs is not None
    for module, version in (("nvidia", cuda.DRIVER), ("nvidia-fs", target.nvidia_fs.version)):
        fields = family.host.ssh(["sudo", "sh", "-c", f"/sbin/modinfo {folder}/{module}.ko*"]).stdout
        assert re.search(rf"^version: +{re.escape(version)}$", fields, re.MULTILINE)
        assert re.search(rf"^vermagic: +{re.escape(release)} SMP", fields, re.MULTILINE)


def test_the_host_passes_its_validation(family: Family, provisioned: dict[str, Any]) -> None:
    report = json.loads(gdsdeploy("validate", family.lab.fleet_path, "--json").stdout)["hosts"]["node1"]
    verdicts = {finding["check"]: finding["verdict"] for finding in report["findings"]}
    # These compare the lock with what apt and DKMS have on this host.
    for check in ("packages.dkms", "modules.next-boot", "packages.locked-versions"):
        assert verdicts[check] == "pass", check


def test_the_second_plan_is_empty(family: Family, provisioned: dict[str, Any]) -> None:
    plan = json.loads(gdsdeploy("plan", family.lab.fleet_path, "--json").stdout)["hosts"]["node1"]
    assert plan["state"] == "nothing to do"


def test_remove_leaves_the_host_as_it_was(family: Family, provisioned: dict[str, Any]) -> None:
    gdsdeploy("remove", family.lab.fleet_path, "--limit", "node1", "--json")
    # Libraries that the stack needed stay until the administrator removes what nothing needs.
    if family.lab.system.family == "ubuntu":
        family.host.ssh(["sudo", "apt-get", "-qq", "autoremove", "--purge"])
    after = family.snapshot()
    assert sorted(family.before - after) == []
    assert sorted(line for line in after - family.before if not family.expected.stays.fullmatch(line)) == []


def test_the_lab_leaves_nothing(family: Family) -> None:
    server = family.lab.server
    assert server is not None
    listing = gdsdeploy("lab", "list").stdout
    assert f"repositories {server.uri} running" in re.sub(r" +", " ", listing)
    gdsdeploy("lab", "down", "--lab", family.lab.name)
    assert not server.running()
    assert not Path(family.lab.directory).exists()
