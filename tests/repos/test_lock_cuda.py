"""``gdsdeploy lock`` against Ubuntu's archive and NVIDIA's flat CUDA repository, built, signed and served."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gdsdeploy.errors import LockInvalid, LockStale, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdsdeploy.repo.fetch import Fetcher, address
from tests.commandline import plain, run
from tests.repos import dkmspackages
from tests.repos.archive import Key
from tests.repos.conftest import Ubuntu
from tests.repos.cuda import CUDA_UBUNTU, NOBLE, cuda_nvidia_fs, noble_suites
from tests.repos.stack import package


def locked(fleet: Path) -> Target:
    return lockfile.read(lockfile.beside(fleet)).targets["gds"]


@pytest.mark.parametrize("detached", [False, True])
def test_ubuntu_with_nvidias_repository(ubuntu: Ubuntu, detached: bool) -> None:
    ubuntu.publish(noble_suites(), CUDA_UBUNTU, detached=detached)
    ubuntu.write_fleet("driver: '580', companions: [fabricmanager, persistenced], cuda: [cuda-cudart-13-0]")
    assert run("lock", ubuntu.fleet) == 0
    target = locked(ubuntu.fleet)
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
    assert run("lock", ubuntu.fleet) == 0
    target = locked(ubuntu.fleet)
    base = {(i.repository, i.suite): i.uri for i in target.indices}
    with Fetcher() as fetcher:
        for each in target.packages:
            uri = address(base[each.repository, each.suite], each.file)
            assert fetcher.file(uri, sha256=each.sha256, size=each.size).is_file()


def test_a_floating_nvidia_fs_stays(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.publish(noble_suites(), [*CUDA_UBUNTU, *cuda_nvidia_fs("2.30.1")])
    assert run("lock", ubuntu.fleet) == 0
    assert {p.version for p in locked(ubuntu.fleet).packages if p.package == "nvidia-fs-dkms"} == {"2.28.4-1"}
    capsys.readouterr()
    assert run("lock", "--upgrade", ubuntu.fleet, "nvidia-fs") == 0
    assert capsys.readouterr().out.startswith(
        "profile gds:\n  nvidia-fs 2.28.4 → 2.30.1\n  nvidia-fs-dkms 2.28.4-1 → 2.30.1-1 (upgraded)\nprofile "
    )


def test_an_older_driver_for_a_companions_sake_is_said(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    ubuntu.write_fleet("driver: '580', companions: [imex]")
    assert run("lock", ubuntu.fleet) == 0
    (line,) = [each for each in plain(capsys.readouterr().err).splitlines() if each.startswith("Passed over")]
    assert line.startswith("Passed over for profile gds: ")
    assert "driver 580.95.05 (open) [companion]" in line
    assert run("lock", "--explain", "driver", ubuntu.fleet) == 0
    out = capsys.readouterr().out
    assert "  newer      driver 590.44.01 (open)\n    - [pin] the pin driver: '580' does not admit it" in out
    assert "  newer      driver 580.95.05 (open)\n    - [companion] It needs imex of its own version" in out


def test_asking_for_one_more_companion_does_not_let_the_driver_move(ubuntu: Ubuntu) -> None:
    older = [p for p in CUDA_UBUNTU if "580.95.05" not in p["Version"]]
    ubuntu.publish(noble_suites([p for p in NOBLE if "580.95.05" not in p["Version"]]), older)
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.publish(noble_suites(), CUDA_UBUNTU)
    ubuntu.write_fleet("driver: '580', companions: [persistenced]")
    assert run("lock", ubuntu.fleet) == 0
    target = locked(ubuntu.fleet)
    assert target.driver.version == "580.82.07"
    assert {p.version for p in target.packages if p.package == "nvidia-persistenced"} == {"580.82.07-0ubuntu1"}


def test_another_order_of_repositories_is_another_wish(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", ubuntu.fleet) == 0
    swapped = ubuntu.fleet.read_text().replace("[cuda, ubuntu, ubuntu-security]", "[ubuntu, ubuntu-security, cuda]")
    ubuntu.fleet.write_text(swapped)
    assert run("lock", "--check", ubuntu.fleet) == LockStale.exit_code
    assert "pin repositories: the fleet file says ubuntu, ubuntu-security, cuda" in plain(capsys.readouterr().err)
    assert run("lock", ubuntu.fleet) == 0
    (driver,) = [p for p in locked(ubuntu.fleet).packages if p.package == "nvidia-dkms-580-open"]
    assert (driver.repository, driver.version) == ("ubuntu", "580.95.05-0ubuntu0.24.04.2")


def test_what_the_fleet_asks_for_besides_makes_a_lock_stale(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", ubuntu.fleet) == 0
    ubuntu.write_fleet("driver: '580', gpu: hopper, companions: [persistenced]")
    assert run("lock", "--check", ubuntu.fleet) == LockStale.exit_code
    err = plain(capsys.readouterr().err)
    assert "pin companions: the fleet file says persistenced, the lock has nothing" in err
    assert "pin gpu: the fleet file says hopper, the lock has nothing" in err


def apt(root: Path, *arguments: str) -> str:
    options = {
        "Dir": root, "Dir::Etc": root / "etc", "Dir::State": root / "state", "Dir::Cache": root / "cache",
        "Dir::State::status": root / "status", "APT::Architecture": "amd64", "APT::Architectures": "amd64",
        "APT::Sandbox::User": "", "Acquire::Languages": "none", "APT::Install-Recommends": "false",
        "Acquire::http::Proxy": "DIRECT",
    }  # fmt: skip
    argv = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}")), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_apt_itself_reads_these_repositories_and_would_install_exactly_the_lock(ubuntu: Ubuntu, tmp_path: Path) -> None:
    """What the tests serve is a repository to the real apt too, and it has the same answer for host and builder."""
    ubuntu.write_fleet("driver: '580', companions: [fabricmanager], cuda: [cuda-toolkit-13-0]")
    assert run("lock", ubuntu.fleet) == 0
    target, root = locked(ubuntu.fleet), tmp_path / "root"
    for folder in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial",
                   "cache/archives/partial"):  # fmt: skip
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    lines = [f"deb [signed-by={ubuntu.key.keyring}] {i.uri} {i.suite} {' '.join(i.components)}" for i in target.indices]
    (root / "etc" / "sources.list").write_text("\n".join(lines) + "\n")
    apt(root, "update")
    for where in ("host", "build"):
        expected = {p.package: p.version for p in target.packages if p.needed_by in (where, "both")}
        plan = apt(root, "--simulate", "install", *(f"{name}={version}" for name, version in expected.items()))
        installed = dict(re.findall(r"^Inst (\S+) \((\S+) ", plan, re.MULTILINE))
        assert {name: installed.get(name) for name in expected} == expected
        others = installed.keys() - expected.keys()
        assert not [name for name in others if re.search(r"nvidia|cufile|cuda|gds|^linux-(?!base)", name)]


# ── tampering: one byte changed in each link of the chain ────────────────────────────────────────────────────────


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    where = len(data) // 2 if at < 0 else at
    data[where] ^= 0x01
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("detached", [False, True])
def test_a_byte_of_the_index(ubuntu: Ubuntu, detached: bool, capsys: pytest.CaptureFixture[str]) -> None:
    ubuntu.publish(noble_suites(), CUDA_UBUNTU, detached=detached)
    path = ubuntu.cuda.root / ("Release" if detached else "InRelease")
    flip(path, path.read_bytes().index(b"Label: NVIDIA") + 8)
    assert run("lock", ubuntu.fleet) == RepositoryUntrusted.exit_code
    err = plain(capsys.readouterr().err)
    assert f"cuda/x86_64/{path.name}: the signature does not hold" in err
    assert not lockfile.beside(ubuntu.fleet).exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_byte_of_the_package_list(ubuntu: Ubuntu, compressed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    listed, other = ("Packages.gz", "Packages") if compressed else ("Packages", "Packages.gz")
    (ubuntu.cuda.root / other).unlink()
    flip(ubuntu.cuda.root / listed)
    assert run("lock", ubuntu.fleet) == RepositoryUntrusted.exit_code
    assert f"cuda/x86_64/{listed}: this is not the file that the signed index names" in plain(capsys.readouterr().err)


def test_a_byte_of_a_package(ubuntu: Ubuntu) -> None:
    assert run("lock", ubuntu.fleet) == 0
    target = locked(ubuntu.fleet)
    each = next(p for p in target.packages if p.package == "libnvidia-compute-580")
    flip(ubuntu.cuda.root / each.file)
    uri = f"{ubuntu.server.uri}/cuda/x86_64/{each.file}"
    with Fetcher() as fetcher, pytest.raises(RepositoryUntrusted, match=r"libnvidia-compute-580.*\.deb: this is not"):
        fetcher.file(uri, sha256=each.sha256, size=each.size)


def test_a_source_package_that_cannot_be_read_ends_the_lock(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = dkmspackages.remember(b"!<arch>\n" + b"damaged" * 20)
    digest = {"SHA256": hashlib.sha256(damaged).hexdigest(), "Size": str(len(damaged))}
    cuda = [p if p["Package"] != "nvidia-fs-dkms" else {**p, **digest} for p in CUDA_UBUNTU]
    ubuntu.publish(noble_suites(), cuda)
    assert run("lock", ubuntu.fleet) == RepositoryUnusable.exit_code
    assert "nvidia-fs-dkms 2.28.4-1 (cuda): its source tree can't be told: it is damaged" in capsys.readouterr().err
    assert not ubuntu.fleet.with_name("gdsdeploy.lock").exists()


def test_a_second_lock_reads_no_package_again(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", ubuntu.fleet) == 0
    assert "Reading nvidia-kernel-source-580-open" in capsys.readouterr().err
    ubuntu.server.log.clear()
    assert run("lock", ubuntu.fleet) == 0
    assert "Reading nvidia-" not in capsys.readouterr().err
    assert not [line for line in ubuntu.server.log if ".deb" in line]


def digits(lock: bytes) -> Mapping[str, int]:
    """Where a character of each kind of value in a lock begins."""
    text = lock.decode()
    matches = {key: re.search(pattern, text) for key, pattern in {
        "version": r"version: '?580\.(\d)", "sha256": r"sha256: '?[0-9a-f]*?(\d)", "size": r"size: (\d)",
        "fingerprint": r"signed_by: '?[0-9A-F]*?(\d)", "date": r"date: '?20(\d)",
        "digest": r"digest: sha256:[0-9a-f]*?(\d)",
    }.items()}  # fmt: skip
    return {key: match.start(1) for key, match in matches.items() if match}


@pytest.mark.parametrize("what", ["version", "sha256", "size", "fingerprint", "date", "digest"])
def test_a_digit_of_the_lock(ubuntu: Ubuntu, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", ubuntu.fleet) == 0
    path = lockfile.beside(ubuntu.fleet)
    flip(path, digits(path.read_bytes())[what])
    yaml.safe_load(path.read_text())  # still a lock to look at
    assert run("lock", "--check", ubuntu.fleet) == LockInvalid.exit_code
    assert f"{path}: the lock was edited by hand" in plain(capsys.readouterr().err)


def test_a_key_that_is_not_pinned(ubuntu: Ubuntu, other_key: Key, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ubuntu.cuda.root / "InRelease").read_bytes()
    body = text.split(b"\n\n", 1)[1].split(b"-----BEGIN PGP SIGNATURE")[0]
    (ubuntu.cuda.root / "InRelease").write_bytes(other_key.clearsign(body))
    assert run("lock", ubuntu.fleet) == RepositoryUntrusted.exit_code
    assert "cuda/x86_64/InRelease: the signature does not hold" in plain(capsys.readouterr().err)


def test_a_newer_list_that_the_index_does_not_name(ubuntu: Ubuntu, capsys: pytest.CaptureFixture[str]) -> None:
    """A list with a newer driver under the old signature."""
    added = [*CUDA_UBUNTU, package("nvidia-dkms-580-open", "580.999.01-0ubuntu1")]
    text = "\n".join("".join(f"{k}: {v}\n" for k, v in p.items()) for p in added).encode()
    (ubuntu.cuda.root / "Packages.gz").write_bytes(gzip.compress(text))
    assert run("lock", ubuntu.fleet) == RepositoryUntrusted.exit_code
    assert "Packages.gz" in plain(capsys.readouterr().err)
