"""``gdsdeploy lock --adopt`` from the command line down to a served archive; the hosts' answers are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.errors import GdsError, HostUnfit, HostUnreachable, NameUnknown
from gdsdeploy.lock import adopt_hosts, lockfile
from gdsdeploy.model.lock import LOCK_VERSION, Target
from gdsdeploy.ssh.endpoint import Answer
from tests.commandline import run
from tests.repos.conftest import Rhel, Ubuntu
from tests.repos.cuda import CUDA_UBUNTU, cuda_driver, noble_suites
from tests.repos.stack import package

VERSION = "580.95.05"
OLD = "580.82.07-0ubuntu1"


def pieces(version: str) -> list[dict[str, str]]:
    """Userland that the stack itself doesn't need, as it was before and as it goes with the locked driver."""
    full = f"{version}-0ubuntu1"
    source = "nvidia-graphics-drivers-580"
    return [
        package("libnvidia-decode-580", full, source=source, depends=f"libnvidia-compute-580 (= {full})"),
        package("libnvidia-encode-580", full, source=source, depends=f"libnvidia-decode-580 (= {full})"),
    ]


class Hosts:
    """Host → what it answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[list[str], list[str]]] = []

    def have(self, host: str, *packages: str, **other: str) -> None:
        listed = {key: {"version": OLD, "held": False} for key in packages} | {"bash": {"version": "5", "held": False}}
        self.answers[host] = {"version": 1, "os": "ubuntu-24.04", "arch": "x86_64", "packages": listed, **other}

    def ask(
        self,
        _fleet: Any,
        _path: Path,
        names: Sequence[str],
        argv: Sequence[str],
        judge: Callable[[Answer], Any],
        **_: Any,
    ) -> Iterator[tuple[Answer, Any]]:
        self.asked.append((list(names), list(argv)))
        for name in names:
            value = self.answers[name]
            error = value if isinstance(value, GdsError) else None
            answer = Answer(name, None if error else value, error, 0.1)
            try:
                yield answer, judge(answer)
            except GdsError as problem:
                yield answer, problem


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    answering = Hosts()
    monkeypatch.setattr(adopt_hosts, "ask", answering.ask)
    return answering


@pytest.fixture
def fleet(ubuntu: Ubuntu) -> Path:
    before = [stanza for stanza in cuda_driver("580.82.07") if stanza["Package"] == "nvidia-driver-580-open"]
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *before, *pieces(VERSION), *pieces("580.82.07")])
    document = yaml.safe_load(ubuntu.fleet.read_text())
    (profile,) = document["profiles"]
    document["profiles"][profile]["driver"] = "580.95"
    document["hosts"] = {"gpu1": profile, "gpu2": profile}
    ubuntu.fleet.write_text(yaml.safe_dump(document))
    return ubuntu.fleet


def target(fleet: Path) -> Target:
    (only,) = lockfile.read(lockfile.beside(fleet)).targets.values()
    return only


def test_pieces_of_any_host_are_locked_with_digests_and_stay(
    fleet: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.have("gpu1", "libnvidia-decode-580", "libnvidia-compute-580")
    hosts.have("gpu2", "libnvidia-decode-580", "libnvidia-encode-580", "libnvidia-strange")
    assert run("lock", "--adopt", "gpu*", fleet) == 0
    assert hosts.asked == [(["gpu1", "gpu2"], ["packages", "--json"])]
    err = capsys.readouterr().err
    assert "Adopted for profile gds: libnvidia-decode-580, libnvidia-encode-580\n" in err
    assert "  libnvidia-encode-580 isn't on gpu1: provision installs it there, too\n" in err
    assert "  not adopted: libnvidia-strange: the profile's repositories don't have it; `gdsdeploy plan` tells" in err
    first = lockfile.beside(fleet).read_bytes()
    assert target(fleet).adopted == ("libnvidia-decode-580", "libnvidia-encode-580")
    versions = {each.package: (each.version, len(each.sha256)) for each in target(fleet).packages}
    assert versions["libnvidia-encode-580"] == (f"{VERSION}-0ubuntu1", 64)
    assert yaml.safe_load(first)["lock_version"] == LOCK_VERSION
    assert run("lock", fleet) == 0
    assert lockfile.beside(fleet).read_bytes() == first, "a run without hosts keeps what was adopted"
    assert "Adopted for profile gds: libnvidia-decode-580" in capsys.readouterr().err


def test_another_adoption_takes_the_place_of_the_first(
    fleet: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.have("gpu1", "libnvidia-decode-580", "libnvidia-gl-580")
    assert run("lock", "--adopt", "gpu1", fleet) == 0
    hosts.have("gpu1", "libnvidia-gl-580")
    capsys.readouterr()
    assert run("lock", "--adopt", "gpu1", fleet) == 0
    out = capsys.readouterr()
    assert "  adopted libnvidia-decode-580 (removed)\n" in out.out
    assert "  libnvidia-decode-580 580.95.05-0ubuntu1 (removed)\n" in out.out
    assert target(fleet).adopted == ("libnvidia-gl-580",)
    hosts.have("gpu1")
    assert run("lock", "--adopt", "gpu1", "--json", fleet) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["adopted"] == {"gds": []}
    assert report["left_out"] == []
    assert "adopted" not in yaml.safe_load(lockfile.beside(fleet).read_text())["targets"]["gds"]


def test_what_would_leave_is_told_from_what_stays(
    fleet: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    """The metapackage needs the driver's packages in their versions before, and hosts don't have its DKMS."""
    hosts.have("gpu1", "nvidia-driver-580-open")
    assert run("lock", "--adopt", "gpu1", "--json", fleet) == 0
    (one,) = json.loads(capsys.readouterr().out)["left_out"]
    assert (one["profile"], one["name"], one["leaves"]) == ("gds", "nvidia-driver-580-open", True)
    assert "with `modules: build` it is adopted" in one["reason"]
    assert one["consequence"] == "provision refuses to remove it unless its profile lists it in `removes`"


def test_a_driver_without_a_piece_leaves_its_name_with_a_warning(
    fleet: Path, ubuntu: Ubuntu, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.have("gpu1", "libnvidia-decode-580")
    assert run("lock", "--adopt", "gpu1", fleet) == 0
    ubuntu.publish(noble_suites(), CUDA_UBUNTU)
    assert run("lock", fleet) == 0
    err = capsys.readouterr().err
    assert "[adopted] libnvidia-decode-580 was adopted and isn't in this lock: the profile's repositories don't" in err
    assert target(fleet).adopted == ("libnvidia-decode-580",), "a later driver may have it again"
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *pieces(VERSION)])
    assert run("lock", fleet) == 0
    assert "libnvidia-decode-580" in {each.package for each in target(fleet).packages}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (HostUnreachable("gpu1: no answer"), HostUnreachable, "no answer"),
        ({"error": {"kind": "packages", "message": "dpkg-query cannot be asked", "hint": ""}}, HostUnfit, "dpkg-query"),
        ({"os": "debian-13", "arch": "x86_64", "packages": {}}, HostUnfit, "it runs debian-13 on x86_64, and its"),
        ({"os": "ubuntu-24.04", "arch": "aarch64", "packages": {}}, HostUnfit, "ubuntu-24.04 on aarch64, and its"),
        ({"os": "ubuntu-24.04", "arch": "x86_64", "packages": {"-x": {}}}, HostUnfit, "malformed"),
        ({}, HostUnfit, "malformed"),
    ],
)
def test_a_host_that_cannot_say_stops_the_lock(
    answer: Any, kind: type[GdsError], words: str, fleet: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.have("gpu2", "libnvidia-decode-580")
    hosts.answers["gpu1"] = answer
    assert run("lock", "--adopt", "gpu1,gpu2", fleet) == kind.exit_code
    assert words in capsys.readouterr().err
    assert not lockfile.beside(fleet).exists()


def test_a_host_that_the_fleet_does_not_have(fleet: Path, hosts: Hosts) -> None:
    assert run("lock", "--adopt", "gpu9", fleet) == NameUnknown.exit_code


def test_pieces_on_rhel_come_from_the_locked_stream(
    rhel: Rhel, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proprietary metapackage doesn't go with the open driver."""
    rhel.write_fleet("driver: '580', modules: build")
    names = ("nvidia-driver-libs", "nvidia-driver", "nvidia-open", "cuda-drivers", "nvidia-driver-cuda")
    hosts.have("gpu1", *names, os="rhel-9.4")
    for each in hosts.answers["gpu1"]["packages"].values():
        each["version"] = "3:570.172.08-1.el9"
    assert run("lock", "--adopt", "gpu1", "--json", rhel.fleet) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["adopted"] == {"gds": ["nvidia-driver", "nvidia-driver-libs", "nvidia-open"]}
    (one,) = report["left_out"]
    assert one["name"] == "cuda-drivers"
    assert "kmod-nvidia-latest-dkms" in one["reason"]
    packages = {each.package: each.version for each in target(rhel.fleet).packages}
    assert packages["nvidia-driver-libs"] == packages["nvidia-open"] == "3:580.95.05-1.el9"
