"""Keys, an imitated Debian archive and imitated rpm repositories for the tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repos import rpmstack
from tests.repos.archive import Archive, Key, Server, Suite, serve
from tests.repos.cuda import CUDA_UBUNTU, flat, noble_suites
from tests.repos.rpmarchive import RpmArchive, build
from tests.repos.stack import TRIXIE, Stanza, suites, write_pool


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """The key that the tests pin."""
    archive_key = Key.generate(tmp_path_factory.mktemp("gnupg") / "home", "archive")
    yield archive_key
    archive_key.forget()


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """A key that nobody pins."""
    stranger_key = Key.generate(tmp_path_factory.mktemp("gnupg") / "home", "stranger")
    yield stranger_key
    stranger_key.forget()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    # A proxy of the machine is not for loopback.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@dataclass
class Debian:
    """An imitated Debian archive that is being served, and a fleet file for it."""

    archive: Archive
    server: Server
    key: Key
    fleet: Path

    def publish(self, published: Sequence[Suite]) -> None:
        """Replace what the archive offers."""
        for suite in published:
            self.archive.publish(suite, self.key)
            for stanzas in suite.packages.values():
                write_pool(self.archive.root, stanzas)

    def write_fleet(self, profile: str = "{os: debian-13}") -> Path:
        """A fleet of one host whose profile ``gds`` is this YAML."""
        signed = f"uri: '{self.server.uri}', keyring: '{self.key.keyring}', fingerprints: [{self.key.fingerprint}]"
        self.fleet.write_text(
            f"version: 1\n"
            f"repositories:\n  debian: {{{signed}}}\n  debian-security: {{{signed}}}\n"
            f"profiles:\n  gds: {profile}\n"
            f"hosts:\n  gpu1: gds\n"
        )
        return self.fleet


@dataclass
class Ubuntu:
    """Ubuntu's archive and NVIDIA's CUDA repository, imitated and served, and a fleet file for both."""

    archive: Archive
    cuda: Archive
    server: Server
    key: Key
    fleet: Path

    def publish(self, noble: Sequence[Suite], cuda: Sequence[Stanza], *, detached: bool = False) -> None:
        """Replace what both offer; ``detached``: with Release.gpg instead of InRelease."""
        for suite in noble:
            self.archive.publish(suite, self.key)
            for stanzas in suite.packages.values():
                write_pool(self.archive.root, stanzas)
        published = flat(cuda)
        self.cuda.publish(published, self.key, detached=detached)
        for stanza in published.packages[""]:
            write_pool(self.cuda.root, [stanza])

    def write_fleet(self, profile: str = "driver: '580'") -> Path:
        """A fleet of one host on Ubuntu 24.04, NVIDIA's repository first."""
        signed = f"keyring: '{self.key.keyring}', fingerprints: [{self.key.fingerprint}]"
        self.fleet.write_text(
            f"version: 1\n"
            f"repositories:\n"
            f"  cuda: {{uri: '{self.server.uri}/cuda/x86_64', suites: ['/'], {signed}}}\n"
            f"  ubuntu: {{uri: '{self.server.uri}/ubuntu', {signed}}}\n"
            f"  ubuntu-security: {{uri: '{self.server.uri}/ubuntu', {signed}}}\n"
            f"profiles:\n"
            f"  gds: {{os: ubuntu-24.04, repositories: [cuda, ubuntu, ubuntu-security], {profile}}}\n"
            f"hosts:\n  gpu1: gds\n"
        )
        return self.fleet


@pytest.fixture
def ubuntu(tmp_path: Path, key: Key) -> Iterator[Ubuntu]:
    """Noble and the CUDA repository as tests.repos.cuda has them."""
    root = tmp_path / "www"
    archive, cuda = Archive(root / "ubuntu"), Archive(root / "cuda" / "x86_64")
    with serve(root) as server:
        site = Ubuntu(archive, cuda, server, key, tmp_path / "fleet.yml")
        site.publish(noble_suites(), CUDA_UBUNTU)
        site.write_fleet()
        yield site


@pytest.fixture
def debian(tmp_path: Path, key: Key) -> Iterator[Debian]:
    """Trixie as tests.repos.stack has it, and a fleet file that asks for it."""
    archive = Archive(tmp_path / "www")
    with serve(archive.root) as server:
        site = Debian(archive, server, key, tmp_path / "fleet.yml")
        site.publish(suites(TRIXIE))
        site.write_fleet()
        yield site


@pytest.fixture(scope="session")
def rpm_pool(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    """Both repositories of tests.repos.rpmstack, built and published once."""
    root = tmp_path_factory.mktemp("rpms")
    RpmArchive(build(rpmstack.CUDA, root / "cuda"), streams=rpmstack.STREAMS).publish(key)
    RpmArchive(build(rpmstack.BASEOS, root / "baseos")).publish(key)
    return root


@dataclass
class Rhel:
    """Imitated repositories of a RHEL host that are being served, and a fleet file for them."""

    cuda: RpmArchive
    baseos: RpmArchive
    server: Server
    key: Key
    fleet: Path

    def write_fleet(self, profile: str = "driver: '580'", os: str = "rhel-9") -> Path:
        """A fleet of one host whose profile ``gds`` has these keys beside its system and repositories."""
        signed = f"keyring: '{self.key.keyring}', fingerprints: [{self.key.fingerprint}]"
        self.fleet.write_text(
            f"version: 1\n"
            f"repositories:\n"
            f"  baseos: {{kind: rpm, uri: '{self.server.uri}/baseos', {signed}}}\n"
            f"  cuda: {{kind: rpm, uri: '{self.server.uri}/cuda', {signed}}}\n"
            f"profiles:\n  gds: {{os: {os}, repositories: [baseos, cuda], {profile}}}\n"
            f"hosts:\n  gpu1: gds\n"
        )
        return self.fleet


@contextmanager
def serve_rhel(folder: Path, pool: Path, key: Key) -> Iterator[Rhel]:
    """The packages of ``pool``, served as repositories that ``key`` signs, and a fleet file for them in ``folder``."""
    root = folder / "www"
    shutil.copytree(pool, root)
    with serve(root) as server:
        cuda = RpmArchive(root / "cuda", streams=rpmstack.STREAMS)
        site = Rhel(cuda, RpmArchive(root / "baseos"), server, key, folder / "fleet.yml")
        site.write_fleet()
        yield site


@pytest.fixture
def rhel(tmp_path: Path, rpm_pool: Path, key: Key) -> Iterator[Rhel]:
    """The repositories as tests.repos.rpmstack has them, and a fleet file that asks for branch 580."""
    with serve_rhel(tmp_path, rpm_pool, key) as site:
        yield site
