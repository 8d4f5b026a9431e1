"""Rpm packages and repositories of a kit, read by what reads the vendors' own: gdsdeploy, rpm and dnf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gdsdeploy.repo import rpm as repositories
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.repository import Repository
from gdslab.archive import Archive
from gdslab.kit import rpm, sign
from gdslab.kit.content import Content, Original
from gdslab.kit.rpm import Rpm, Stream
from gdslab.kit.trees import Trees, replace
from tests.repos.archive import serve

DRIVER = "3:1.2-1.el9"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a stream, and its key."""
    root = tmp_path_factory.mktemp("kit")
    tree = root / "tree"
    for name, text in {
        "etc/tool/tool.conf": "a=1\n",
        "usr/bin/tool": "#!/usr/bin/python3\n",
        "lib/modules/1/m.ko": "",
    }.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(text)
    (tree / "usr/bin/tool").chmod(0o755)
    (tree / "usr/bin/other").symlink_to("tool")
    tool = Rpm(
        "tool", DRIVER, requires=("library >= 1",), provides=("nvidia-kmod = 3:1.2",), tree=tree,
        ghosts=("/boot/made",), config=("/etc/tool/tool.conf",),
        scripts={"post": "false || :\n", "preun": "echo gone\n"},
    )  # fmt: skip
    outside = Rpm("library", "1.0-1", "noarch")
    with sign.signer("Test of the lab") as signer:
        rpm.sign(rpm.build([tool, outside], root / "www"), signer.home, signer.fingerprint)
        stream = Stream("nvidia-driver", "1-open", [tool])
        rpm.publish(root / "www", lambda path: signer.detached(path, path.with_name(f"{path.name}.asc")), [stream])
        signer.export(root / "key", armour=True)
        (root / "fingerprint").write_text(signer.fingerprint)
    return root


def query(published: Path, *words: str, package: str = "tool-1.2-1.el9.x86_64") -> str:
    argv = ["rpm", "--query", "--package", *words, published / f"www/{package}.rpm"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_a_package_has_what_it_should(published: Path) -> None:
    listing = query(published, "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\\n]").splitlines()
    assert listing[0].endswith(" /boot/made")
    assert listing[1:] == [
        "drwxr-xr-x root /etc/tool",
        "-rw-r--r-- root /etc/tool/tool.conf",
        "drwxr-xr-x root /lib/modules/1",
        "-rw-r--r-- root /lib/modules/1/m.ko",
        "lrwxrwxrwx root /usr/bin/other",
        "-rwxr-xr-x root /usr/bin/tool",
    ]
    assert query(published, "--configfiles") == "/etc/tool/tool.conf\n"
    assert "false || :" in query(published, "--scripts")
    assert query(published, "--queryformat", "%{EPOCH}:%{VERSION}-%{RELEASE}") == DRIVER
    assert "library >= 1\n" in query(published, "--requires")
    assert "python" not in query(published, "--requires"), "the vendors list their relations"


def test_packages_and_index_are_signed_by_the_exported_key(published: Path, tmp_path: Path) -> None:
    rpmkeys = ["rpmkeys", f"--dbpath={tmp_path}"]
    package = str(published / "www/tool-1.2-1.el9.x86_64.rpm")
    unknown = subprocess.run([*rpmkeys, "--checksig", package], capture_output=True, text=True)
    assert unknown.returncode != 0, "no key is trusted yet"
    subprocess.run([*rpmkeys, "--import", published / "key"], check=True)
    checked = subprocess.run([*rpmkeys, "--checksig", "--verbose", package], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert "Header V4" in checked.stdout


def test_gdsdeploy_reads_the_repository_and_its_stream(published: Path, tmp_path: Path) -> None:
    fingerprint = (published / "fingerprint").read_text()
    with serve(published / "www") as server, Fetcher(tmp_path) as fetcher:
        repository = Repository("cuda", server.uri, published / "key", (fingerprint,), "/k")
        universe = repositories.read(fetcher, [repository], "x86_64")[0]
    assert not universe.with_streams({}).named("tool"), "the stream isn't enabled"
    (tool,) = universe.with_streams({"nvidia-driver": "1-open"}).named("tool")
    assert tool.version == DRIVER
    assert [candidate.version for candidate in universe.named("library")] == ["1.0-1"]


def test_a_tree_shares_no_content_that_is_replaced(tmp_path: Path) -> None:
    """Debian's unpacked packages stay as they are: two kits are made from them."""
    content = Content(tmp_path, Archive("", None, tmp_path, {}, {}, None), tmp_path)
    original = Original("source", "trixie", "1")
    files = tmp_path / "unpacked/source_1/files"
    (files / "usr/src/a").mkdir(parents=True)
    (files / "usr/src/a/dkms.conf").write_text("before")
    trees = Trees(tmp_path / "trees", content)
    tree = trees.moved("new", original, {"usr/src/a": "usr/src/b"}, {"etc/x": "1"})
    assert (tree / "etc/x").read_text() == "1"
    copied = tree / "usr/src/b/dkms.conf"
    assert copied.read_text() == "before"
    replace(copied, "after")
    assert (files / "usr/src/a/dkms.conf").read_text() == "before"
    with pytest.raises(FileNotFoundError, match="Debian's source has no usr/none"):
        trees.moved("other", original, {"usr/none*": "usr"})
