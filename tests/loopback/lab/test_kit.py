"""Packages and repositories of a kit, read by what reads the vendors' own: gdsdeploy and apt."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.repo import apt
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.repository import Repository
from gdslab import guest
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.kit import deb, kits, sign
from gdslab.kit.content import Content, Original
from gdslab.kit.deb import Deb
from tests.repos.archive import serve

SUITE = "bookworm-backports"
TOOL = Deb(
    "tool",
    "1:2.0-1",
    fields={"Depends": "libtool (= 2.0-1)", "Source": "tools"},
    texts={"/etc/tool.conf": "a=1\n", "/usr/bin/tool": "#!/bin/sh\n"},
    links={"/usr/bin/other": "tool"},
    scripts={"postinst": "#!/bin/sh\ntrue\n"},
    modes={"/usr/bin/tool": 0o4755},
    conffiles=["/etc/tool.conf"],
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite, a flat repository and the public key of both."""
    root = tmp_path_factory.mktemp("kit")
    with sign.signer("Test of the lab") as signer:
        suite = deb.Repository(root / "suite", "Ubuntu", signer, frozenset({"libtool"}))
        library = Deb("libtool", "2.0-1", fields={"Priority": "extra"})
        files = deb.build([TOOL, library], suite.root / "pool/main", root / "work")
        empty = dict.fromkeys(("contrib", "non-free", "non-free-firmware"), ())
        suite.publish_suite(SUITE, "bookworm", {**empty, "main": files})
        flat = deb.Repository(root / "flat", "NVIDIA", signer)
        flat.publish_flat(deb.build([Deb("nvidia-fs", "2.26.6-1")], flat.root, root / "work"))
        signer.export(root / "key.gpg")
        (root / "fingerprint").write_text(signer.fingerprint)
        home = signer.home
    assert not home.exists(), "the secret key is deleted"
    return root


@pytest.fixture
def archive(published: Path) -> Iterator[Archive]:
    with serve(published) as server:
        yield Archive(f"{server.uri}/suite", None, published / "key.gpg", {}, {}, None)


def repository(published: Path, uri: str, suite: str) -> Repository:
    key = (published / "fingerprint").read_text()
    components = () if suite == "/" else ("main", "contrib")
    return Repository("kit", uri, published / "key.gpg", (key,), "/k.gpg", (suite,), components)


def test_gdsdeploy_reads_both_layouts(published: Path, archive: Archive, tmp_path: Path) -> None:
    flat = archive.uri.removesuffix("suite") + "flat"
    repositories = [repository(published, archive.uri, SUITE), repository(published, flat, "/")]
    with Fetcher(tmp_path) as fetcher:
        universe, indices = apt.read(fetcher, repositories, "amd64")
        assert universe.names() == {"tool", "libtool", "nvidia-fs"}
        (tool,) = universe.named("tool")
        assert (tool.version, tool.source, tool.filename) == ("1:2.0-1", "tools", "pool/main/tool_2.0-1_amd64.deb")
        assert [index.suite for index in indices] == [SUITE, "/"]
        release = published / "suite/dists" / SUITE / "InRelease"
        text = release.read_text()
        try:
            release.write_text(text.replace("Origin: Ubuntu", "Origin: Other"))
            with pytest.raises(RepositoryUntrusted):
                apt.read(fetcher, repositories, "amd64")
        finally:
            release.write_text(text)


def test_a_package_has_what_it_should(published: Path) -> None:
    file = str(published / "suite/pool/main/tool_2.0-1_amd64.deb")
    listing = subprocess.run(["dpkg-deb", "--contents", file], check=True, capture_output=True, text=True).stdout
    entries = {line.split()[5]: (line.split()[0], line.split()[1]) for line in listing.splitlines()}
    assert entries["./usr/bin/tool"] == ("-rwsr-xr-x", "root/root")
    assert entries["./usr/bin/other"][0] == "lrwxrwxrwx"
    assert entries["./etc/"] == ("drwxr-xr-x", "root/root")
    lists = (published / "suite/dists" / SUITE / "main/binary-amd64/Packages").read_text()
    assert "Package: libtool\n" in lists
    assert "Priority: required\n" in lists


def test_content_comes_through_apt(archive: Archive, tmp_path: Path) -> None:
    content = Content(tmp_path, archive, tmp_path / "work")
    unpacked = content.unpack(Original("tool", SUITE, "1:2.0"))
    assert (unpacked.files / "etc/tool.conf").read_text() == "a=1\n"
    assert "true" in (unpacked.control / "postinst").read_text()
    # Again with no archive at all: the package is cached.
    other = Content(tmp_path, Archive("http://127.0.0.1:1", None, archive.keyring, {}, {}, None), tmp_path / "other")
    assert other.unpack(Original("tool", SUITE, "1:2.0")).files.is_dir()
    assert [file.name for file in content.closure(["libtool"], SUITE)] == ["libtool_2.0-1_amd64.deb"]
    package = deb.from_debian(unpacked, "tool", "3-1", Source="renamed")
    assert (package.conffiles, package.fields["Source"], package.architecture) == (
        ["/etc/tool.conf"],
        "renamed",
        "amd64",
    )


@pytest.mark.parametrize(("package", "version"), [("tool", "1:9"), ("unheard-of", "1")])
def test_what_debian_no_longer_has_is_named(archive: Archive, tmp_path: Path, package: str, version: str) -> None:
    content = Content(tmp_path, archive, tmp_path / "work")
    with pytest.raises(LabUnavailable, match=f"no {package} {version}\\* in {SUITE}"):
        content.unpack(Original(package, SUITE, version))
    assert not list(tmp_path.glob(f"content-{package}*"))


def test_an_archive_with_another_key_is_refused(archive: Archive, tmp_path: Path) -> None:
    with sign.signer("Somebody else") as signer:
        signer.export(tmp_path / "other.gpg")
    content = Content(tmp_path, Archive(archive.uri, None, tmp_path / "other.gpg", {}, {}, None), tmp_path / "work")
    with pytest.raises(LabUnavailable, match="tool"):
        content.unpack(Original("tool", SUITE, "1:2.0"))


def test_a_change_of_any_file_makes_other_kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of OFED are in the kits like the programs that make them."""
    archive = Archive("http://mirror.example", None, tmp_path, {}, {}, None)
    shutil.copytree(guest.data("kit"), tmp_path / "kit")
    monkeypatch.setattr(guest, "data", lambda name: tmp_path / name)
    before = kits._digest(archive)
    (tmp_path / "kit/ofed/ib_uverbs.c").write_text("changed")
    assert kits._digest(archive) != before
