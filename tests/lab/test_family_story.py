"""The whole job on light hosts of other systems: lock, plan, provision, validate, plan again, roll out, remove.

Repositories, names and layout are the vendors', the content is Debian's (docs/lab.md); DKMS compiles the driver and
nvidia-fs.  The rollout brings another libcufile, and on Rocky Linux another nvidia-fs, so the driver is compiled once.
Its first attempt meets a fault in the canary.  The second host is a copy of the provisioned one.  The tests build on
each other, in order.

Other labs of the run receive what the first host has built (family_builds.py).  Ubuntu's lab has a second copy, with
which the tests of test_packaged_light.py go on.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.host.archive import provenance
from gdsdeploy.model.lock import Lock, Target
from gdslab import fleet
from gdslab.archive import controller_archive
from gdslab.host import LabHost
from gdslab.kit import cuda, elversions, ubuntu
from gdslab.state import Lab
from tests.lab import family_builds, rollouts
from tests.lab.program import gdsdeploy
from tests.lab.rollouts import Spare, outcome, steps, words
from tests.naming import unique

pytestmark = pytest.mark.lab

#: Every package with its state and version, then every file with mode and owner, but for what runs and is logged; and
#: the content of what configures a host, but for what names it.
SNAPSHOT = r"""
if command -v dpkg-query >/dev/null; then
    dpkg-query --show --showformat='package ${db:Status-Abbrev}${Package} ${Version}\n'
else
    rpm -qa --queryformat 'package %{NAME} %{VERSION}-%{RELEASE}\n'
fi
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
    -o -path /var/log -o -path /var/cache -o -path /var/lib/apt/lists -o -path /home -o -path /root \) -prune \
    -o \( -type f -o -type l \) -printf 'file %M %u %p\n'
find /etc -type f ! -path '/etc/ssh/*' ! -name 'host*' ! -name machine-id ! -name lab-seeded -exec sha256sum {} + |
    sed 's/^/content /'
"""
#: What installing and removing packages leaves on any host: databases, backups of them, caches, accounts.
LEFT = re.compile(
    r"file \S+ root (/var/lib/(dpkg|apt|systemd|rpm|dnf)/|/etc/ld\.so\.cache|/etc/[a-z]+-$|.*/__pycache__/).*"
    r"|content \w+  /etc/(ld\.so\.cache|(passwd|shadow|group|gshadow)-?)"
)
#: Tools that Ubuntu's hosts have from the beginning.  apt keeps them once they are there, since other packages suggest
#: them.
TOOLS = ("dpkg-dev", "gcc-12", "initramfs-tools", "linux-base", "lsb-release", "make", "patch", "xz-utils", "zstd")
#: The database of packages, and every file of the stack with its size and times.
CONTENTS = r"""
cat /var/lib/dpkg/status 2>/dev/null || rpm -qa --queryformat '%{NEVRA} %{INSTALLTIME}\n' | sort
find /etc /boot /lib/modules /usr/src /usr/local /usr/lib/gdsdeploy /var/lib/gdsdeploy /var/lib/dkms \
    -type f -printf '%p %s %T@ %C@\n' | sort
