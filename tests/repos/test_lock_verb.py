"""``gdsdeploy lock`` from the command line down to a served archive."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gdsdeploy.errors import (
    FleetInvalid,
    LockInvalid,
    LockStale,
    RepositoryUntrusted,
    RepositoryUnusable,
    SignatureRefused,
)
from gdsdeploy.lock import lockfile, signatures
from tests.commandline import plain, run
from tests.repos.conftest import Debian
from tests.repos.stack import TRIXIE, gds, kernel, suites, without


def test_lock_writes_the_newest_admitted_stack(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    target = lockfile.read(debian.fleet.parent / "gdsdeploy.lock").targets["gds"]
    assert (target.kernel.release, target.kernel.version) == ("6.12.94+deb13-amd64", "6.12.94-1")
    assert (target.driver.version, target.driver.flavour) == ("550.163.01", "open")
    assert (target.driver.source_tree, target.driver.dkms_name) == (
        "/usr/src/nvidia-current-open-550.163.01",
        "nvidia-current-open",
    )
    assert target.nvidia_fs is not None
    assert (target.nvidia_fs.version, target.nvidia_fs.source_tree) == ("2.19.7", "/usr/src/nvidia-fs-2.19.7")
    assert target.libcufile.version == "1.9.1.3"
    assert {(r.what, r.rule) for r in target.refused} == {
        ("kernel 6.12.107+deb13-amd64", "driver-550-pci-resize"),
        ("kernel 6.12.100+deb13-amd64", "kernel-headers"),
    }
    assert [i.suite for i in target.indices] == ["trixie", "trixie-updates", "trixie-security"]
    assert {i.signed_by for i in target.indices} == {debian.key.fingerprint}
    out = capsys.readouterr()
    assert re.search(r"^gds +debian-13 x86_64 +6\.12\.94\+deb13-amd64 +550\.163\.01 \(open\)", out.out, re.MULTILINE)
    assert "nvidia-fs-vm-io" in out.err


def test_what_the_lock_holds_and_where_it_is_needed(debian: Debian) -> None:
    assert run("lock", debian.fleet) == 0
    target = lockfile.read(lockfile.beside(debian.fleet)).targets["gds"]
    where = {package.package: package.needed_by for package in target.packages}
    assert where == {
        "dkms": "build",
        "firmware-nvidia-gsp": "both",
        "gds-tools": "host",
        "glx-alternative-nvidia": "both",
        "libcuda1": "host",
        "libcufile0": "host",
        "libnvidia-ml1": "host",
        "libnvidia-ptxjitcompiler1": "host",
        "linux-headers-6.12.94+deb13-amd64": "build",
        "linux-headers-6.12.94+deb13-common": "build",
        "linux-image-6.12.94+deb13-amd64": "both",
        "linux-kbuild-6.12.94+deb13": "build",
        "nvidia-alternative": "both",
        "nvidia-fs-dkms": "build",
        "nvidia-installer-cleanup": "build",
        "nvidia-kernel-common": "both",
        "nvidia-modprobe": "both",
        "nvidia-open-kernel-dkms": "build",
        "nvidia-open-kernel-support": "both",
        "nvidia-smi": "host",
        "nvidia-support": "host",
        "update-glx": "both",
    }
    parts = {package.package: package.part for package in target.packages}
    assert parts["firmware-nvidia-gsp"] == "companion"
    assert parts["linux-kbuild-6.12.94+deb13"] == "kernel-headers"
    assert parts["nvidia-alternative"] == "driver-userland"
    assert parts["update-glx"] == "support"


def test_a_second_lock_changes_nothing_even_when_the_indices_are_newer(
    debian: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lock", debian.fleet) == 0
    path = lockfile.beside(debian.fleet)
    before = path.stat()
    later = suites(TRIXIE)
    for suite in later:
        suite.date = datetime.now(UTC) - timedelta(minutes=5)
    debian.publish(later)
    capsys.readouterr()
    assert run("lock", debian.fleet) == 0
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert "Nothing changed" in capsys.readouterr().err


def test_a_lock_is_signed_and_checked(debian: Debian, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("alice", "bob"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name], check=True)
    (debian.fleet.parent / "signers").write_text(f"alice {(tmp_path / 'alice.pub').read_text()}")
    path = lockfile.beside(debian.fleet)
    assert run("lock", "--sign", tmp_path / "alice", debian.fleet) == 0
    assert "has no key signers, so nothing asks for this signature" in plain(capsys.readouterr().err)
    debian.fleet.write_text(f"{debian.fleet.read_text()}\nsigners: signers\n")
    assert run("lock", "--check", debian.fleet) == SignatureRefused.exit_code
    (line,) = re.findall(r"write beside signers: `(.*)`", plain(capsys.readouterr().err))
    debian.fleet.write_text(f"{debian.fleet.read_text()}{line}\n")
    assert run("lock", "--check", debian.fleet) == 0
    before = path.read_bytes(), signatures.beside(path).read_bytes()
    assert run("lock", "--sign", tmp_path / "bob", debian.fleet) == SignatureRefused.exit_code
    assert "which is of no signer in" in plain(capsys.readouterr().err)
    assert (path.read_bytes(), signatures.beside(path).read_bytes()) == before
    assert run("lock", "--upgrade", "--sign", tmp_path / "alice", debian.fleet) == 0
    assert run("lock", "--check", debian.fleet) == 0
    assert lockfile.read(path).serial == 1, "nothing was newer"


def test_the_same_input_gives_the_same_bytes(debian: Debian) -> None:
    path = lockfile.beside(debian.fleet)
    debian.fleet.write_text(f"{debian.fleet.read_text()}\nfleet_id: '{'0' * 32}'\n")
    assert run("lock", debian.fleet) == 0
    first = path.read_bytes()
    path.unlink()
    assert run("lock", debian.fleet) == 0
    assert path.read_bytes() == first


def test_the_change_list_names_what_moved(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    newer = [
        *without(TRIXIE, *(p["Package"] for p in gds("2.19.7", "1.9.1.3", "12.4.1", "2"))),
        *gds("2.19.7", "1.9.1.3", "12.4.1", "3"),
        *kernel("6.12.99+deb13", "6.12.99-1"),
    ]
    debian.publish(suites(newer))
    capsys.readouterr()
    assert run("lock", "--upgrade", debian.fleet) == 0
    out = capsys.readouterr().out
    assert "  kernel 6.12.94+deb13-amd64 → 6.12.99+deb13-amd64\n" in out
    assert "  linux-image-6.12.94+deb13-amd64 6.12.94-1 (removed)\n" in out
    assert "  linux-image-6.12.99+deb13-amd64 6.12.99-1 (added)\n" in out
    assert "  nvidia-fs-dkms 2.19.7~12.4.1-2 → 2.19.7~12.4.1-3 (upgraded)\n" in out


def test_json_is_one_object_on_stdout(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "--json", debian.fleet) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["changed"] is True
    assert report["profiles"]["gds"]["kernel"] == "6.12.94+deb13-amd64"
    assert report["digest"] == lockfile.read(lockfile.beside(debian.fleet)).digest
    assert [warning["rule"] for warning in report["warnings"]] == ["nvidia-fs-vm-io"]
    assert {change["what"] for change in report["changes"]} >= {"kernel", "driver", "libcuda1"}


def test_mode_compat_has_no_nvidia_fs(debian: Debian) -> None:
    debian.write_fleet("{os: debian-13, mode: compat}")
    assert run("lock", debian.fleet) == 0
    target = lockfile.read(lockfile.beside(debian.fleet)).targets["gds"]
    assert target.nvidia_fs is None
    assert "nvidia-fs-dkms" not in {p.package for p in target.packages}


def test_rdma_adds_libcufiles_own_library(debian: Debian) -> None:
    debian.write_fleet("{os: debian-13, rdma: peermem}")
    assert run("lock", debian.fleet) == 0
    target = lockfile.read(lockfile.beside(debian.fleet)).targets["gds"]
    assert "libcufile-rdma1" in {p.package for p in target.packages}


def test_a_system_that_is_unknown_is_named_by_place_with_the_known_ones(
    debian: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    debian.write_fleet("{os: plan-9}")
    assert run("lock", debian.fleet) == FleetInvalid.exit_code
    err = plain(capsys.readouterr().err)
    assert "fleet.yml:6:13: profiles.gds.os: unknown operating system 'plan-9'; supported: debian-12, " in err


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///nonexistent", "repository debian: this machine has no folder /nonexistent"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/dists/trixie/"),
    ],
)
def test_an_archive_that_does_not_answer_is_named(
    uri: str, words: str, debian: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    debian.fleet.write_text(re.sub(r"uri: '[^']*'", f"uri: '{uri}'", debian.fleet.read_text()))
    assert run("lock", debian.fleet) == RepositoryUnusable.exit_code
    assert words in plain(capsys.readouterr().err)


# ── --check ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_passes_on_a_fresh_lock_and_writes_nothing(debian: Debian) -> None:
    assert run("lock", debian.fleet) == 0
    before = lockfile.beside(debian.fleet).stat().st_mtime_ns
    assert run("lock", "--check", debian.fleet) == 0
    assert lockfile.beside(debian.fleet).stat().st_mtime_ns == before


def test_check_without_a_lock_says_how_to_get_one(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "--check", debian.fleet) == LockInvalid.exit_code
    assert "Run `gdsdeploy lock`" in plain(capsys.readouterr().err)


def test_check_names_a_package_that_vanished(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(without(TRIXIE, *(p["Package"] for p in kernel("6.12.94+deb13", "6.12.94-1")))))
    capsys.readouterr()
    assert run("lock", "--check", "--json", debian.fleet) == LockStale.exit_code
    out = capsys.readouterr()
    reasons = json.loads(out.out)["reasons"]
    assert {(r["difference"], r["subject"]) for r in reasons} == {
        ("PACKAGE_GONE", "linux-headers-6.12.94+deb13-amd64"),
        ("PACKAGE_GONE", "linux-headers-6.12.94+deb13-common"),
        ("PACKAGE_GONE", "linux-image-6.12.94+deb13-amd64"),
        ("PACKAGE_GONE", "linux-kbuild-6.12.94+deb13"),
    }
    assert "package no longer in its repository linux-image-6.12.94+deb13-amd64" in plain(out.err)


def test_check_names_a_package_that_was_replaced_under_its_version(debian: Debian) -> None:
    assert run("lock", debian.fleet) == 0
    other = [{**p, "SHA256": "0" * 64} if p["Package"] == "libcuda1" else p for p in TRIXIE]
    debian.publish(suites(other))
    assert run("lock", "--check", debian.fleet) == LockStale.exit_code


def test_a_lock_that_was_edited_by_hand_is_resolved_anew(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", debian.fleet) == 0
    path = lockfile.beside(debian.fleet)
    good, targets = path.read_text(), lockfile.read(path).targets
    path.write_text(good.replace("550.163.01-2", "550.163.01-9", 1))
    assert run("lock", "--check", debian.fleet) == LockInvalid.exit_code
    assert "edited by hand" in plain(capsys.readouterr().err)
    assert run("lock", debian.fleet) == 0
    assert lockfile.read(path).targets == targets


def test_an_index_that_stands_still_is_a_warning_and_with_max_age_an_error(
    debian: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    still = [replace(suite, date=datetime.now(UTC) - timedelta(days=200), valid_for=None) for suite in suites()]
    debian.publish(still)
    assert run("lock", debian.fleet) == 0
    assert "profile gds: [index-age]" in plain(capsys.readouterr().err)
    debian.fleet.write_text(debian.fleet.read_text().replace("  debian: {", "  debian: {max_age: 30d, "))
    for options in ((), ("--check",)):
        assert run("lock", *options, debian.fleet) == RepositoryUntrusted.exit_code
        assert "max_age of repositories.debian is 30 days" in plain(capsys.readouterr().err)
