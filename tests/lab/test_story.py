"""What a provisioned host does, as a user sees it, and the ways it goes wrong.

The VM host that test_golden_image.py has booted is validated, provisioned again without a change, given an nvidia-fs
that was built against another driver, caught by name, and repaired.  The tests build on each other, in order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.model.lock import Target
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab import mirrored
from tests.lab.image import Image
from tests.lab.program import PATIENCE, gdsdeploy

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
#: The VM host and the builder of its modules.
BOTH = ("--limit", "gpu1,build1")


def validate_host(lab: Lab, *, status: int) -> dict[str, dict[str, Any]]:
    """Validate the VM host; its findings by check."""
    report = json.loads(gdsdeploy("validate", lab.fleet_path, "--limit", "gpu1", "--json", status=status).stdout)
    (host,) = report["hosts"].values()
    return {finding["check"]: finding for finding in host["findings"]}


@pytest.fixture(scope="module")
def lab(golden: Image) -> Lab:
    return golden.lab


@pytest.fixture(scope="module")
def locked(golden: Image) -> Target:
    """What the VM host's profile locks, from the real archive."""
    return golden.target


@pytest.fixture(scope="module")
def provisioned(lab: Lab, booted: LabHost) -> None:
    """The builder and the VM host have what is locked; the VM host needs nothing for it."""
    gdsdeploy("provision", lab.fleet_path, *BOTH)


def test_the_real_modules_are_loaded(lab: Lab, locked: Target, provisioned: None) -> None:
    host = lab.host("gpu1")
    assert locked.driver.version in host.ssh(["cat", "/proc/driver/nvidia/version"]).stdout
    assert locked.nvidia_fs is not None
    assert host.ssh(["cat", "/sys/module/nvidia_fs/version"]).stdout.strip() == locked.nvidia_fs.version
    assert host.ssh(["test", "-c", "/dev/nvidia-fs0"]).status == 0


def test_the_host_needed_no_compiler(lab: Lab, provisioned: None) -> None:
    assert lab.host("gpu1").ssh(["sh", "-c", "command -v gcc make dkms"], ok=(1, 127)).stdout == ""


def test_every_check_passes(lab: Lab, provisioned: None, tmp_path: Path) -> None:
    files = ["--junit", tmp_path / "r.xml", "--html", tmp_path / "r.html"]
    report = json.loads(gdsdeploy("validate", lab.fleet_path, "--limit", "gpu1", "--json", *files).stdout)
    (host,) = report["hosts"].values()
    verdicts = [finding["verdict"] for finding in host["findings"]]
    assert set(verdicts) == {"pass", "not-applicable"}
    # Without a GPU, an adapter in use and options of the driver, the rest has nothing to examine.
    assert verdicts.count("pass") > verdicts.count("not-applicable")
    path = next(f for f in host["findings"] if f["check"] == "storage.path:/mnt/nvme")
    assert "compat" in path["found"]
    suite = ET.parse(tmp_path / "r.xml").getroot()
    assert len(list(suite.iter("testcase"))) == len(host["findings"])
    assert "<script src" not in (tmp_path / "r.html").read_text()


