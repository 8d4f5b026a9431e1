"""``gdsdeploy lock`` from the command line down to a served archive."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.errors import (
    FleetInvalid,
    GdsError,
    HostUnfit,
    HostUnreachable,
    LockInvalid,
    LockStale,
    NameUnknown,
    RepositoryUntrusted,
    RepositoryUnusable,
    SignatureRefused,
)
from gdsdeploy.lock import lockfile, signatures
from gdsdeploy.model.lock import LOCK_VERSION
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer
from tests.commandline import plain, run
from tests.repos.conftest import Debian, Rhel, Ubuntu, Verb, lock, read_lock
from tests.repos.cuda import CUDA_UBUNTU, cuda_driver, driver_pieces, noble_suites
from tests.repos.stack import TRIXIE, Stanza, gds, kernel, open_driver, package, proprietary_driver, suites, without


def test_lock_writes_the_newest_admitted_stack(debian: Debian, verb: Verb) -> None:
    out = verb("lock", debian.fleet)
    target = read_lock(debian.fleet)
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
    assert re.search(r"^gds +debian-13 x86_64 +6\.12\.94\+deb13-amd64 +550\.163\.01 \(open\)", out.out, re.MULTILINE)
    assert "nvidia-fs-vm-io" in out.err


def test_what_the_lock_holds_and_where_it_is_needed(debian: Debian) -> None:
    target = lock(debian.fleet)
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


def test_a_second_lock_changes_nothing_even_when_the_indices_are_newer(debian: Debian, verb: Verb) -> None:
    lock(debian.fleet)
    path = lockfile.beside(debian.fleet)
    before = path.stat()
    later = suites(TRIXIE)
    for suite in later:
        suite.date = datetime.now(UTC) - timedelta(minutes=5)
    debian.publish(later)
    assert "Nothing changed" in verb("lock", debian.fleet).err
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_lock_is_signed_and_checked(debian: Debian, tmp_path: Path, verb: Verb) -> None:
    for name in ("alice", "bob"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name], check=True)
    (debian.fleet.parent / "signers").write_text(f"alice {(tmp_path / 'alice.pub').read_text()}")
    path = lockfile.beside(debian.fleet)
    assert (
        "has no key signers, so nothing asks for this signature"
        in verb("lock", "--sign", tmp_path / "alice", debian.fleet).err
    )
    debian.fleet.write_text(f"{debian.fleet.read_text()}\nsigners: signers\n")
    refused = verb("lock", "--check", debian.fleet, error=SignatureRefused)
    (line,) = re.findall(r"write beside signers: `(.*)`", refused.err)
    debian.fleet.write_text(f"{debian.fleet.read_text()}{line}\n")
    assert run("lock", "--check", debian.fleet) == 0
    before = path.read_bytes(), signatures.beside(path).read_bytes()
    assert (
        "which is of no signer in" in verb("lock", "--sign", tmp_path / "bob", debian.fleet, error=SignatureRefused).err
    )
    assert (path.read_bytes(), signatures.beside(path).read_bytes()) == before
    assert run("lock", "--upgrade", "--sign", tmp_path / "alice", debian.fleet) == 0
    assert run("lock", "--check", debian.fleet) == 0
    assert lockfile.read(path).serial == 1, "nothing was newer"


@pytest.mark.parametrize("site", ["debian", "ubuntu", "rhel"])
def test_a_fresh_lock_holds_and_the_same_input_gives_the_same_bytes(
    site: str, request: pytest.FixtureRequest, verb: Verb
) -> None:
    fleet: Path = request.getfixturevalue(site).fleet
    # The id of a fleet whose file doesn't state one is random.
    fleet.write_text(f"{fleet.read_text()}\nfleet_id: '{'0' * 32}'\n")
    lock(fleet)
    path = lockfile.beside(fleet)
    before, written = path.read_bytes(), path.stat().st_mtime_ns
    assert not verb("lock", "--check", "--json", fleet).json["reasons"]
    lock(fleet)
    assert path.stat().st_mtime_ns == written
    path.unlink()
    lock(fleet)
    assert path.read_bytes() == before


def test_the_change_list_names_what_moved(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    newer = [
        *without(TRIXIE, *(p["Package"] for p in gds("2.19.7", "1.9.1.3", "12.4.1", "2"))),
        *gds("2.19.7", "1.9.1.3", "12.4.1", "3"),
        *kernel("6.12.96+deb13", "6.12.96-1"),
    ]
    debian.publish(suites(newer))
    out = verb("lock", "--upgrade", debian.fleet).out
    assert "  kernel 6.12.94+deb13-amd64 → 6.12.96+deb13-amd64\n" in out
    assert "  linux-image-6.12.94+deb13-amd64 6.12.94-1 (removed)\n" in out
    assert "  linux-image-6.12.96+deb13-amd64 6.12.96-1 (added)\n" in out
    assert "  nvidia-fs-dkms 2.19.7~12.4.1-2 → 2.19.7~12.4.1-3 (upgraded)\n" in out


def test_json_is_one_object_on_stdout(debian: Debian, verb: Verb) -> None:
    report = verb("lock", "--json", debian.fleet).json
    assert report["changed"] is True
    assert report["profiles"]["gds"]["kernel"] == "6.12.94+deb13-amd64"
    assert report["digest"] == lockfile.read(lockfile.beside(debian.fleet)).digest
    assert [warning["rule"] for warning in report["warnings"]] == ["nvidia-fs-no-io", "nvidia-fs-vm-io"]
    assert {change["what"] for change in report["changes"]} >= {"kernel", "driver", "libcuda1"}


def test_a_system_that_is_unknown_is_named_by_place_with_the_known_ones(debian: Debian, verb: Verb) -> None:
    debian.write_fleet("os: plan-9")
    err = verb("lock", debian.fleet, error=FleetInvalid).err
    assert "fleet.yml:6:13: profiles.gds.os: unknown operating system 'plan-9'; supported: debian-12, " in err


# ── --check ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_without_a_lock_says_how_to_get_one(debian: Debian, verb: Verb) -> None:
    assert "Run `gdsdeploy lock`" in verb("lock", "--check", debian.fleet, error=LockInvalid).err


def test_a_rule_of_the_fleet_makes_its_lock_stale_until_it_moves(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    rule = {"id": "ours", "says": "Ours crash.", "known": "measured", "source": "here"}
    own = debian.fleet.with_name(f"{debian.fleet.stem}.compat.yml")
    own.write_text(yaml.safe_dump({"rules": [{**rule, "refuses": {"driver_package": "<=550.163.01-2"}}]}))
    out = verb("lock", "--check", "--json", debian.fleet, error=LockStale)
    assert [(r["difference"], r["subject"], r["expected"]) for r in out.json["reasons"]] == [
        ("RULE_REFUSES", "ours", f"{own}:2")
    ]
    assert "[ours] Ours crash. Here: driver package 550.163.01-2. The rule is in" in plain(out.err)
    assert (
        f"gdsdeploy lock {debian.fleet}"
        in verb("inventory", debian.fleet, "-o", debian.fleet.parent / "out", error=LockStale).err
    )
    debian.publish(suites(NEWER))
    assert run("lock", debian.fleet) == 0
    assert versions(debian.fleet)["nvidia-open-kernel-dkms"] == "550.200.01-1"
    assert run("lock", "--check", debian.fleet) == 0
    own.write_text(own.read_text().replace("driver_package", "driver"))
    assert "fleet.compat.yml:5:5: rules.0.refuses: driver: no version is written like '550.163.01-2' here" in plain(
        verb("lock", "--check", debian.fleet, error=FleetInvalid).err
    )


def test_check_names_a_package_that_vanished(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(without(TRIXIE, *(p["Package"] for p in kernel("6.12.94+deb13", "6.12.94-1")))))
    out = verb("lock", "--check", "--json", debian.fleet, error=LockStale)
    reasons = json.loads(out.out)["reasons"]
    assert {(r["difference"], r["subject"]) for r in reasons} == {
        ("PACKAGE_GONE", "linux-headers-6.12.94+deb13-amd64"),
        ("PACKAGE_GONE", "linux-headers-6.12.94+deb13-common"),
        ("PACKAGE_GONE", "linux-image-6.12.94+deb13-amd64"),
        ("PACKAGE_GONE", "linux-kbuild-6.12.94+deb13"),
    }
    assert "package no longer in its repository linux-image-6.12.94+deb13-amd64" in plain(out.err)


def test_a_suite_that_is_gone_is_an_answer_for_every_profile(debian: Debian, verb: Verb) -> None:
    debian.fleet.write_text(debian.fleet.read_text().replace("hosts:", "  more: {os: debian-13}\nhosts:"))
    assert run("lock", debian.fleet) == 0
    shutil.rmtree(debian.archive.root / "dists" / "trixie-updates")
    out = verb("lock", "--check", "--json", debian.fleet, error=RepositoryUnusable)
    assert [(r["difference"], r["profile"]) for r in out.json["reasons"]] == [
        ("REPOSITORY_GONE", "gds"), ("REPOSITORY_GONE", "more")
    ]  # fmt: skip
    assert "profile more: repository can't be read: " in out.err
    for what in ("driver", "dkms"):
        explained = verb("lock", "--explain", what, debian.fleet).out
        assert explained.count("  gone       ") == 2
        assert "trixie-updates" in explained


def test_check_names_a_package_that_was_replaced_under_its_version(debian: Debian) -> None:
    assert run("lock", debian.fleet) == 0
    other = [{**p, "SHA256": "0" * 64} if p["Package"] == "libcuda1" else p for p in TRIXIE]
    debian.publish(suites(other))
    assert run("lock", "--check", debian.fleet) == LockStale.exit_code


def test_a_lock_that_was_edited_by_hand_is_resolved_anew(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    path = lockfile.beside(debian.fleet)
    good, targets = path.read_text(), lockfile.read(path).targets
    path.write_text(good.replace("550.163.01-2", "550.163.01-9", 1))
    assert "edited by hand" in verb("lock", "--check", debian.fleet, error=LockInvalid).err
    assert run("lock", debian.fleet) == 0
    assert lockfile.read(path).targets == targets


def test_an_index_that_stands_still_is_a_warning_and_with_max_age_an_error(debian: Debian, verb: Verb) -> None:
    still = [replace(suite, date=datetime.now(UTC) - timedelta(days=200), valid_for=None) for suite in suites()]
    debian.publish(still)
    assert "profile gds: [index-age]" in verb("lock", debian.fleet).err
    debian.fleet.write_text(debian.fleet.read_text().replace("  debian: {", "  debian: {max_age: 30d, "))
    for options in ((), ("--check",)):
        assert (
            "max_age of repositories.debian is 30 days"
            in verb("lock", *options, debian.fleet, error=RepositoryUntrusted).err
        )


# -- What moves a lock and what does not, what it says of a package, and what it refuses to be talked into.


def versions(fleet: Path) -> dict[str, str]:
    return {package.package: package.version for package in read_lock(fleet).packages}


#: Newer ones of everything, all admitted by the rules.
NEWER: list[Stanza] = [
    *TRIXIE,
    *open_driver("550.200.01", "1"),
    *proprietary_driver("550.200.01", "1"),
    *gds("2.19.7", "1.9.1.3", "12.4.1", "3"),
    *kernel("6.12.96+deb13", "6.12.96-1"),
    package("dkms", "3.3.0-1", architecture="all", depends="kmod"),
]


@pytest.fixture
def moved(debian: Debian) -> Debian:
    """A lock of trixie as it was, and an archive that has newer ones of everything."""
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(NEWER))
    return debian


def test_what_is_locked_stays(moved: Debian, verb: Verb) -> None:
    before = lockfile.beside(moved.fleet).read_bytes()
    assert "To move to newer versions: gdsdeploy lock --upgrade" in verb("lock", moved.fleet).err
    assert lockfile.beside(moved.fleet).read_bytes() == before


@pytest.mark.parametrize(
    ("what", "moves"),
    [
        ("driver", {"driver", "nvidia-open-kernel-dkms", "nvidia-open-kernel-support", "libcuda1", "nvidia-smi",
                    "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-alternative", "firmware-nvidia-gsp"}),
        ("nvidia-fs", {"nvidia-fs-dkms"}),
        ("libcufile", {"libcufile0", "gds-tools"}),
        ("dkms", {"dkms"}),
        ("kernel", {"kernel", "linux-image-6.12.94+deb13-amd64", "linux-image-6.12.96+deb13-amd64",
                    "linux-headers-6.12.94+deb13-amd64", "linux-headers-6.12.96+deb13-amd64",
                    "linux-headers-6.12.94+deb13-common", "linux-headers-6.12.96+deb13-common",
                    "linux-kbuild-6.12.94+deb13", "linux-kbuild-6.12.96+deb13"}),
    ],
)  # fmt: skip
def test_an_upgrade_moves_what_was_named_and_nothing_else(
    what: str, moves: set[str], moved: Debian, verb: Verb
) -> None:
    report = verb("lock", "--json", "--upgrade", moved.fleet, what).json
    assert {change["what"] for change in report["changes"]} == moves


def test_naming_a_package_that_decides_moves_its_part_of_the_stack(moved: Debian) -> None:
    assert run("lock", "--upgrade", moved.fleet, "nvidia-open-kernel-dkms", "gds-tools") == 0
    target = read_lock(moved.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.94+deb13-amd64")
    assert versions(moved.fleet)["libcufile0"] == "1.9.1.3~12.4.1-3"
    assert versions(moved.fleet)["dkms"] == "3.2.2-1~deb13u1"


def test_an_upgrade_without_names_moves_everything(moved: Debian, verb: Verb) -> None:
    said = verb("lock", moved.fleet, "--upgrade")
    target = read_lock(moved.fleet)
    # 550.200.01 is not the build that fails on the newest kernel.
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.107+deb13-amd64")
    assert versions(moved.fleet)["dkms"] == "3.3.0-1"
    assert "  driver 550.163.01 (open) → 550.200.01 (open)\n" in said.out


def test_a_driver_that_would_take_the_kernel_with_it_stays_and_says_so(debian: Debian) -> None:
    """Only the kernel was named; the newest kernel does not go with the locked driver, so the next one is taken."""
    assert run("lock", debian.fleet) == 0
    debian.publish(suites(NEWER))
    assert run("lock", "--upgrade", debian.fleet, "kernel") == 0
    target = read_lock(debian.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.163.01", "6.12.96+deb13-amd64")
    assert ("kernel 6.12.107+deb13-amd64", "driver-550-pci-resize") in {(r.what, r.rule) for r in target.refused}


def test_a_pin_that_changed_moves_what_it_is_about(moved: Debian) -> None:
    moved.write_fleet("os: debian-13, driver: '550.200'")
    target = lock(moved.fleet)
    assert (target.driver.version, target.kernel.release) == ("550.200.01", "6.12.94+deb13-amd64")
    # Why the kernel is not the newest was said when it was locked, and is kept.
    assert "kernel 6.12.107+deb13-amd64" in {r.what for r in target.refused}


def test_what_a_repository_lost_moves_and_going_back_is_said(moved: Debian, verb: Verb) -> None:
    assert run("lock", "--upgrade", moved.fleet, "driver") == 0
    debian = [p for p in NEWER if "550.200.01" not in p["Version"]]
    moved.publish(suites(debian))
    out = verb("lock", moved.fleet)
    assert "profile gds: driver goes back from 550.200.01 (open) to 550.163.01 (open)" in plain(out.err)
    assert "  driver 550.200.01 (open) → 550.163.01 (open) (downgraded)\n" in out.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--upgrade", "{fleet}", "nvidia-smy"), "nvidia-smy is neither driver, kernel"),
        (("{fleet}", "driver"), "only --upgrade takes names of what to move"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, ...], words: str, moved: Debian, verb: Verb) -> None:
    assert words in verb("lock", *(a.format(fleet=moved.fleet) for a in arguments), code=2).words


def test_there_is_nothing_to_upgrade_without_a_lock(debian: Debian, verb: Verb) -> None:
    assert "there is no usable lock at" in verb("lock", "--upgrade", debian.fleet, "driver", code=2).err


# ── replay, and files that are gone ──────────────────────────────────────────────────────────────────────────────


def dated(debian: Debian, ago: timedelta) -> None:
    published = suites(TRIXIE)
    for suite in published:
        suite.date = datetime.now(UTC) - ago
    debian.publish(published)


def test_an_index_older_than_the_locked_one_is_a_replay(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    before = lockfile.beside(debian.fleet).read_bytes()
    dated(debian, timedelta(days=2))
    err = verb("lock", "--upgrade", debian.fleet, error=RepositoryUntrusted).err
    assert "the index of debian trixie is dated" in err
    assert "replays an old state" in err
    assert lockfile.beside(debian.fleet).read_bytes() == before
    reasons = verb("lock", "--check", "--json", debian.fleet, error=RepositoryUntrusted).json["reasons"]
    assert {(r["difference"], r["subject"]) for r in reasons} == {
        ("INDEX_OLDER", "debian trixie"),
        ("INDEX_OLDER", "debian trixie-updates"),
        ("INDEX_OLDER", "debian-security trixie-security"),
    }


def test_an_expired_index_is_a_named_reason(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    dated(debian, timedelta(days=30))
    (reason,) = verb("lock", "--check", "--json", debian.fleet, error=RepositoryUntrusted).json["reasons"]
    assert reason["difference"] == "INDEX_REFUSED"
    assert "was valid until" in reason["found"]


def test_check_asks_for_each_file(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    package = next(p for p in read_lock(debian.fleet).packages if p.package == "libcuda1")
    (debian.archive.root / package.file).unlink()
    (reason,) = verb("lock", "--check", "--json", debian.fleet, error=LockStale).json["reasons"]
    assert (reason["difference"], reason["subject"]) == ("FILE_GONE", "libcuda1")
    assert reason["found"].endswith(package.file)


# ── explain ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_explain_a_kernel(moved: Debian, verb: Verb) -> None:
    out = verb("lock", "--explain", "kernel", moved.fleet).out
    assert "profile gds: linux-image-6.12.94+deb13-amd64 6.12.94-1 (kernel-image, on both)" in out
    assert f"  signed by  {moved.key.fingerprint}, index of 20" in out
    assert "  needed by  linux-headers-6.12.94+deb13-amd64" in out
    assert "  admitted   [debian-driver-kernel-6.16]" in out
    assert "  warned     [nvidia-fs-vm-io]" in out
    newer = [each.splitlines() for each in out.split("  newer      ")[1:]]
    assert [each[0] for each in newer] == [
        "kernel 6.12.107+deb13-amd64", "kernel 6.12.100+deb13-amd64", "kernel 6.12.96+deb13-amd64"
    ]  # fmt: skip
    newest, headless, admitted = (each[1:] for each in newer)
    assert newest[0].startswith("    - [driver-550-pci-resize] Open drivers 550.163.01 and 555.58.02 as packaged")
    assert newest[1] == (
        "    - [lock] it would go with driver 550.200.01 (open), which the lock does not have: upgrade them together"
    )
    assert headless[0].startswith("    - [kernel-headers] The repositories have the image, but no")
    assert admitted == [f"    - nothing forbids it; take it with: gdsdeploy lock --upgrade {moved.fleet} kernel"]


def test_explain_packages_that_follow(moved: Debian, verb: Verb) -> None:
    out = verb("lock", "--explain", "libcuda1", moved.fleet).out
    assert (
        "  newer      libcuda1 550.200.01-1\n    - [driver] it has to be of the driver's own version, 550.163.01" in out
    )
    out = verb("lock", "--explain", "dkms", moved.fleet).out
    assert "  needed by  nvidia-fs-dkms, nvidia-open-kernel-dkms" in out
    assert f"dkms 3.3.0-1\n    - nothing forbids it; take it with: gdsdeploy lock --upgrade {moved.fleet} dkms" in out


def test_explain_says_which_dependency_forbids_a_newer_one(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    broken = package("update-glx", "1.3.0", source="glx-alternatives", depends="nowhere (>= 2)")
    tied = [p | {"Depends": "update-glx"} if p["Package"] == "glx-alternative-nvidia" else p for p in TRIXIE]
    debian.publish(suites([*tied, broken]))
    (profile,) = verb("lock", "--explain", "update-glx", "--json", debian.fleet).json["profiles"]
    assert profile["needed_by"] == ["glx-alternative-nvidia"]
    assert profile["newer"] == [
        {
            "what": "update-glx 1.3.0",
            "forbidden_by": [
                "[dependencies] update-glx 1.3.0 needs nowhere (>= 2), of which the repositories have nothing"
            ],
        }
    ]


def test_explain_says_that_the_driver_is_gone(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    newer = gds("2.19.7", "1.9.1.4", "12.4.2", "1")
    debian.publish(suites([*without(TRIXIE, "nvidia-open-kernel-dkms"), *newer, package("dkms", "3.9-1")]))
    out = verb("lock", "--explain", "driver", debian.fleet).out
    assert "  gone       the repositories no longer have it, but nothing of this name: `lock --check` names" in out
    assert "  newer  " not in out
    out = verb("lock", "--explain", "libcufile", debian.fleet).out
    assert "  newer      libcufile 1.9.1.4\n    - [driver] the repositories have no nvidia-open-kernel-dkms" in out
    out = verb("lock", "--explain", "dkms", debian.fleet).out
    assert "  newer      dkms 3.9-1\n    - [lock] the locked stack is no longer on offer: `lock --check` says" in out
    (profile,) = verb("lock", "--explain", "kernel", "--json", debian.fleet).json["profiles"]
    assert (profile["gone"], all(newer["forbidden_by"] for newer in profile["newer"])) == ("", True)


def test_explain_of_what_is_not_there_offers_what_is_near(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    assert "hint: Try: libcuda1" in verb("lock", "--explain", "libcuda", debian.fleet, error=LockInvalid).err


def test_a_package_without_a_newer_one_says_so(debian: Debian, verb: Verb) -> None:
    assert run("lock", debian.fleet) == 0
    out = verb("lock", "--explain", "nvidia-fs", debian.fleet).out
    assert "  needed by  the profile itself" in out
    assert "  admitted   [nvidia-fs-open-only]" in out
    assert "  newer      nothing on offer" in out


# -- ``gdsdeploy lock --adopt`` from the command line down to a served archive; the hosts' answers are given.


VERSION = "580.95.05"
OLD = "580.82.07-0ubuntu1"


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
    monkeypatch.setattr(transport, "ask", answering.ask)
    return answering


@pytest.fixture
def fleet(ubuntu: Ubuntu) -> Path:
    before = [stanza for stanza in cuda_driver("580.82.07") if stanza["Package"] == "nvidia-driver-580-open"]
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *before, *driver_pieces(VERSION), *driver_pieces("580.82.07")])
    document = yaml.safe_load(ubuntu.fleet.read_text())
    (profile,) = document["profiles"]
    document["profiles"][profile]["driver"] = "580.95"
    document["hosts"] = {"gpu1": profile, "gpu2": profile}
    ubuntu.fleet.write_text(yaml.safe_dump(document))
    return ubuntu.fleet


def test_pieces_of_any_host_are_locked_with_digests_and_stay(fleet: Path, hosts: Hosts, verb: Verb) -> None:
    hosts.have("gpu1", "libnvidia-decode-580", "libnvidia-compute-580")
    hosts.have("gpu2", "libnvidia-decode-580", "libnvidia-encode-580", "libnvidia-strange")
    err = verb("lock", "--adopt", "gpu*", fleet).err
    assert hosts.asked == [(["gpu1", "gpu2"], ["packages", "--json"])]
    assert "Adopted for profile gds: libnvidia-decode-580, libnvidia-encode-580\n" in err
    assert "  libnvidia-encode-580 isn't on gpu1: provision installs it there, too\n" in err
    assert "  not adopted: libnvidia-strange: the profile's repositories don't have it; `gdsdeploy plan` tells" in err
    first = lockfile.beside(fleet).read_bytes()
    assert read_lock(fleet).adopted == ("libnvidia-decode-580", "libnvidia-encode-580")
    versions = {each.package: (each.version, len(each.sha256)) for each in read_lock(fleet).packages}
    assert versions["libnvidia-encode-580"] == (f"{VERSION}-0ubuntu1", 64)
    assert yaml.safe_load(first)["lock_version"] == LOCK_VERSION
    assert "Adopted for profile gds: libnvidia-decode-580" in verb("lock", fleet).err
    assert lockfile.beside(fleet).read_bytes() == first, "a run without hosts keeps what was adopted"


def test_another_adoption_takes_the_place_of_the_first(fleet: Path, hosts: Hosts, verb: Verb) -> None:
    hosts.have("gpu1", "libnvidia-decode-580", "libnvidia-gl-580")
    assert run("lock", "--adopt", "gpu1", fleet) == 0
    hosts.have("gpu1", "libnvidia-gl-580")
    out = verb("lock", "--adopt", "gpu1", fleet)
    assert "  adopted libnvidia-decode-580 (removed)\n" in out.out
    assert "  libnvidia-decode-580 580.95.05-0ubuntu1 (removed)\n" in out.out
    assert read_lock(fleet).adopted == ("libnvidia-gl-580",)
    hosts.have("gpu1")
    report = verb("lock", "--adopt", "gpu1", "--json", fleet).json
    assert report["adopted"] == {"gds": []}
    assert report["left_out"] == []
    assert "adopted" not in yaml.safe_load(lockfile.beside(fleet).read_text())["targets"]["gds"]


def test_what_would_leave_is_told_from_what_stays(fleet: Path, hosts: Hosts, verb: Verb) -> None:
    """The metapackage needs the driver's packages in their versions before, and hosts don't have its DKMS."""
    hosts.have("gpu1", "nvidia-driver-580-open")
    (one,) = verb("lock", "--adopt", "gpu1", "--json", fleet).json["left_out"]
    assert (one["profile"], one["name"], one["leaves"]) == ("gds", "nvidia-driver-580-open", True)
    assert "with `modules: build` it is adopted" in one["reason"]
    assert one["consequence"] == "provision refuses to remove it unless its profile lists it in `removes`"


def test_a_driver_without_a_piece_leaves_its_name_with_a_warning(
    fleet: Path, ubuntu: Ubuntu, hosts: Hosts, verb: Verb
) -> None:
    hosts.have("gpu1", "libnvidia-decode-580")
    assert run("lock", "--adopt", "gpu1", fleet) == 0
    ubuntu.publish(noble_suites(), CUDA_UBUNTU)
    err = verb("lock", fleet).err
    assert "[adopted] libnvidia-decode-580 was adopted and isn't in this lock: the profile's repositories don't" in err
    assert read_lock(fleet).adopted == ("libnvidia-decode-580",), "a later driver may have it again"
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *driver_pieces(VERSION)])
    assert run("lock", fleet) == 0
    assert "libnvidia-decode-580" in {each.package for each in read_lock(fleet).packages}


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
    answer: Any, kind: type[GdsError], words: str, fleet: Path, hosts: Hosts, verb: Verb
) -> None:
    hosts.have("gpu2", "libnvidia-decode-580")
    hosts.answers["gpu1"] = answer
    assert words in verb("lock", "--adopt", "gpu1,gpu2", fleet, error=kind).err
    assert not lockfile.beside(fleet).exists()


def test_a_host_that_the_fleet_does_not_have(fleet: Path, hosts: Hosts) -> None:
    assert run("lock", "--adopt", "gpu9", fleet) == NameUnknown.exit_code


def test_pieces_on_rhel_come_from_the_locked_stream(rhel: Rhel, hosts: Hosts, verb: Verb) -> None:
    """The proprietary metapackage doesn't go with the open driver."""
    rhel.write_fleet("driver: '580', modules: build")
    names = ("nvidia-driver-libs", "nvidia-driver", "nvidia-open", "cuda-drivers", "nvidia-driver-cuda")
    hosts.have("gpu1", *names, os="rhel-9.4")
    for each in hosts.answers["gpu1"]["packages"].values():
        each["version"] = "3:570.172.08-1.el9"
    report = verb("lock", "--adopt", "gpu1", "--json", rhel.fleet).json
    assert report["adopted"] == {"gds": ["nvidia-driver", "nvidia-driver-libs", "nvidia-open"]}
    (one,) = report["left_out"]
    assert one["name"] == "cuda-drivers"
    assert "kmod-nvidia-latest-dkms" in one["reason"]
    packages = {each.package: each.version for each in read_lock(rhel.fleet).packages}
    assert packages["nvidia-driver-libs"] == packages["nvidia-open"] == "3:580.95.05-1.el9"
