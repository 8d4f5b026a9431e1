"""Debian's real archive, at the address that this machine's own apt uses."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile, resolve_fleet
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.repo.fetch import Fetcher

pytestmark = pytest.mark.archive


RELEASES = ("debian-13", "debian-12")


@pytest.fixture(scope="session")
def fetcher() -> Iterator[Fetcher]:
    """With the user's own cache: the lists are large, and their content is checked at every use."""
    with Fetcher() as client:
        yield client


def fleet(folder: Path, os: str) -> Fleet:
    """With a kernel of Debian 12 for Debian 13, whose driver compiles on none of its own."""
    suites = "[trixie, trixie-updates, bookworm-backports]"
    further = f"repositories:\n  debian: {{suites: {suites}}}\n" if os == "debian-13" else ""
    (folder / "fleet.yml").write_text(f"version: 1\n{further}profiles:\n  {os}: {{os: {os}}}\nhosts:\n  gpu1: {os}\n")
    return load_fleet(folder / "fleet.yml")


@pytest.fixture(scope="session")
def lock(tmp_path_factory: pytest.TempPathFactory, fetcher: Fetcher) -> Lock:
    """Both releases resolved, written and read again."""
    folder = tmp_path_factory.mktemp("archive")
    targets = {os: resolve_fleet.resolve_fleet(fleet(folder, os), fetcher).lock.targets[os] for os in RELEASES}
    lockfile.write(folder / "gdsdeploy.lock", lockfile.build(targets))
    return lockfile.read(folder / "gdsdeploy.lock")


#: Releases whose archive is frozen but for updates: upstream versions as measured, and the kernel series.
@pytest.mark.parametrize(
    ("os", "driver", "series", "nvidia_fs", "libcufile"),
    [("debian-13", "550.", "6.12.", "2.19.7", "1.9.1.3"), ("debian-12", "535.", "6.1.0-", "2.13.5", "1.4.0.31")],
)
def test_the_stack_of_a_release_is_found(
    os: str, driver: str, series: str, nvidia_fs: str, libcufile: str, lock: Lock
) -> None:
    target = lock.targets[os]
    assert target.driver.version.startswith(driver)
    assert target.kernel.release.startswith(series)
    assert target.kernel.release.endswith("-amd64")
    assert target.nvidia_fs is not None
    assert (target.nvidia_fs.version, target.libcufile.version) == (nvidia_fs, libcufile)
    packages = {package.package: package for package in target.packages}
    image, headers = (
        packages[f"linux-image-{target.kernel.release}"],
        packages[f"linux-headers-{target.kernel.release}"],
    )
    assert image.version == headers.version == target.kernel.version
    for name in ("nvidia-open-kernel-dkms", "libcuda1", "firmware-nvidia-gsp", "nvidia-alternative"):
        assert packages[name].version.startswith(target.driver.version + "-")
    assert "nvidia-kernel-dkms" not in packages
    assert not {"libc6", "linux-base", "gcc-14", "gcc-12"} & packages.keys()
    assert all(index.date for index in target.indices)


@pytest.mark.parametrize("os", RELEASES)
def test_kernels_that_were_passed_over_have_their_reason(os: str, lock: Lock) -> None:
    """Whatever kernels the archive holds today, those above the chosen one are accounted for."""
    target = lock.targets[os]
    assert all(r.what.startswith("kernel ") and len(r.words) > 20 for r in target.refused)
    assert target.kernel.release not in {r.what.removeprefix("kernel ") for r in target.refused}


@pytest.mark.parametrize("os", RELEASES)
def test_the_lock_holds_against_the_archive_that_it_came_from(
    os: str, lock: Lock, fetcher: Fetcher, tmp_path: Path
) -> None:
    assert resolve_fleet.check(fleet(tmp_path, os), lockfile.build({os: lock.targets[os]}), fetcher) == []


@pytest.mark.parametrize("os", RELEASES)
def test_nvidia_fss_source_tree_is_where_the_package_has_it(os: str, lock: Lock, fetcher: Fetcher) -> None:
    target = lock.targets[os]
    assert target.nvidia_fs is not None
    (package,) = [p for p in target.packages if p.package == "nvidia-fs-dkms"]
    uri = next(i.uri for i in target.indices if (i.repository, i.suite) == (package.repository, package.suite))
    deb = fetcher.file(f"{uri}/{package.file}", sha256=package.sha256, size=package.size)
    fields = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(fields)) as tree:
        conf = tree.extractfile(f".{target.nvidia_fs.source_tree}/dkms.conf")
        assert conf is not None
        text = conf.read().decode()
    assert f'PACKAGE_NAME="{target.nvidia_fs.dkms_name}"' in text
    version = target.nvidia_fs.source_tree.rsplit("-", 1)[-1]
    assert f'PACKAGE_VERSION="{version}"' in text


def apt(root: Path, *arguments: str) -> str:
    """Run apt-get on a root folder that has nothing installed, and return what it says."""
    options = {
        "Dir": root, "Dir::Etc": root / "etc", "Dir::State": root / "state", "Dir::Cache": root / "cache",
        "Dir::State::status": root / "status", "APT::Architecture": "amd64", "APT::Architectures": "amd64",
        "APT::Sandbox::User": "", "Acquire::Languages": "none", "APT::Install-Recommends": "false",
    }  # fmt: skip
    argv = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}")), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("os", RELEASES)
@pytest.mark.parametrize("where", ["host", "build"])
def test_apt_itself_would_install_exactly_the_lock(os: str, where: str, lock: Lock, apt_root: dict[str, Path]) -> None:
    """Held against the real apt, its own reading of the same indices and its own solver."""
    target = lock.targets[os]
    expected = {p.package: p.version for p in target.packages if p.needed_by in (where, "both")}
    plan = apt(apt_root[os], "--simulate", "install", *(f"{name}={version}" for name, version in expected.items()))
    installed = dict(re.findall(r"^Inst (\S+) \((\S+) ", plan, re.MULTILINE))
    assert {name: installed.get(name) for name in expected} == expected
    # What else comes in is not of the stack; but on a builder apt may take the kernel that headers only suggest.
    others = {
        name
        for name in installed.keys() - expected.keys()
        if re.search(r"nvidia|cufile|cuda|gds|^linux-(?!base)", name)
    }
    assert others <= {"linux-libc-dev"}


@pytest.fixture(scope="session")
def apt_root(lock: Lock, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each release an empty machine whose apt knows the lock's repositories."""
    roots: dict[str, Path] = {}
    for os, target in lock.targets.items():
        root = roots[os] = tmp_path_factory.mktemp(os)
        for folder in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial",
                       "cache/archives/partial"):  # fmt: skip
            (root / folder).mkdir(parents=True)
        (root / "status").touch()
        sources = [
            f"deb [signed-by={i.host_keyring}] {i.uri} {i.suite} {' '.join(i.components)}" for i in target.indices
        ]
        (root / "etc" / "sources.list").write_text("\n".join(sources) + "\n")
        apt(root, "update")
    return roots