def test_the_same_checks_as_a_testinfra_suite(lab: Lab, provisioned: None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/host", "--hosts=ssh://gpu1", f"--ssh-config={lab.ssh_config}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_the_host_can_be_asked_without_a_controller(lab: Lab, provisioned: None) -> None:
    argv = ["sudo", "python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", "validate", "--json"]
    assert json.loads(lab.host("gpu1").ssh(argv).stdout)["verdict"] == "pass"


def test_nothing_else_can_move_the_driver(lab: Lab, locked: Target, provisioned: None) -> None:
    """What a host does that knows other packages, too, is in test_rollout_story.py; kernels: test_guard_lights.py."""
    holds = lab.host("gpu1").ssh(["apt-mark", "showhold"]).stdout.split()
    assert {"libcuda1", "libcufile0", "nvidia-smi", f"linux-image-{locked.kernel.release}"} <= set(holds)


def test_one_look_at_each_host_tells_that_there_is_nothing_to_do(lab: Lab, provisioned: None) -> None:
    plan = json.loads(gdsdeploy("plan", lab.fleet_path, *BOTH, "--json").stdout)["hosts"]
    assert {name: entry["state"] for name, entry in plan.items()} == dict.fromkeys(("build1", "gpu1"), "nothing to do")
    again = gdsdeploy("provision", lab.fleet_path, *BOTH, "--json")
    assert json.loads(again.stdout)["log"] is None, "Ansible was started"
    assert "Nothing to change" in again.stderr


def test_the_roles_change_nothing_a_second_time(lab: Lab, provisioned: None) -> None:
    """On the builder; on the VM, the repair below runs all of them, and names each task that changed something."""
    argv = ["provision", lab.fleet_path, "--json", "--force-roles", "--limit", "build1"]
    hosts = json.loads(gdsdeploy(*argv).stdout)["hosts"]
    assert {name: value["changed"] for name, value in hosts.items()} == {"build1": []}


#: Faults that each can be taken back; what they were before lies in /run/faults.
FAULTS = r"""
set -eu
mkdir /run/faults
modprobe=$(grep -ls nouveau /etc/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf)
for file in $modprobe /etc/cufile.json /etc/modules-load.d/gdsdeploy.conf; do cp -a --parents "$file" /run/faults; done
sed -i s/nouveau/nothing/ $modprobe
echo '// by hand' >>/etc/cufile.json
echo nvidia >/etc/modules-load.d/gdsdeploy.conf
apt-mark unhold libcufile0 >/dev/null
cp -a --parents /dev/nvidia-fs7 /run/faults; rm /dev/nvidia-fs7
record=/run/udev/data/b$(cat /sys/class/block/nvme0n1/dev)
cp -a --parents "$record" /run/faults; rm "$record"
"""
MENDED = "cp -a /run/faults/. / && rm -r /run/faults && apt-mark hold libcufile0 >/dev/null"


def test_faults_made_on_the_host_are_found_by_name(lab: Lab, provisioned: None) -> None:
    host = lab.host("gpu1")
    host.ssh(["sudo", "sh", "-c", FAULTS])
    try:
        report = validate_host(lab, status=30)
    finally:
        host.ssh(["sudo", "sh", "-c", MENDED])
    failed = {name: finding["found"] for name, finding in report.items() if finding["verdict"] == "fail"}
    assert set(failed) == {
        "cufile.rendered",
        "boot.autoload",
        "packages.drift",
        "nvidia-fs.devices",
        "storage.path:/mnt/nvme",
    }
    assert failed["storage.path:/mnt/nvme"].startswith("broken"), "cuFileHandleRegister would fail with 5027"
    assert all(report[name]["hint"] for name in failed)
    # The lab's kernel is one for clouds, which is built without nouveau: nothing has to keep it out.
    assert report["nouveau.absent"]["verdict"] == "pass"
    assert report["nouveau.absent"]["found"] == "not loaded, and not installed"


def test_rdma_is_told_with_an_adapter_and_without(lab: Lab, provisioned: None) -> None:
    host = lab.host("gpu1")

    def rdma_findings() -> dict[str, str]:
        argv = ["sudo", "python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", "evidence", "--json"]
        facts = facts_from(json.loads(host.ssh(argv).stdout))
        expectation = from_json(host.ssh(["sudo", "cat", "/etc/gdsdeploy/expectation.json"]).stdout)
        report = checks.run(facts, replace(expectation, rdma="dmabuf"))
        return {entry.check: f"{entry.verdict}: {entry.found}" for entry in report if entry.check.startswith("rdma.")}

    # The lab gives its virtual machines an adapter in software.
    assert rdma_findings() == {
        "rdma.link": "pass: rxe0 active",
        "rdma.addresses": "not-applicable: no list has an address: libcufile chooses the adapters",
        "rdma.registration": "not-applicable: not proven: this host has no GPU",
    }
    host.ssh(["sudo", "rdma", "link", "delete", "rxe0"])
    try:
        assert rdma_findings()["rdma.link"] == "fail: there is no RDMA adapter"
    finally:
        host.ssh(["sudo", "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"])


def test_nvidia_fs_of_another_driver_is_caught_by_name_and_repaired(
    lab: Lab, locked: Target, provisioned: None, tmp_path: Path
) -> None:
    wrong = build_against_another_driver(lab, locked, tmp_path)
    host = lab.host("gpu1")
    installed = host.ssh(["sudo", "modinfo", "-n", "nvidia-fs"]).stdout.strip()
    assert installed.endswith("/nvidia-fs.ko.xz")
    script = f"cat > {installed} && depmod -a && rmmod nvidia_fs && modprobe nvidia-fs"
    host.ssh(["sudo", "sh", "-c", script], input=wrong.read_bytes())
    # The kernel takes it: the symbol versions are equal, so only the record inside the module tells.
    assert locked.nvidia_fs is not None
    assert host.ssh(["cat", "/sys/module/nvidia_fs/version"]).stdout.strip() == locked.nvidia_fs.version
    findings = validate_host(lab, status=30)
    failed = {name for name, finding in findings.items() if finding["verdict"] == "fail"}
    assert failed == {"nvidia-fs.driver-tree", "modules.running", "modules.next-boot"}
    assert "535" in findings["nvidia-fs.driver-tree"]["found"]
    assert findings["nvidia-fs.driver-tree"]["hint"]

    host.ssh(["sudo", "rm", "/etc/tmpfiles.d/gdsdeploy.conf"])
    plan = json.loads(gdsdeploy("plan", lab.fleet_path, *BOTH, "--json", status=32).stdout)["hosts"]
    assert plan["build1"]["state"] == "nothing to do"
    actions = [(action["role"], action["disruption"]) for action in plan["gpu1"]["actions"]]
    assert actions == [("gds_cufile", "none"), ("gds_modules", "none"), ("gds_reboot", "reboot")]
    assert "/etc/tmpfiles.d/gdsdeploy.conf" in plan["gpu1"]["actions"][0]["what"]
    assert "nvidia-fs.ko" in plan["gpu1"]["actions"][1]["subject"]

    run = json.loads(gdsdeploy("provision", lab.fleet_path, *BOTH, "--json").stdout)
    assert run["satisfied"] == ["build1"], "only the host that differs is converged"
    # What was not made wrong by hand is as the roles left it.
    assert run["hosts"]["gpu1"]["changed"] == [
        "gds_cufile: Configure libcufile",
        "gds_modules: Build, receive or verify the modules, and audit them",
        "gds_reboot: Check whether a reboot is needed and allowed",
        "gds_reboot: Reboot",
    ]
    validate_host(lab, status=0)
    gdsdeploy("plan", lab.fleet_path, *BOTH)


#: Fetches the open driver of the release before from the same archive, unpacks it, and builds nvidia-fs against it.
#: Without debug information, its code would equal that of the right module, whose file then needs no reboot.
OTHER_DRIVER = rf"""
set -eu
rm -rf /tmp/other; mkdir -p /tmp/other/lists/partial; cd /tmp/other
uri=$(sed -n 's/^URIs: *//p' {mirrored.SOURCES} | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri bookworm contrib" > sources.list
apt="-o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=/dev/null
     -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists=$PWD/lists -o APT::Sandbox::User=root"
apt-get -qq $apt update
version=$(apt-cache $apt madison nvidia-open-kernel-dkms | head -n 1 | cut -d'|' -f2 | tr -d ' ')
apt-get -qq $apt download "nvidia-open-kernel-dkms=$version"
dpkg-deb --extract nvidia-open-kernel-dkms_*.deb tree
cp -a "$2" source
echo 'static const char by_hand[] __attribute__((used)) = "by hand";' >>source/nvfs-core.c
python3 /usr/lib/gdsdeploy/gdsdeploy-host.pyz kmod build nvidia-fs --ahead --kernel "$1" --source source \
    --driver-tree "$(echo tree/usr/src/nvidia-current-open-*)" --driver-version "${{version%-*}}" \
    --output nvidia-fs.ko >&2
xz --check=crc32 --stdout nvidia-fs.ko
"""


def build_against_another_driver(lab: Lab, locked: Target, tmp_path: Path) -> Path:
    """nvidia-fs for the locked kernel, built on the builder against the driver of the release before."""
    assert locked.nvidia_fs is not None
    builder = lab.host("build1")
    module = tmp_path / "nvidia-fs.ko.xz"
    argv = [
        "ssh",
        "-F",
        lab.ssh_config,
        builder.name,
        "sudo",
        "sh",
        "-s",
        locked.kernel.release,
        locked.nvidia_fs.source_tree,
    ]
    done = subprocess.run(argv, input=OTHER_DRIVER.encode(), capture_output=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    module.write_bytes(done.stdout)
    return module
