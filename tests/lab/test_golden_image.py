"""A golden image: a disk that no machine runs is provisioned, boots in a VM, and its first boot passes its gate.

The tests of test_story.py and of those that follow it go on with the VM.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gdsdeploy import run
from gdslab import archive as archives, guest, images, recipe
from gdslab.host import LabHost
from gdslab.state import cache_directory
from tests.lab.image import MACHINE_ID, Folder, Image, Provision, host_of
from tests.lab.program import gdsdeploy

pytestmark = pytest.mark.lab

PROGRAM = ("sudo", "python3", "-I", "-S", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz")
#: Of first boots alone: what a boot makes has no place in an image.
OF_A_BOOT = ("var/lib/gdsdeploy/builder.key", "var/lib/gdsdeploy/gate.json", "run/gdsdeploy", "usr/sbin/policy-rc.d")


@pytest.fixture(scope="module")
def provisioned(golden_provision: Provision) -> dict[str, Any]:
    """What the plan said before the image was provisioned."""
    planned, answer = golden_provision.planned, golden_provision.answer
    assert answer["error"] is None
    assert "gds_modules: Build, receive or verify the modules, and audit them" in answer["changed"]
    return planned


def test_the_plan_names_what_an_image_cannot_have(golden: Image, provisioned: dict[str, Any]) -> None:
    subjects = {(one["kind"], one["subject"]) for one in provisioned["actions"]}
    release = golden.target.kernel.release
    assert {("boot", release), ("enable", "gds-gate.service"), ("write", "/etc/machine-id")} <= subjects
    assert not {kind for kind, _ in subjects} & {"load", "unload", "reboot", "start", "reload"}
    assert provisioned["disruption"] == "none"
    text = golden.gdsdeploy("plan").stdout
    assert "nothing to do" in text
    assert f"the first boot has to be of kernel {release}\n" in text
    assert "the first boot loads nvidia, nvidia-fs\n" in text
    assert "the gate judges the first boot" in text


def test_nothing_of_a_boot_is_in_the_image(golden: Image, provisioned: dict[str, Any]) -> None:
    for name in OF_A_BOOT:
        golden.run("test", "!", "-e", golden.point / name)
    assert golden.run("cat", golden.point / "etc/machine-id").stdout == ""
    assert golden.run("cat", golden.point / "etc/resolv.conf").stdout == f"nameserver {guest.NAMESERVER}\n"
    configuration = golden.run("cat", golden.point / "boot/grub/grub.cfg").stdout
    assert f"root=UUID={guest.ROOT_UUID}" in configuration
    assert "loop" not in configuration


def test_a_second_run_changes_nothing(golden: Image, provisioned: dict[str, Any]) -> None:
    done = golden.gdsdeploy("provision", "--json")
    assert json.loads(done.stdout)["satisfied"] == ["gpu1"]
    assert "Nothing to change" in done.stderr


def test_a_folder_for_the_network_has_no_boot_loader(golden: Image, provisioned: dict[str, Any]) -> None:
    archive = archives.controller_archive()
    base = images.base(cache_directory(), recipe.debian(golden.lab.release, archive, "light"))
    root = golden.disk.with_name("root")
    try:
        run.run(run.as_root(["cp", "-a", "--reflink=auto", "-T", str(base), str(root)]), doing="copy the base system")
        folder = Folder(golden.lab, golden.target, golden.disk, root)
        folder.use_mirror()
        planned = host_of(folder.gdsdeploy("plan", "--json", status=32).stdout)
        subjects = {(one["kind"], one["subject"]) for one in planned["actions"]}
        answer = json.loads(folder.gdsdeploy("provision", "--json").stdout)
        release = golden.target.kernel.release
        assert {("install", f"linux-image-{release}"), ("enable", "gds-gate.service")} <= subjects
        assert "boot" not in {kind for kind, _ in subjects}
        (reboot,) = [entry["words"] for entry in answer["image"]["left"] if entry["kind"] == "reboot"]
        assert reboot.endswith("no boot loader is set up in the image")
        folder.gdsdeploy("plan")
    finally:
        run.run(run.as_root(["rm", "-rf", "--one-file-system", str(root)]), doing="remove the folder")


def test_the_first_boot_passes_its_gate(golden: Image, booted: LabHost) -> None:
    boot = booted.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
    record = json.loads(booted.ssh([*PROGRAM, "gate", "show", "--json"]).stdout)["record"]
    assert (record["state"], record["verdict"], record["boot_id"]) == ("open", "pass", boot), record["reason"]
    assert booted.ssh(["uname", "-r"]).stdout.strip() == golden.target.kernel.release
    assert booted.ssh(["systemctl", "is-active", "gds-gate"], ok=(0, 3)).stdout.strip() == "inactive"
    assert len(booted.ssh(["journalctl", "--list-boots", "--no-pager", "--quiet"]).stdout.splitlines()) == 1
    own = booted.ssh(["cat", "/etc/machine-id"]).stdout.strip()
    assert (len(own), own != MACHINE_ID) == (32, True)
    gdsdeploy("validate", golden.path, "--limit", "gpu1", "--since-boot")


def test_the_host_is_what_provision_makes_of_a_host(golden: Image, booted: LabHost) -> None:
    report = json.loads(gdsdeploy("validate", golden.path, "--limit", "gpu1", "--json").stdout)
    (host,) = report["hosts"].values()
    assert {finding["verdict"] for finding in host["findings"]} == {"pass", "not-applicable"}
    plan = host_of(gdsdeploy("plan", golden.path, "--limit", "gpu1", "--json").stdout)
    assert (plan["state"], plan["actions"]) == ("nothing to do", [])


def test_remove_takes_it_back(golden: Image, provisioned: dict[str, Any]) -> None:
    copy = replace(golden, disk=golden.disk.with_name("copy.raw"))
    run.run(["cp", "--sparse=always", str(golden.disk), str(copy.disk)], doing="copy the image")
    assert host_of(copy.gdsdeploy("remove", "--json").stdout)["changed"]
    for name in ("etc/gdsdeploy", "usr/lib/gdsdeploy", "var/lib/gdsdeploy", "etc/systemd/system/gds-gate.service"):
        copy.run("test", "!", "-e", copy.point / name)
    names = copy.run("chroot", copy.point, "dpkg-query", "-W", "-f", "${Package} ").stdout.split()
    assert not {"libcufile0", "gds-tools", "libcuda1"} & set(names)
    copy.gdsdeploy("plan", status=32)
