"""A light host of Ubuntu goes from modules that it has built to those of packages: lock, plan, validate, remove.

Goes on with a copy of the host of test_family_story.py that has built its modules; alone, it begins with such a host.
The lab's packages have these modules, signed with a key of the kit (docs/lab.md).  The host runs this machine's kernel,
so nothing is loaded.  The tests build on each other, in order.
"""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.model.lock import Target
from gdslab import fleet, records
from gdslab.archive import controller_archive
from gdslab.kit import cuda, prebuilt, ubuntu
from gdslab.kit.content import Content
from gdslab.server import Server
from gdslab.state import Lab, cache_directory
from tests.lab.program import gdsdeploy
from tests.lab.rollouts import AtEnd, Spare, upgraded_lock
from tests.lab.test_family_story import target_of
from tests.naming import unique

pytestmark = pytest.mark.lab

OS = "ubuntu-24.04"
NUMBER = ubuntu.RELEASES[OS]
FOLDER = f"/lib/modules/{NUMBER.release}"
DRIVER, NVIDIA_FS = f"linux-modules-nvidia-550-open-{NUMBER.release}", f"linux-modules-nvidia-fs-{NUMBER.release}"
FILE = f"{FOLDER}/kernel/nvidia-550-open/nvidia.ko.zst"
#: Each module that DKMS has put in place: its name without a compression, and its uncompressed content.
MODULES = rf"""
set -eu
cd {FOLDER}/updates/dkms
for file in *.ko *.ko.zst *.ko.xz; do
    [ -f "$file" ] || continue
    case "$file" in
        *.zst) content=$(zstd -dcq "$file" | base64 -w 0) ;;
        *.xz) content=$(xz -dc "$file" | base64 -w 0) ;;
        *) content=$(base64 -w 0 "$file") ;;
    esac
    echo "${{file%.ko*}}.ko $content"
done
"""
#: A tree of somebody's own by which DKMS builds an empty module under nvidia-fs's name.
HAND_MADE = rf"""
set -eu
tree=/usr/src/handmade-1.0
mkdir -p $tree
printf '%s\n' 'obj-m := nvidia-fs.o' >$tree/Makefile
printf '%s\n' '#include <linux/module.h>' 'MODULE_LICENSE("GPL");' >$tree/nvidia-fs.c
printf '%s\n' 'PACKAGE_NAME="handmade"' 'PACKAGE_VERSION="1.0"' 'BUILT_MODULE_NAME[0]="nvidia-fs"' \
    'DEST_MODULE_LOCATION[0]="/updates/dkms"' \
    'MAKE[0]="make -C /lib/modules/${{kernelver}}/build M=${{dkms_tree}}/handmade/1.0/build modules"' >$tree/dkms.conf
dkms install handmade/1.0 -k {NUMBER.release}
"""


@dataclass(frozen=True)
class Stack:
    """The lab, the lock of its fleet file for packaged modules, and the name of the host."""

    lab: Lab
    target: Target
    name: str

    def root(self, script: str) -> str:
        """The output of ``script`` on the host."""
        return self.lab.host(self.name).ssh(["sudo", "sh", "-c", script]).stdout

    def plan(self, status: int = 0) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads(gdsdeploy("plan", self.lab.fleet_path, "--json", status=status).stdout)
        return dict(plan["hosts"][self.name])

    def findings(self, *, status: int = 0) -> dict[str, dict[str, Any]]:
        report = json.loads(gdsdeploy("validate", self.lab.fleet_path, "--json", status=status).stdout)
        return {finding["check"]: finding for finding in report["hosts"][self.name]["findings"]}


def write(host: Spare, repositories: dict[str, Any] | None = None, **profile: Any) -> None:
    """The host's fleet file with these settings of its profile; repositories: more of them, which come first."""
    lab = host.lab
    value = yaml.safe_load(fleet.render(lab.name, [lab.host(host.name)], lab.system, controller_archive(), lab.server))
    value["repositories"].update(repositories or {})
    nodes = value["profiles"]["nodes"]
    nodes.update(profile, repositories=[*(repositories or {}), *nodes["repositories"]])
    lab.fleet_path.write_text(yaml.safe_dump(value, sort_keys=False))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def built(spare_hosts: dict[str, Spare], at_end: AtEnd) -> Spare:
    """A host that has built its modules with DKMS, by packages of NVIDIA's repository."""
    if OS in spare_hosts:
        return spare_hosts[OS]
    lab = Lab(unique("packaged"))
    at_end(lambda: labs.down(lab))
    gdsdeploy("lab", "up", "--lab", lab.name, "--os", OS, "--vm", "0", "--light", "0", "--node", "1", "--yes")
    host = Spare(lab, "node1")
    write(host)
    upgraded_lock(lab.fleet_path)
    gdsdeploy("provision", lab.fleet_path)
    return host