"""
#: The stack that hosts get first; without these pins, the lock takes the newest that is on offer.
OLD = {**family_builds.PINS, "libcufile": "1.9.0"}
ROLLOUT = {"canary": {"hosts": ["node1"], "soak": "1s"}}
#: A file system that no host has: the canary fails its validation.
NOWHERE = {"storage": [{"mount": "/scratch", "path": "compat"}]}
#: Packs a host's modules as its builder does, for the kernel that it is formatted with; then the archive and the
#: builder's public key, one line each.  Nothing stays: a builder's key would tell the host from its copy.
PACK = f"""
set -eu
folder=$(mktemp -d)
{" ".join(rollouts.PROGRAM)} kmod pack --builder {family_builds.BUILDER} --kernel {{}} --output $folder/packed >&2
base64 -w 0 $folder/packed
echo
base64 -w 0 {provenance.PUBLIC}
rm -r $folder {provenance.KEY} {provenance.PUBLIC}
"""
#: A copy that takes part in no rollout.
SPARE = "node3"
INSTALL = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install "


@dataclass(frozen=True)
class Expected:
    """What the systems differ in.

    tree: of the driver's source.  packages: in the lock, by repository.  umbrellas: not in it.  modules: where DKMS
    puts them.  stays: lines of a snapshot that `gdsdeploy remove` leaves.  new: pins of the stack that comes later.
    """

    kernel: str
    tree: tuple[str, str]
    packages: dict[str, set[str]]
    umbrellas: set[str]
    modules: str
    stays: re.Pattern[str]
    new: dict[str, str]


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
        # By apt, another nvidia-fs comes in test_rollout_story.py.
        new=family_builds.PINS,
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
            r"|(file \S+ root|content \w+ ) (/etc/dnf/plugins/versionlock\.(conf|list))"
            r"|file \S+ root /usr/lib/python3/dist-packages/dnf.*"
            r"|file \S+ root (/var/lib/dkms/mok\..*|/var/lib/gdsdeploy/installed)"
        ),
        new={},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A running lab, its first lock, and what its host had before."""

    lab: Lab
    lock: Lock
    before: frozenset[str]

    @property
    def target(self) -> Target:
        return target_of(self.lock)

    @property
    def expected(self) -> Expected:
        return EXPECTED[self.lab.system.os]

    @property
    def host(self) -> LabHost:
        return self.lab.host("node1")

    def snapshot(self, name: str = "node1") -> frozenset[str]:
        """The packages and files of a host; see SNAPSHOT."""
        lines = self.root(name, SNAPSHOT).splitlines()
        return frozenset(line for line in lines if not LEFT.fullmatch(line))

    def root(self, name: str, script: str) -> str:
        """The output of ``script`` on a host."""
        return self.lab.host(name).ssh(["sudo", "sh", "-c", script]).stdout

    def module(self, name: str, module: str) -> dict[str, str]:
        """What modinfo says of the module that DKMS has put in place on a host."""
        folder = f"/lib/modules/{self.target.kernel.release}/{self.expected.modules}"
        lines = self.root(name, f"/sbin/modinfo {folder}/{module}.ko*").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def contents(self, name: str) -> str:
        """What differs as soon as anything is done with a host's packages, files or modules."""
        return self.root(name, CONTENTS)

    def healthy(self, name: str, lock: Lock) -> None:
        """The host has ``lock`` with its nvidia-fs, and every check passes there, by its own judgement."""
        rollouts.healthy(self.lab.host(name), lock)
        nvidia_fs = target_of(lock).nvidia_fs
        assert nvidia_fs is not None
        assert self.module(name, "nvidia-fs")["version"] == nvidia_fs.version


def target_of(lock: Lock) -> Target:
    (target,) = lock.targets.values()
    return target


def write(lab: Lab, pins: Mapping[str, Any], *, hosts: Sequence[LabHost] = (), **more: Any) -> None:
    """The fleet file for these hosts of ``lab``; default: all but the spare one."""
    hosts = hosts or [host for host in lab.hosts() if host.name != SPARE]
    value = yaml.safe_load(fleet.render(lab.name, hosts, lab.system, controller_archive(), lab.server))
    value["profiles"]["nodes"].update(pins)
    lab.fleet_path.write_text(yaml.safe_dump({**value, **more}, sort_keys=False))


