"""Keys and an imitated Debian archive for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repos.archive import Archive, Key, Server, Suite, serve
from tests.repos.stack import TRIXIE, suites, write_pool


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """The key that the tests pin."""
    made = Key.generate(tmp_path_factory.mktemp("gnupg") / "home", "archive")
    yield made
    made.forget()


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """A key that nobody pins."""
    made = Key.generate(tmp_path_factory.mktemp("gnupg") / "home", "stranger")
    yield made
    made.forget()


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


@pytest.fixture
def debian(tmp_path: Path, key: Key) -> Iterator[Debian]:
    """Trixie as tests.repos.stack has it, and a fleet file that asks for it."""
    archive = Archive(tmp_path / "www")
    with serve(archive.root) as server:
        made = Debian(archive, server, key, tmp_path / "fleet.yml")
        made.publish(suites(TRIXIE))
        made.write_fleet()
        yield made
