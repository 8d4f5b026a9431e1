"""Keys, an imitated Debian archive and imitated rpm repositories for the tests of this folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import GdsError
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from tests.commandline import plain, run
from tests.repos import rpmstack
from tests.repos.archive import Archive, Key, Server, Suite, serve
from tests.repos.cuda import CUDA_UBUNTU, flat, noble_suites
from tests.repos.rpmarchive import RpmArchive, build
from tests.repos.stack import TRIXIE, Stanza, suites, write_pool


def _key(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Key]:
    made = Key.generate(tmp_path_factory.mktemp("gnupg") / "home", name)
    yield made
    made.forget()


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """The key that the tests pin."""
    yield from _key(tmp_path_factory, "archive")


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """A key that nobody pins."""
    yield from _key(tmp_path_factory, "stranger")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    # A proxy of the machine is not for loopback.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def read_lock(fleet: Path) -> Target:
    """The target ``gds`` of the lock beside a fleet file."""
    return lockfile.read(lockfile.beside(fleet)).targets["gds"]


def lock(fleet: Path, *options: str) -> Target:
    """The same after ``gdsdeploy lock``, which succeeds."""
    assert run("lock", *options, fleet) == 0
    return read_lock(fleet)


@dataclass(frozen=True)
class Said:
    """What a verb said, without colours."""

    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard error, whatever its lines."""
        return " ".join(self.err.split())

    @property
    def json(self) -> Any:
        """Standard output."""
        return json.loads(self.out)


#: Runs a verb with its arguments; ``error``: how it ends, ``code``: its status.
Verb = Callable[..., Said]


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    def ask(*words: object, error: type[GdsError] | None = None, code: int = 0) -> Said:
        capsys.readouterr()
        assert run(*words) == (error.exit_code if error else code)
        said = capsys.readouterr()
        return Said(plain(said.out), plain(said.err))

    return ask


def signed_by(key: Key) -> str:
    """Keys of a repository in a fleet file."""
    return f"keyring: '{key.keyring}', fingerprints: [{key.fingerprint}]"


@dataclass
class Site:
    """Repositories that are being served, and a fleet file for them."""

    server: Server
    key: Key
    fleet: Path

    def write(self, repositories: Mapping[str, str], profile: str, *, listed: bool = True) -> Path:
        """A fleet of one host; YAML of its repositories, which its profile ``gds`` lists, and of that profile."""
        entries = "".join(f"  {name}: {{{entry}}}\n" for name, entry in repositories.items())
        profile += f", repositories: [{', '.join(repositories)}]" if listed else ""
        self.fleet.write_text(
            f"version: 1\nrepositories:\n{entries}profiles:\n  gds: {{{profile}}}\nhosts:\n  gpu1: gds\n"
        )
        return self.fleet


def publish_all(archive: Archive, published: Sequence[Suite], key: Key, *, detached: bool = False) -> None:
    """Publish suites with their packages."""
    for suite in published:
        archive.publish(suite, key, detached=detached)
        for stanzas in suite.packages.values():
            write_pool(archive.root, stanzas)


@dataclass
class Debian(Site):
    """An imitated Debian archive."""

    archive: Archive

    def publish(self, published: Sequence[Suite]) -> None:
        """Replace what the archive offers."""
        publish_all(self.archive, published, self.key)

    def write_fleet(self, profile: str = "os: debian-13") -> Path:
        """A fleet of one host whose profile ``gds`` has these keys."""
        entry = f"uri: '{self.server.uri}', {signed_by(self.key)}"
        return self.write(dict.fromkeys(("debian", "debian-security"), entry), profile, listed=False)


@dataclass
class Ubuntu(Site):
    """Ubuntu's archive and NVIDIA's CUDA repository, imitated."""

    archive: Archive
    cuda: Archive

    def publish(self, noble: Sequence[Suite], cuda: Sequence[Stanza], *, detached: bool = False) -> None:
        """Replace what both offer; ``detached``: with Release.gpg instead of InRelease."""
        publish_all(self.archive, noble, self.key)
        publish_all(self.cuda, [flat(cuda)], self.key, detached=detached)

    @property
    def own(self) -> dict[str, str]:
        """Repositories of the distribution."""
        return dict.fromkeys(("ubuntu", "ubuntu-security"), f"uri: '{self.server.uri}/ubuntu', {signed_by(self.key)}")

    def write_fleet(self, profile: str = "driver: '580'") -> Path:
        """A fleet of one host on Ubuntu 24.04, NVIDIA's repository first."""
        cuda = f"uri: '{self.server.uri}/cuda/x86_64', suites: ['/'], {signed_by(self.key)}"
        return self.write({"cuda": cuda, **self.own}, f"os: ubuntu-24.04, {profile}")


@pytest.fixture
def ubuntu(tmp_path: Path, key: Key) -> Iterator[Ubuntu]:
    """Noble and the CUDA repository as tests.repos.cuda has them."""
    root = tmp_path / "www"
    archive, cuda = Archive(root / "ubuntu"), Archive(root / "cuda" / "x86_64")
    with serve(root) as server:
        site = Ubuntu(server, key, tmp_path / "fleet.yml", archive, cuda)
        site.publish(noble_suites(), CUDA_UBUNTU)
        site.write_fleet()
        yield site


@pytest.fixture
def debian(tmp_path: Path, key: Key) -> Iterator[Debian]:
    """Trixie as tests.repos.stack has it, and a fleet file that asks for it."""
    archive = Archive(tmp_path / "www")
    with serve(archive.root) as server:
        site = Debian(server, key, tmp_path / "fleet.yml", archive)
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
class Rhel(Site):
    """Imitated repositories of a RHEL host."""

    cuda: RpmArchive
    baseos: RpmArchive

    def entry(self, name: str) -> str:
        """One of the two in a fleet file."""
        return f"kind: rpm, uri: '{self.server.uri}/{name}', {signed_by(self.key)}"

    def write_fleet(self, profile: str = "driver: '580'", os: str = "rhel-9", **others: str) -> Path:
        """A fleet of one host whose profile ``gds`` has these keys; others: entries of further repositories."""
        own = {name: self.entry(name) for name in ("baseos", "cuda")}
        return self.write({**own, **others}, f"os: {os}, {profile}")


@contextmanager
def serve_rhel(folder: Path, pool: Path, key: Key) -> Iterator[Rhel]:
    """The packages of ``pool``, served as repositories that ``key`` signs, and a fleet file for them in ``folder``."""
    root = folder / "www"
    shutil.copytree(pool, root)
    with serve(root) as server:
        cuda = RpmArchive(root / "cuda", streams=rpmstack.STREAMS)
        site = Rhel(server, key, folder / "fleet.yml", cuda, RpmArchive(root / "baseos"))
        site.write_fleet()
        yield site


@pytest.fixture
def rhel(tmp_path: Path, rpm_pool: Path, key: Key) -> Iterator[Rhel]:
    """The repositories as tests.repos.rpmstack has them, and a fleet file that asks for branch 580."""
    with serve_rhel(tmp_path, rpm_pool, key) as site:
        yield site
