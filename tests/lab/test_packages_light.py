"""The stack's packages by the real apt, where those that are installed depend on the versions before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gdslab as labs
from gdslab import Lab, LabHost
from tests.lab.empty_packages import offer
from tests.lab.roleplay import play
from tests.naming import unique

pytestmark = pytest.mark.lab

#: Two versions of a driver, what DKMS builds from the sources of each, and libraries that only one of them has.
PACKAGES = [
    *[("stack-driver", version, "") for version in "12"],
    *[("stack-source", version, f"Depends: stack-driver (= {version})") for version in "12"],
    *[(f"stack-library{version}", version, "Conflicts: stack-library\nProvides: stack-library") for version in "12"],
    ("linux-image-stack", "1", ""),
]


def version(name: str, number: int) -> dict[str, str]:
    return {"package": name, "version": str(number)}


def installed_versions(host: LabHost) -> set[str]:
    listing = host.ssh(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package} ${Version}\n"]).stdout
    return {line[3:] for line in listing.splitlines() if line[1] == "i" and ("stack" in line)}


def holds(host: LabHost) -> set[str]:
    return {name for name in host.ssh(["apt-mark", "showhold"]).stdout.split() if "stack" in name}


@pytest.fixture
def host() -> Iterator[LabHost]:
    """A light host whose apt knows the packages."""
    name = unique("packages")
    try:
        light = labs.up(name, vms=0, lights=1).host("build1")
        light.wait_ssh()
        light.ssh(["sudo", "mkdir", "-p", "/var/lib/gdsdeploy"])
        offer(light, PACKAGES)
        yield light
    finally:
        labs.down(Lab(name))


def test_a_host_that_has_built_before_gets_another_driver_and_the_old_one_again(host: LabHost, tmp_path: Path) -> None:
    names = ["stack-driver", "stack-source", "stack-library1"]
    first = [version(name, 1) for name in [*names, "linux-image-stack"]]
    assert play(host, tmp_path, "gds_packages", gds_packages_wanted=first)
    assert holds(host) == {*names, "linux-image-stack"}

    second: dict[str, Any] = {
        "gds_packages_wanted": [version("stack-driver", 2), version("stack-library2", 2)],
        "gds_packages_leaving": [version("stack-source", 2)],
        "gds_packages_locked": ["stack-driver", "stack-source", "stack-library2"],
    }
    assert play(host, tmp_path, "gds_packages", **second)
    # The kernel before stays, and so does its hold: it may be the one that runs.
    kernel = "linux-image-stack"
    assert installed_versions(host) == {"stack-driver 2", "stack-library2 2", f"{kernel} 1"}
    assert holds(host) == {"stack-driver", "stack-library2", kernel}
    assert play(host, tmp_path, "gds_packages", **second) == []
    assert play(host, tmp_path, "gds_packages", gds_packages_wanted=[version("stack-source", 2)])
    assert play(host, tmp_path, "gds_packages", **second) == [], "what was built for this version may stay"

    back: dict[str, Any] = {
        "gds_packages_wanted": [version("stack-driver", 1), version("stack-library1", 1)],
        # It had received its modules then, and nothing is to be built.
        "gds_packages_leaving": [version("stack-source", 1), {"package": "stack-library2", "version": ""}],
        "gds_packages_locked": names,
    }
    assert play(host, tmp_path, "gds_packages", **back)
    assert installed_versions(host) == {"stack-driver 1", "stack-library1 1", f"{kernel} 1"}
