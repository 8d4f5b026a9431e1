"""Conditions under which a host isn't touched."""

from __future__ import annotations

import json
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
        assert result.refusals[0].hint.startswith("take them away: dpkg --purge --force-remove-reinstreq half;")
        host.offered = {"half=1": "a" * 64}
        assert host.check(preflight())[0].refusals == [], "it is installed again"


class Uname:
    """What ``uname`` says on a host of this architecture."""

    machine = os.uname().machine

    def __init__(self, release: str) -> None:
        self.release = release


@pytest.mark.parametrize(
    ("runs", "locked", "refusals"),
    [
        ("6.17.0-1026-nvidia", "6.14.0-33-generic", ["kernel-flavour"]),
        ("6.17.0-1026-nvidia-64k", "6.17.0-1029-nvidia", ["kernel-flavour"]),
        ("5.14.0-570.73.1.el9_6.aarch64+64k", "5.14.0-570.73.1.el9_6.aarch64", ["kernel-flavour"]),
        ("6.12.0-100.28.2.el10uek.x86_64", "6.12.0-55.9.1.el10_0.x86_64", ["kernel-flavour"]),
        ("6.18.35-68.127.amzn2023.x86_64", "6.1.141-155.222.amzn2023.x86_64", ["kernel-flavour"]),
        ("6.8.0-60-generic", "6.14.0-33-generic", []),
        # Debian's cloud kernel is the default one with fewer drivers, and a builder may run another system's kernel.
        ("6.12.90+deb13-cloud-amd64", "6.12.94+deb13-amd64", []),
        ("6.8.0-1030-azure", "6.12.94+deb13-amd64", []),
        ("6.18.44-fc-v657", "6.14.0-33-generic", []),
        # The profile names a flavour.
        ("6.17.0-1026-nvidia", "", []),
    ],
)
def test_a_kernel_of_another_flavour_is_not_replaced_without_a_word_of_the_profile(
    host: AptHost, monkeypatch: pytest.MonkeyPatch, runs: str, locked: str, refusals: list[str]
) -> None:
    monkeypatch.setattr(os, "uname", lambda: Uname(runs))
    assert refused(host, unasked_kernel=locked) == refusals


def test_the_refusal_names_the_line_to_write(host: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: Uname("6.17.0-1026-nvidia-64k"))
    with pytest.raises(ApplyError) as caught:
        host.apply(preflight(unasked_kernel="6.14.0-33-generic"))
    assert "6.17.0-1026-nvidia-64k of flavour nvidia-64k" in str(caught.value)
    assert "`kernel: {flavour: nvidia-64k}`" in caught.value.hint
    assert "`kernel: {flavour: generic}`" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "version", "os"), [("ol", "9.6", "oracle-9"), ("ol", "9.6", "oracle-9.6"), ("amzn", "2023", "amazon-2023")]
)
def test_a_system_has_the_name_that_profiles_use(host: AptHost, name: str, version: str, os: str) -> None:
    host.write("/etc/os-release", RELEASE.format(name, version))
    assert refused(host, os=os) == []


def test_a_lock_that_is_older_or_of_another_fleet_is_refused(host: AptHost) -> None:
    signed = {"fleet_id": "0" * 32, "lock_serial": 4}
    assert refused(host, **signed) == [], "a host without a record"
    host.write("/etc/gdsdeploy/expectation.json", json.dumps({"fleet_id": "0" * 32, "lock_serial": 5}))
    assert refused(host, **signed) == ["lock-serial"]
    assert refused(host, **{**signed, "lock_serial": 5}) == []
    assert refused(host, fleet_id="1" * 32, lock_serial=9) == ["lock-fleet"]
    assert refused(host) == [], "without signers"
    assert refused(host, fleet_id="0" * 32) == [], "with --allow-older-lock"
    assert refused(host, fleet_id="1" * 32) == ["lock-fleet"], "which is about the order only"
    host.write("/etc/gdsdeploy/expectation.json", json.dumps({"fleet_id": ["x"], "lock_serial": "9"}))
    assert refused(host, **signed) == []