@pytest.fixture(scope="module", params=list(EXPECTED))
def os(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def family(os: str, at_end: rollouts.AtEnd) -> Family:
    lab = Lab(unique("family"))
    at_end(lambda: labs.down(lab))
    gdsdeploy("lab", "up", "--lab", lab.name, "--os", os, "--vm", "0", "--light", "0", "--node", "1", "--yes")
    write(lab, OLD)
    family = Family(lab, rollouts.upgraded_lock(lab.fleet_path), frozenset())
    if lab.system.family == "ubuntu":
        family.root("node1", f"{INSTALL} {' '.join(TOOLS)}")
    return replace(family, before=family.snapshot())


@pytest.fixture(scope="module")
def provisioned(family: Family, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first provision did on the host.  Others of this run that need its build wait for it."""
    with family_builds.of_run().hold(family_builds.name_of(family.target)) as entry:
        hosts: dict[str, Any] = json.loads(gdsdeploy("provision", family.lab.fleet_path, "--json").stdout)["hosts"]
        if entry.build is None:
            archive = tmp_path_factory.mktemp("packed") / "modules.tar"
            packed = family.root("node1", PACK.format(family.target.kernel.release)).split()
            content, key = map(base64.b64decode, packed)
            archive.write_bytes(content)
            entry.put(archive, key.decode())
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
    assert family.target.nvidia_fs is not None
    for module, version in (("nvidia", cuda.DRIVER), ("nvidia-fs", family.target.nvidia_fs.version)):
        fields = family.module("node1", module)
        assert fields["version"] == version
        assert fields["vermagic"].startswith(f"{family.target.kernel.release} SMP")


def test_the_host_passes_its_validation(family: Family, provisioned: dict[str, Any]) -> None:
    report = json.loads(gdsdeploy("validate", family.lab.fleet_path, "--json").stdout)["hosts"]["node1"]
    verdicts = {finding["check"]: finding["verdict"] for finding in report["findings"]}
    # These compare the lock with what apt and DKMS have on this host.
    for check in ("packages.dkms", "modules.next-boot", "packages.locked-versions"):
        assert verdicts[check] == "pass", check


def test_the_second_plan_is_empty(family: Family, provisioned: dict[str, Any]) -> None:
    plan = json.loads(gdsdeploy("plan", family.lab.fleet_path, "--json").stdout)["hosts"]["node1"]
    assert plan["state"] == "nothing to do"


@pytest.fixture(scope="module")
def new(family: Family, provisioned: dict[str, Any], spare_hosts: dict[str, Spare]) -> Lock:
    """The lock of another stack, beside a fleet file of two hosts, which have the old one.

    A rollout needs a proof that the modules build only where nvidia-fs is another one.
    """
    lab = family.lab
    has_spare = lab.system.family == "ubuntu"
    copies = labs.clone(lab, family.host, 3 if has_spare else 2)
    write(lab, OLD, hosts=lab.hosts())
    rollouts.name_copies(lab, family.lock, copies)
    if has_spare:
        spare_hosts[lab.system.os] = Spare(lab, SPARE)
    write(lab, family.expected.new, rollout=ROLLOUT)
    lock = rollouts.upgraded_lock(lab.fleet_path)
    if target_of(lock).nvidia_fs != family.target.nvidia_fs:
        gdsdeploy("kmod", "preflight", lab.fleet_path)
    return lock


def test_the_upgrade_leaves_the_driver(family: Family, new: Lock) -> None:
    before, after = family.target, target_of(new)
    assert (after.driver, after.kernel) == (before.driver, before.kernel)
    assert before.nvidia_fs is not None
    assert after.nvidia_fs is not None
    first, second = cuda.NVIDIA_FS
    expected = (first, first if family.expected.new else second)
    assert (before.nvidia_fs.version, after.nvidia_fs.version) == expected
    assert [before.libcufile.version, after.libcufile.version] == list(cuda.LIBCUFILE)


def test_a_fault_in_the_canary_rolls_it_back_alone(family: Family, new: Lock) -> None:
    before, untouched = family.snapshot(), family.contents("node2")
    write(family.lab, {**family.expected.new, **NOWHERE}, rollout=ROLLOUT)
    document = rollout(family.lab, status=51)

    assert outcome(document, "node1") == "rolled-back", words(document, "node1")
    assert outcome(document, "node2") is None
    (failed,) = [entry for entry in document["hosts"]["node1"]["steps"] if entry["error"]]
    assert failed["step"] == "validate", words(document, "node1")
    assert "/scratch" in failed["error"]["message"]
    assert steps(document, "node1")[-2:] == ["undo-validate", "return"]
    family.healthy("node1", family.lock)
    assert sorted(family.snapshot() ^ before) == []
    assert family.contents("node2") == untouched
    gdsdeploy("rollout", "abort", family.lab.fleet_path)
    write(family.lab, family.expected.new, rollout=ROLLOUT)


def test_the_rollout_comes_to_its_end_once_the_fleet_file_is_right(family: Family, new: Lock) -> None:
    document = rollout(family.lab, status=0)
    assert (document["phase"], document["away"]) == ("finished", [])
    for name in ("node1", "node2"):
        assert outcome(document, name) == "done", words(document, name)
        family.healthy(name, new)
    # It names its host.
    differing = family.snapshot("node1") ^ family.snapshot("node2")
    assert sorted(line for line in differing if not line.endswith(rollouts.EXPECTATION)) == []
    plans = json.loads(gdsdeploy("plan", family.lab.fleet_path, "--json").stdout)["hosts"]
    assert {plan["state"] for plan in plans.values()} == {"nothing to do"}


def rollout(lab: Lab, *, status: int) -> dict[str, Any]:
    """Roll out; what ``status`` says afterwards."""
    gdsdeploy("rollout", "start", lab.fleet_path, "--yes", status=status)
    document: dict[str, Any] = json.loads(gdsdeploy("rollout", "status", lab.fleet_path, "--json").stdout)
    return document


def test_remove_leaves_the_hosts_as_the_first_was(family: Family, new: Lock) -> None:
    gdsdeploy("remove", family.lab.fleet_path, "--limit", "node*", "--json")
    for name in ("node1", "node2"):
        # Libraries that the stack needed stay until the administrator removes what nothing needs.
        if family.lab.system.family == "ubuntu":
            family.root(name, "apt-get -qq autoremove --purge")
        after = family.snapshot(name)
        assert sorted(family.before - after) == []
        assert sorted(line for line in after - family.before if not family.expected.stays.fullmatch(line)) == []


# Ubuntu's has the spare host, which test_packaged_light.py needs.
@pytest.mark.parametrize("os", [os for os in EXPECTED if os != "ubuntu-24.04"], indirect=True)
def test_the_lab_leaves_nothing(family: Family) -> None:
    server = family.lab.server
    assert server is not None
    listing = gdsdeploy("lab", "list").stdout
    assert f"repositories {server.uri} running" in re.sub(r" +", " ", listing)
    gdsdeploy("lab", "down", "--lab", family.lab.name)
    assert not server.running()
    assert not Path(family.lab.directory).exists()
