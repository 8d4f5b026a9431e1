"""Conditions under which a host isn't touched."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.apt_host import AptHost, apt

__all__ = ["apt"]
RELEASE = 'PRETTY_NAME="x"\nID={}\nVERSION_ID="{}"\nVERSION_CODENAME=y\n'


def preflight(**changed: Any) -> dict[str, Any]:
    desired = {"os": "debian-13", "arch": os.uname().machine, "manager": "apt", "free_mib": {"/usr": 1}, **changed}
    return {"resource": "preflight", "desired": desired}


@pytest.fixture
def host(apt: AptHost) -> AptHost:
    apt.write("/etc/os-release", RELEASE.format("debian", 13))
    return apt


def refused(host: AptHost, **changed: Any) -> list[str]:
    (result,) = host.check(preflight(**changed))
    assert result.changes == []
    return [refusal.id for refusal in result.refusals]


def test_the_locked_system_is_let_in(host: AptHost) -> None:
    assert refused(host) == []
    (result,) = host.apply(preflight())
    assert (result.changes, result.report["os"]) == ([], "debian-13")


@pytest.mark.parametrize(
    ("name", "version", "target_os", "good"),
    [
        ("debian", "12", "debian-13", False),
        ("rocky", "9.5", "rocky-9", True),
        ("rocky", "9.5", "rocky-9.5", True),
        ("rocky", "9.5", "rocky-9.4", False),
        ("ubuntu", "24.04", "ubuntu-24.04", True),
        ("ubuntu", "22.04", "ubuntu-24.04", False),
    ],
)
def test_the_major_version_decides(host: AptHost, name: str, version: str, target_os: str, good: bool) -> None:
    host.write("/etc/os-release", RELEASE.format(name, version))
    assert refused(host, os=target_os) == ([] if good else ["os"])


def test_a_system_without_a_version_is_said(host: AptHost) -> None:
    host.write("/etc/os-release", "ID=debian\n")
    with pytest.raises(ApplyError, match="this host runs debian-none") as caught:
        host.apply(preflight())
    assert caught.value.kind == "refused"


def test_another_architecture_is_refused(host: AptHost) -> None:
    assert refused(host, arch="riscv64") == ["arch"]


def test_lacking_space_is_refused_with_numbers(host: AptHost) -> None:
    (result,) = host.check(preflight(free_mib={"/usr": 1, "/boot": 1 << 40, "/not/there/yet": 1}))
    assert [refusal.id for refusal in result.refusals] == ["space"]
    assert "/boot has " in result.refusals[0].message
    assert "/usr" not in result.refusals[0].message


@pytest.mark.parametrize(("state", "bad"), [("iF", False), ("iU", False), ("iH", True), ("iiR", True)])
def test_only_what_dpkg_cannot_finish_is_refused(host: AptHost, state: str, bad: bool) -> None:
    host.packages = {"half": ("1", state)}
    (result,) = host.check(preflight())
    assert [refusal.id for refusal in result.refusals] == (["half-installed"] if bad else [])
    if bad:
        assert "apt-get install --reinstall half" in result.refusals[0].hint
