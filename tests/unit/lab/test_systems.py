"""The systems that a lab's hosts can be."""

from __future__ import annotations

import pytest

from gdsdeploy.platform import supported_systems
from gdslab import guest, systems
from gdslab.errors import LabUnavailable
from gdslab.kit import ubuntu


def test_every_system_is_one_that_gdsdeploy_serves() -> None:
    assert set(systems.SYSTEMS) <= set(supported_systems())
    assert systems.DEFAULT_OS in systems.SYSTEMS


@pytest.mark.parametrize("os", [os for os, system in systems.SYSTEMS.items() if system.kit == "ubuntu"])
def test_an_ubuntu_host_names_its_release(os: str) -> None:
    system = systems.find(os)
    lines = dict(line.split("=", 1) for line in system.os_release.splitlines())
    assert (lines["ID"], lines["VERSION_ID"]) == ('"ubuntu"', f'"{system.number}"')
    assert lines["VERSION_CODENAME"] == f'"{ubuntu.RELEASES[os].codename}"'
    release = ubuntu.RELEASES[os]
    assert (release.base, release.number) == (system.base.name, system.number)


def test_debian_by_release() -> None:
    assert {systems.of_release(name).os for name in guest.RELEASES} == {"debian-13", "debian-12"}
    with pytest.raises(LabUnavailable, match="no release potato"):
        systems.of_release("potato")
    with pytest.raises(LabUnavailable, match="no hosts of plan-9"):
        systems.find("plan-9")
