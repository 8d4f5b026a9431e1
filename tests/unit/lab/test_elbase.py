"""What makes a light host one of the RHEL family."""

from __future__ import annotations

import pytest

from gdslab import elbase, systems
from gdslab.kit import el
from gdslab.kit.elversions import RELEASES, Versions

ROCKY = [system for system in systems.SYSTEMS.values() if system.kit == "el"]


@pytest.mark.parametrize("system", ROCKY, ids=lambda system: system.os)
def test_a_host_names_the_release_whose_packages_the_lab_has(system: systems.System) -> None:
    versions = elbase.versions(system)
    fields = dict(line.split("=", 1) for line in system.os_release.splitlines())
    assert fields["VERSION_ID"] == f'"{versions.minor}"'
    assert fields["PLATFORM_ID"] == f'"platform:{versions.tag}"'
    assert fields["ID_LIKE"] == '"rhel centos fedora"'
    assert versions.base == system.base.name
    assert versions.tag in versions.kernel


@pytest.mark.parametrize("versions", RELEASES.values(), ids=lambda versions: versions.tag)
def test_the_first_packages_give_what_other_packages_need(versions: Versions) -> None:
    base = {relation for rpm in el.base(versions) for relation in rpm.provides}
    names = {relation.split(" ")[0] for relation in base}
    assert {
        "gcc",
        "make",
        "dracut",
        "linux-firmware",
        "systemd",
        "libtirpc",
        "numactl-libs",
        "elfutils-libelf-devel",
    } <= names
    assert {"/bin/sh", "/usr/bin/kernel-install", "system-release"} <= names
    assert all(
        versions.tag in relation for relation in base if "-" in relation.rpartition(" = ")[2] and " = " in relation
    )


def test_hosts_have_the_distributions_own_repositories_alone() -> None:
    text = el.yum_repositories(RELEASES[9], "http://127.0.0.1:1", "/etc/pki/rpm-gpg/k")
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[baseos]", "[appstream]"]
    assert "baseurl=http://127.0.0.1:1/rocky/9/BaseOS/x86_64/os\n" in text
    assert text.count("gpgcheck=1\n") == 2
    assert "repo_gpgcheck" not in text, "Rocky Linux leaves the index unchecked"
