"""``gdsdeploy lock`` against Ubuntu's archive and NVIDIA's flat CUDA repository, built, signed and served."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from gdsdeploy.errors import LockStale, RepositoryUnusable
from gdsdeploy.repo.fetch import Fetcher, address
from tests.commandline import run
from tests.pins.aptmachine import AptMachine
from tests.repos import dkmspackages
from tests.repos.conftest import Ubuntu, Verb, lock, read_lock
from tests.repos.cuda import CUDA_UBUNTU, NOBLE, cuda_nvidia_fs, noble_suites


@pytest.mark.parametrize("detached", [False, True])
def test_ubuntu_with_nvidias_repository(ubuntu: Ubuntu, detached: bool) -> None:
    ubuntu.publish(noble_suites(), CUDA_UBUNTU, detached=detached)
    ubuntu.write_fleet("driver: '580', companions: [fabricmanager, persistenced], cuda: [cuda-cudart-13-0]")
    target = lock(ubuntu.fleet)
    assert (target.kernel.release, target.driver.version) == ("6.11.0-26-generic", "580.82.07")
    assert {(i.repository, i.suite, i.components) for i in target.indices} == {
        ("cuda", "/", ()),
        ("ubuntu", "noble", ("main", "restricted", "universe", "multiverse")),
        ("ubuntu", "noble-updates", ("main", "restricted", "universe", "multiverse")),
        ("ubuntu-security", "noble-security", ("main", "restricted", "universe", "multiverse")),
    }
    by_name = {p.package: p for p in target.packages}
    driver = by_name["nvidia-dkms-580-open"]
    assert (driver.repository, driver.suite, driver.component) == ("cuda", "/", "")
    assert by_name["nvidia-fabricmanager-580"].version == "580.82.07-1"
    assert by_name["cuda-cudart-13-0"].part == "cuda"
    assert run("lock", "--check", ubuntu.fleet) == 0


def test_a_package_file_lies_where_the_lock_says(ubuntu: Ubuntu) -> None:
    """In a flat repository too, whose package list names files by ``./``."""
    target = lock(ubuntu.fleet)
    base = {(i.repository, i.suite): i.uri for i in target.indices}
    with Fetcher() as fetcher:
        for each in target.packages:
            uri = address(base[each.repository, each.suite], each.file)
            assert fetcher.file(uri, sha256=each.sha256, size=each.size).is_file()


def test_a_floating_nvidia_fs_stays(ubuntu: Ubuntu, verb: Verb) -> None:
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *cuda_nvidia_fs("2.30.1")])
    assert run("lock", ubuntu.fleet) == 0
    assert {p.version for p in read_lock(ubuntu.fleet).packages if p.package == "nvidia-fs-dkms"} == {"2.28.4-1"}
    assert verb("lock", "--upgrade", ubuntu.fleet, "nvidia-fs").out.startswith(
        "profile gds:\n  nvidia-fs 2.28.4 → 2.30.1\n  nvidia-fs-dkms 2.28.4-1 → 2.30.1-1 (upgraded)\nprofile "
    )


def test_an_older_driver_for_a_companions_sake_is_said(ubuntu: Ubuntu, verb: Verb) -> None:
    ubuntu.write_fleet("driver: '580', companions: [imex]")
    (line,) = [each for each in verb("lock", ubuntu.fleet).err.splitlines() if each.startswith("Passed over")]
    assert line.startswith("Passed over for profile gds: ")
    assert "driver 580.95.05 (open) [companion]" in line
    out = verb("lock", "--explain", "driver", ubuntu.fleet).out
    assert "  newer      driver 590.44.01 (open)\n    - [pin] the pin driver: '580' does not admit it" in out
    assert "  newer      driver 580.95.05 (open)\n    - [companion] It needs imex of its own version" in out


def test_asking_for_one_more_companion_does_not_let_the_driver_move(ubuntu: Ubuntu) -> None:
    older = [p for p in CUDA_UBUNTU if "580.95.05" not in p["Version"]]
    ubuntu.publish(noble_suites([p for p in NOBLE if "580.95.05" not in p["Version"]]), older)
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.publish(noble_suites(), CUDA_UBUNTU)
    ubuntu.write_fleet("driver: '580', companions: [persistenced]")
    target = lock(ubuntu.fleet)
    assert target.driver.version == "580.82.07"
    assert {p.version for p in target.packages if p.package == "nvidia-persistenced"} == {"580.82.07-0ubuntu1"}


def test_another_order_of_repositories_is_another_wish(ubuntu: Ubuntu, verb: Verb) -> None:
    assert run("lock", ubuntu.fleet) == 0
    swapped = ubuntu.fleet.read_text().replace("[cuda, ubuntu, ubuntu-security]", "[ubuntu, ubuntu-security, cuda]")
    ubuntu.fleet.write_text(swapped)
    assert (
        "pin repositories: the fleet file says ubuntu, ubuntu-security, cuda"
        in verb("lock", "--check", ubuntu.fleet, error=LockStale).err
    )
    assert run("lock", ubuntu.fleet) == 0
    (driver,) = [p for p in read_lock(ubuntu.fleet).packages if p.package == "nvidia-dkms-580-open"]
    assert (driver.repository, driver.version) == ("ubuntu", "580.95.05-0ubuntu0.24.04.2")


def test_what_the_fleet_asks_for_besides_makes_a_lock_stale(ubuntu: Ubuntu, verb: Verb) -> None:
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.write_fleet("driver: '580', gpu: hopper, companions: [persistenced]")
    err = verb("lock", "--check", ubuntu.fleet, error=LockStale).err
    assert "pin companions: the fleet file says persistenced, the lock has nothing" in err
    assert "pin gpu: the fleet file says hopper, the lock has nothing" in err


def test_apt_itself_reads_these_repositories_and_would_install_exactly_the_lock(ubuntu: Ubuntu, tmp_path: Path) -> None:
    """What the tests serve is a repository to the real apt too, and it has the same answer for host and builder."""
    ubuntu.write_fleet("driver: '580', companions: [fabricmanager], cuda: [cuda-toolkit-13-0]")
    target = lock(ubuntu.fleet)
    machine = AptMachine.make(tmp_path / "root", ())
    for i in target.indices:
        place = f"{i.uri} {i.suite} {' '.join(i.components)}"
        machine.source(f"{i.repository}-{i.suite.strip('/')}", f"deb [signed-by={ubuntu.key.keyring}] {place}")
    machine.run("apt-get", "update")
    for where in ("host", "build"):
        expected = {p.package: p.version for p in target.packages if p.needed_by in (where, "both")}
        installed = machine.simulate("install", *(f"{name}={version}" for name, version in expected.items()))
        assert {name: installed.get(name) for name in expected} == expected
        others = installed.keys() - expected.keys()
        assert not [name for name in others if re.search(r"nvidia|cufile|cuda|gds|^linux-(?!base)", name)]


def test_a_source_package_that_cannot_be_read_ends_the_lock(ubuntu: Ubuntu, verb: Verb) -> None:
    damaged = dkmspackages.remember(b"!<arch>\n" + b"damaged" * 20)
    digest = {"SHA256": hashlib.sha256(damaged).hexdigest(), "Size": str(len(damaged))}
    cuda = [p if p["Package"] != "nvidia-fs-dkms" else {**p, **digest} for p in CUDA_UBUNTU]
    ubuntu.publish(noble_suites(), cuda)
    assert (
        "nvidia-fs-dkms 2.28.4-1 (cuda): its source tree can't be told: it is damaged"
        in verb("lock", ubuntu.fleet, error=RepositoryUnusable).err
    )
    assert not ubuntu.fleet.with_name("gdsdeploy.lock").exists()


def test_a_second_lock_reads_no_package_again(ubuntu: Ubuntu, verb: Verb) -> None:
    assert "Reading nvidia-kernel-source-580-open" in verb("lock", ubuntu.fleet).err
    ubuntu.server.log.clear()
    assert "Reading nvidia-" not in verb("lock", ubuntu.fleet).err
    assert not [line for line in ubuntu.server.log if ".deb" in line]
