"""The real archive's kernels and compiler, with a repository of our own beside it that has small drivers.

Real drivers take minutes to build; these take seconds, and one of them breaks on newer kernels for the reason that
real ones do.  Layers are kept in the user's cache, records and logs are each test's own.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gdsdeploy import paths
from tests.repos.archive import Archive, Key, Suite
from tests.repos.stack import Stanza, gds, kernel, open_driver, package, proprietary_driver

SOURCES = Path(__file__).parents[1] / "kmod" / "sources"
#: As NVIDIA's own: kbuild is told the driver's parts by the top Kbuild, and started by a Makefile.
MAKEFILE = """\
modules:
\t$(MAKE) -C /lib/modules/$(KERNEL_UNAME)/build M=$(CURDIR) modules
"""
#: The call that drivers before 535.309.01 have; Linux 6.1.187 and 6.12.107 gave the function a fourth parameter.
RESIZES = """
#include <linux/pci.h>
int nv_resize(struct pci_dev *dev);
int nv_resize(struct pci_dev *dev)
{
\treturn pci_resize_resource(dev, 1, 8);
}
"""


@pytest.fixture(autouse=True)
def _own_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, logs and work folders of the test's own; what is fetched and unpacked stays in the user's cache."""
    shared, own = paths.cache(), tmp_path / "cache"
    for name in ("repo", "preflight/layers"):
        (shared / name).mkdir(parents=True, exist_ok=True)
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(shared / name)
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(own))
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Key]]:
    """A signed repository with drivers 560.1.3 and 560.1.4 (which newer kernels break) and an nvidia-fs."""
    folder = tmp_path_factory.mktemp("drivers")
    key = Key.generate(folder / "gnupg", "archive")
    archive = Archive(folder / "repository")
    stanzas: list[Stanza] = [*gds("2.19.7", "1.9.1.3", "99.1", "1")]
    for version in ("560.1.3", "560.1.4"):
        stanzas += [*open_driver(version, "1"), *proprietary_driver(version, "1")]
    stanzas.append(package("nvidia-modprobe", "999-1", depends="libc6"))
    # As Debian's archive has images of older kernels.
    stanzas += kernel("6.12.1+deb13", "6.12.1-1", headers=False)
    trees = {("nvidia-open-kernel-dkms", f"{v}-1"): _driver(folder / v, v) for v in ("560.1.3", "560.1.4")}
    fs = next(stanza for stanza in stanzas if stanza["Package"] == "nvidia-fs-dkms")
    tree = folder / "fs" / "usr" / "src" / "nvidia-fs-2.19.7"
    shutil.copytree(SOURCES / "nvidia-fs", tree)
    trees["nvidia-fs-dkms", fs["Version"]] = folder / "fs"
    for stanza in stanzas:
        content = trees.get((stanza["Package"], stanza["Version"]))
        if content is not None:
            _pack(content, stanza, archive.root)
    archive.publish(Suite("trixie", {"non-free": list[Mapping[str, str]](stanzas)}, valid_for=None), key)
    yield archive.root, key
    key.forget()


@pytest.fixture
def fleet(drivers: tuple[Path, Key], tmp_path: Path) -> Path:
    """A fleet file whose profile takes kernels from the real archive, and drivers from our own repository first."""
    repository, key = drivers
    path = tmp_path / "fleet.yml"
    path.write_text(
        f"version: 1\n"
        f"repositories:\n"
        f"  ours: {{uri: 'file://{repository}', suites: [trixie], components: [non-free], keyring: '{key.keyring}',\n"
        f"    fingerprints: [{key.fingerprint}]}}\n"
        f"  debian: {{suites: [trixie, trixie-updates, bookworm]}}\n"
        f"profiles:\n  gds: {{os: debian-13, repositories: [ours, debian, debian-security], driver: '560.1.3',\n"
        f"    nvidia_fs: '==2.19.7~99.1-1'}}\n"
        f"hosts: {{gpu1: gds}}\n"
    )
    return path


def _driver(folder: Path, version: str) -> Path:
    tree = folder / "usr" / "src" / f"nvidia-current-open-{version}"
    shutil.copytree(SOURCES / "driver", tree)
    (tree / "Makefile").write_text(MAKEFILE)
    for name in ("Kbuild", "dkms.conf"):
        text = (tree / name).read_text().replace("1.2.3", version)
        # DKMS finds the tree by its name and version.
        (tree / name).write_text(text.replace("nvidia-standin", "nvidia-current-open"))
    unit = tree / "nvidia" / "nv.c"
    unit.write_text(unit.read_text() + (RESIZES if version == "560.1.4" else ""))
    return folder


def _pack(content: Path, stanza: Stanza, pool: Path) -> None:
    """Make the real package of a stanza, which then says what it is."""
    control = content / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text(
        f"Package: {stanza['Package']}\nVersion: {stanza['Version']}\nArchitecture: {stanza['Architecture']}\n"
        f"Maintainer: nobody <nobody@mirror.example>\nDescription: for a test\n"
    )
    path = pool / stanza["Filename"]
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", content, path], check=True, capture_output=True)
    stanza["Size"] = str(path.stat().st_size)
    stanza["SHA256"] = hashlib.sha256(path.read_bytes()).hexdigest()