@pytest.fixture(scope="module")
def stack(built: Spare, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The same host with a fleet file for packaged modules.  The packages contain the modules that it built."""
    lab = built.lab
    folder = tmp_path_factory.mktemp("restricted")
    modules = {}
    for line in lab.host(built.name).ssh(["sudo", "sh", "-c", MODULES]).stdout.splitlines():
        name, _, content = line.partition(" ")
        modules[name] = folder / name
        modules[name].write_bytes(base64.b64decode(content))
    assert {"nvidia.ko", "nvidia-fs.ko"} <= modules.keys()
    out = folder / "published"
    out.mkdir()
    work = folder / "work"
    work.mkdir()
    content = Content(cache_directory(), controller_archive(), work)
    fingerprint = prebuilt.publish(OS, content, modules, out, work / "kit")
    records.write_json(out / "kit.json", {"keys": {prebuilt.REPOSITORY: fingerprint}})
    server = Server(folder, free_port(), out)
    server.start(in_use=False)
    try:
        restricted = {
            "uri": f"{server.uri}/{prebuilt.REPOSITORY}",
            "suites": ["/"],
            "keyring": str(out / f"{prebuilt.REPOSITORY}.gpg"),
            "fingerprints": [fingerprint],
        }
        write(built, {prebuilt.REPOSITORY: restricted}, modules="packaged")
        yield Stack(lab, target_of(upgraded_lock(lab.fleet_path)), built.name)
    finally:
        server.stop()


def test_the_lock_has_the_packages_and_nothing_to_build_with(stack: Stack) -> None:
    names = {package.package for package in stack.target.packages}
    assert {DRIVER, NVIDIA_FS, "nvidia-kernel-common-550"} <= names
    assert not [name for name in names if re.search("dkms|headers|kernel-source|^gcc", name)]
    assert {module.signer.partition(" (")[0] for module in stack.target.packaged} == {repr(prebuilt.SIGNER)}
    assert stack.target.driver.version == cuda.DRIVER


def test_the_plan_names_what_leaves_and_what_comes(stack: Stack) -> None:
    plan = stack.plan(status=32)
    assert plan["modules"]["from"] == "packaged"
    assert plan["refusals"] == []
    actions = {(action["kind"], action["subject"]) for action in plan["actions"]}
    assert {("remove", "nvidia-dkms-550-open"), ("remove", "nvidia-fs-dkms")} <= actions
    assert {("install", DRIVER), ("install", NVIDIA_FS)} <= actions


@pytest.fixture(scope="module")
def provisioned(stack: Stack) -> Stack:
    gdsdeploy("provision", stack.lab.fleet_path)
    return stack


def test_the_host_has_the_packages_modules(provisioned: Stack) -> None:
    assert provisioned.root(f"/sbin/modinfo -k {NUMBER.release} -n nvidia").strip() == FILE
    assert prebuilt.SIGNER in provisioned.root(f"/sbin/modinfo -k {NUMBER.release} -F signer nvidia-fs")
    listing = provisioned.root(f"ls {FOLDER}/updates/dkms 2>/dev/null; dkms status 2>/dev/null; true")
    assert "nvidia" not in listing
    assert provisioned.plan()["state"] == "nothing to do"


def test_validate_names_package_and_signer(provisioned: Stack) -> None:
    findings = provisioned.findings()
    (version,) = [p.version for p in provisioned.target.packages if p.package == DRIVER]
    assert findings["modules.next-boot"]["verdict"] == "pass"
    assert (
        f"nvidia: packaged by {DRIVER} {version}, signed by '{prebuilt.SIGNER}'"
        in findings["modules.next-boot"]["found"]
    )
    assert findings["packages.locked-versions"]["verdict"] == "pass"
    assert findings["packages.dkms"]["verdict"] == "not-applicable"


def test_what_dkms_installs_before_the_packages_is_uninstalled(provisioned: Stack) -> None:
    provisioned.root(HAND_MADE)
    actions = [(action["kind"], action["subject"]) for action in provisioned.plan(status=32)["actions"]]
    assert ("unbuild", "handmade/1.0") in actions
    gdsdeploy("provision", provisioned.lab.fleet_path)
    assert provisioned.plan()["state"] == "nothing to do"
    assert "installed" not in provisioned.root("dkms status handmade/1.0")
    provisioned.root("dkms remove handmade/1.0 --all; rm -rf /usr/src/handmade-1.0")


def test_a_module_that_was_changed_is_found_and_comes_back_by_the_command_that_is_named(provisioned: Stack) -> None:
    provisioned.root(f"echo >>{FILE}")
    finding = provisioned.findings(status=30)["modules.next-boot"]
    assert "isn't as the lock has it" in finding["found"]
    done = gdsdeploy("provision", provisioned.lab.fleet_path, status=24)
    pattern = r"(apt-get install) (--reinstall \S+ && apt-mark hold \S+)\n"
    ((install, rest),) = set(re.findall(pattern, done.stdout + done.stderr))
    provisioned.root(f"{install} --yes --quiet {rest}")
    assert provisioned.findings()["modules.next-boot"]["verdict"] == "pass"
    assert provisioned.plan()["state"] == "nothing to do"


def test_remove_takes_the_packages_away(provisioned: Stack) -> None:
    gdsdeploy("remove", provisioned.lab.fleet_path, "--limit", provisioned.name, "--json")
    left = provisioned.root(
        "dpkg-query --show --showformat='${db:Status-Abbrev}${Package}\\n' 'linux-modules-nvidia*'; true"
    )
    assert "ii" not in left
    assert provisioned.root(f"find {FOLDER} -name 'nvidia*' 2>/dev/null; true") == ""
