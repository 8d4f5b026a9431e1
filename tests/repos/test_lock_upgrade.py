"""What moves a lock and what does not, what it says of a package, and what it refuses to be talked into."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gdsdeploy.errors import LockInvalid, LockStale, RepositoryUntrusted
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from tests.commandline import plain, run
from tests.repos.conftest import Debian
from tests.repos.stack import TRIXIE, Stanza, gds, kernel, open_driver, package, proprietary_driver, suites


def locked(fleet: Path) -> Target:
    return lockfile.read(lockfile.beside(fleet)).targets["gds"]


def versions(fleet: Path) -> dict[str, str]:
    return {package.package: package.version for package in locked(fleet).packages}


#: Newer ones of everything, all admitted by the rules.
NEWER: list[Stanza] = [
    *TRIXIE,
    *open_driver("550.200.01", "1"),
    *proprietary_driver("550.200.01", "1"),
    *gds("2.19.7", "1.9.1.3", "12.4.1", "3"),
    *kernel("6.12.99+deb13", "6.12.99-1"),
    package("dkms", "3.3.0-1", architecture="all", depends="kmod"),
]


@pytest.fixture
def moved(debian: Debian) -> Debian:
    """A lock of trixie as it was, and an archive that has newer ones of everything."""
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(NEWER))
    return debian


def test_what_is_locked_stays(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    before = lockfile.beside(moved.fleet).read_bytes()
    capsys.readouterr()
    assert run("lock", moved.fleet) == 0
    assert lockfile.beside(moved.fleet).read_bytes() == before
    assert "To move to newer versions: gdsdeploy lock --upgrade" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "moves"),
    [
        ("driver", {"driver", "nvidia-open-kernel-dkms", "nvidia-open-kernel-support", "libcuda1", "nvidia-smi",
                    "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-alternative", "firmware-nvidia-gsp"}),
        ("nvidia-fs", {"nvidia-fs-dkms"}),
        ("libcufile", {"libcufile0", "gds-tools"}),
        ("dkms", {"dkms"}),
        ("kernel", {"kernel", "linux-image-6.12.94+deb13-amd64", "linux-image-6.12.99+deb13-amd64",
                    "linux-headers-6.12.94+deb13-amd64", "linux-headers-6.12.99+deb13-amd64",
                    "linux-headers-6.12.94+deb13-common", "linux-headers-6.12.99+deb13-common",
                    "linux-kbuild-6.12.94+deb13", "linux-kbuild-6.12.99+deb13"}),
    ],
)  # fmt: skip
def test_an_upgrade_moves_what_was_named_and_nothing_else(
    what: str, moves: set[str], moved: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("lock", "--json", "--upgrade", moved.fleet, what) == 0
    report = json.loads(capsys.readouterr().out)
    assert {change["what"] for change in report["changes"]} == moves


def test_naming_a_package_that_decides_moves_its_part_of_the_stack(moved: Debian) -> None:
    assert run("lock", "--upgrade", moved.fleet, "nvidia-open-kernel-dkms", "gds-tools") == 0
    target = locked(moved.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.94+deb13-amd64")
    assert versions(moved.fleet)["libcufile0"] == "1.9.1.3~12.4.1-3"
    assert versions(moved.fleet)["dkms"] == "3.2.2-1~deb13u1"


def test_an_upgrade_without_names_moves_everything(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", moved.fleet, "--upgrade") == 0
    target = locked(moved.fleet)
    # 550.200.01 is not the build that fails on the newest kernel.
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.107+deb13-amd64")
    assert versions(moved.fleet)["dkms"] == "3.3.0-1"
    assert "  driver 550.163.01 (open) → 550.200.01 (open)\n" in capsys.readouterr().out


def test_a_driver_that_would_take_the_kernel_with_it_stays_and_says_so(debian: Debian) -> None:
    """Only the kernel was named; the newest kernel does not go with the locked driver, so the next one is taken."""
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(NEWER))
    assert run("lock", "--upgrade", debian.fleet, "kernel") == 0
    target = locked(debian.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.163.01", "6.12.99+deb13-amd64")
    assert ("kernel 6.12.107+deb13-amd64", "driver-550-pci-resize") in {(r.what, r.rule) for r in target.refused}


def test_a_pin_that_changed_moves_what_it_is_about(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    moved.write_fleet("{os: debian-13, driver: '550.200'}")
    capsys.readouterr()
    assert run("lock", moved.fleet) == 0
    target = locked(moved.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.94+deb13-amd64")
    # Why the kernel is not the newest was said when it was locked, and is kept.
    assert "kernel 6.12.107+deb13-amd64" in {r.what for r in target.refused}


def test_what_a_repository_lost_moves_and_going_back_is_said(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "--upgrade", moved.fleet, "driver") == 0
    debian = [p for p in NEWER if "550.200.01" not in p["Version"]]
    moved.publish(suites(debian))
    capsys.readouterr()
    assert run("lock", moved.fleet) == 0
    out = capsys.readouterr()
    assert "profile gds: driver goes back from 550.200.01 (open) to 550.163.01 (open)" in plain(out.err)
    assert "  driver 550.200.01 (open) → 550.163.01 (open) (downgraded)\n" in out.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--upgrade", "{fleet}", "nvidia-smy"), "nvidia-smy is neither driver, kernel"),
        (("{fleet}", "driver"), "only --upgrade takes names of what to move"),
        (("--upgrade", "--check", "{fleet}"), "exclude each other"),
    ],
)
def test_bad_arguments_are_named(
    arguments: tuple[str, ...], words: str, moved: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("lock", *(a.format(fleet=moved.fleet) for a in arguments)) == 2
    assert words in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_there_is_nothing_to_upgrade_without_a_lock(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "--upgrade", debian.fleet, "driver") == 2
    assert "there is no usable lock at" in capsys.readouterr().err


# ── replay, and files that are gone ──────────────────────────────────────────────────────────────────────────────


def dated(debian: Debian, ago: timedelta) -> None:
    published = suites(TRIXIE)
    for suite in published:
        suite.date = datetime.now(UTC) - ago
    debian.publish(published)


def test_an_index_older_than_the_locked_one_is_a_replay(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    before = lockfile.beside(debian.fleet).read_bytes()
    dated(debian, timedelta(days=2))
    capsys.readouterr()
    assert run("lock", "--upgrade", debian.fleet) == RepositoryUntrusted.exit_code
    err = plain(capsys.readouterr().err)
    assert "the index of debian trixie is dated" in err
    assert "replays an old state" in err
    assert lockfile.beside(debian.fleet).read_bytes() == before
    assert run("lock", "--check", "--json", debian.fleet) == RepositoryUntrusted.exit_code
    reasons = json.loads(capsys.readouterr().out)["reasons"]
    assert {(r["difference"], r["subject"]) for r in reasons} == {
        ("INDEX_OLDER", "debian trixie"),
        ("INDEX_OLDER", "debian trixie-updates"),
        ("INDEX_OLDER", "debian-security trixie-security"),
    }


def test_an_expired_index_is_a_named_reason(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    dated(debian, timedelta(days=30))
    capsys.readouterr()
    assert run("lock", "--check", "--json", debian.fleet) == RepositoryUntrusted.exit_code
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert reason["difference"] == "INDEX_REFUSED"
    assert "was valid until" in reason["found"]


def test_check_asks_for_each_file(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    package = next(p for p in locked(debian.fleet).packages if p.package == "libcuda1")
    (debian.archive.root / package.file).unlink()
    capsys.readouterr()
    assert run("lock", "--check", "--json", debian.fleet) == LockStale.exit_code
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert (reason["difference"], reason["subject"]) == ("FILE_GONE", "libcuda1")
    assert reason["found"].endswith(package.file)


# ── explain ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_explain_a_kernel(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("lock", "--explain", "kernel", moved.fleet) == 0
    out = capsys.readouterr().out
    assert "profile gds: linux-image-6.12.94+deb13-amd64 6.12.94-1 (kernel-image, on both)" in out
    assert f"  signed by  {moved.key.fingerprint}, index of 20" in out
    assert "  needed by  linux-headers-6.12.94+deb13-amd64" in out
    assert "  admitted   [driver-550-pci-resize]" in out
    assert "  warned     [nvidia-fs-vm-io]" in out
    newer = [each.splitlines() for each in out.split("  newer      ")[1:]]
    assert [each[0] for each in newer] == [
        "kernel 6.12.107+deb13-amd64", "kernel 6.12.100+deb13-amd64", "kernel 6.12.99+deb13-amd64"
    ]  # fmt: skip
    newest, headless, admitted = (each[1:] for each in newer)
    assert newest[0].startswith("    - [driver-550-pci-resize] Driver 550.163.01 as packaged does not compile")
    assert newest[1] == (
        "    - [lock] it would go with driver 550.200.01 (open), which the lock does not have: upgrade them together"
    )
    assert headless[0].startswith("    - [kernel-headers] The repositories have the image, but no")
    assert admitted == [f"    - nothing forbids it; take it with: gdsdeploy lock --upgrade {moved.fleet} kernel"]


def test_explain_packages_that_follow(moved: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("lock", "--explain", "libcuda1", moved.fleet) == 0
    out = capsys.readouterr().out
    assert (
        "  newer      libcuda1 550.200.01-1\n    - [driver] it has to be of the driver's own version, 550.163.01" in out
    )
    assert run("lock", "--explain", "dkms", moved.fleet) == 0
    out = capsys.readouterr().out
    assert "  needed by  nvidia-fs-dkms, nvidia-open-kernel-dkms" in out
    assert f"dkms 3.3.0-1\n    - nothing forbids it; take it with: gdsdeploy lock --upgrade {moved.fleet} dkms" in out


def test_explain_says_which_dependency_forbids_a_newer_one(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    broken = package("update-glx", "1.3.0", source="glx-alternatives", depends="nowhere (>= 2)")
    tied = [p | {"Depends": "update-glx"} if p["Package"] == "glx-alternative-nvidia" else p for p in TRIXIE]
    debian.publish(suites([*tied, broken]))
    capsys.readouterr()
    assert run("lock", "--explain", "update-glx", "--json", debian.fleet) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["needed_by"] == ["glx-alternative-nvidia"]
    assert profile["newer"] == [
        {
            "what": "update-glx 1.3.0",
            "forbidden_by": [
                "[dependencies] update-glx 1.3.0 needs nowhere (>= 2), of which the repositories have nothing"
            ],
        }
    ]


def test_explain_of_what_is_not_there_offers_what_is_near(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    assert run("lock", "--explain", "libcuda", debian.fleet) == LockInvalid.exit_code
    assert "hint: Try: libcuda1" in plain(capsys.readouterr().err)


def test_a_package_without_a_newer_one_says_so(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    capsys.readouterr()
    assert run("lock", "--explain", "nvidia-fs", debian.fleet) == 0
    out = capsys.readouterr().out
    assert "  needed by  the profile itself" in out
    assert "  admitted   [nvidia-fs-open-only]" in out
    assert "  newer      nothing on offer" in out
