"""The modules in a package, read from its file without unpacking it."""

from __future__ import annotations

import gzip
import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.lock.sources import ModulesReader
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.repo.fetch import Fetcher
from tests.repos.dkmspackages import deb
from tests.unit.host.kmod.kmod_elf import VERMAGIC, module_bytes, signed_by

RELEASE = VERMAGIC.split()[0]
NVIDIA = module_bytes("nvidia", license="Dual MIT/GPL", info=[("version", "580.159.03")]) + signed_by("Canonical")
NVIDIA_FS = module_bytes("nvidia_fs", info=[("version", "2.26.6"), ("gdsdeploy_driver", "580.159.03")])


def index(folder: Path) -> Index:
    same = {"repository": "ubuntu", "suite": "noble", "components": ("main",), "date": "2026-11-01T00:00:00Z"}
    return Index.model_validate({**same, "uri": f"file://{folder}", "signed_by": "A" * 40, "host_keyring": "/k"})


def packaged(folder: Path, files: dict[str, bytes], **changes: Any) -> Package:
    """A package of the repository in ``folder``."""
    content = deb({f"./{path}": data for path, data in files.items()})
    (folder / "modules.deb").write_bytes(content)
    value = {
        "package": f"linux-modules-nvidia-580-open-{RELEASE}", "version": "1", "architecture": "amd64",
        "part": "driver-modules", "needed_by": "host", "file": "modules.deb", "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(), "repository": "ubuntu", "suite": "noble", "component": "main",
    }  # fmt: skip
    return Package.model_validate({**value, **changes})


def reader(folder: Path, steps: list[str] | None = None) -> ModulesReader:
    def step(title: str) -> Any:
        (steps if steps is not None else []).append(title)
        return nullcontext()

    return ModulesReader(Fetcher(folder / "cache", apt={}), [index(folder)], step)


@pytest.mark.parametrize("folder", ["lib/modules", "usr/lib/modules"])
def test_each_module_says_what_it_is(tmp_path: Path, folder: str) -> None:
    files = {
        f"{folder}/{RELEASE}/kernel/nvidia-580-open/nvidia.ko.gz": gzip.compress(NVIDIA, mtime=0),
        f"{folder}/{RELEASE}/kernel/fs/nvidia-fs.ko": NVIDIA_FS,
        "usr/share/doc/x/nvidia.ko": b"no module of a kernel",
    }
    package = packaged(tmp_path, files)
    nvidia_fs, nvidia = reader(tmp_path)([package, packaged(tmp_path, files, part="support")])
    assert (nvidia.module, nvidia.version, nvidia.license, nvidia.release) == (
        "nvidia", "580.159.03", "Dual MIT/GPL", RELEASE,
    )  # fmt: skip
    assert nvidia.file == "kernel/nvidia-580-open/nvidia.ko.gz"
    assert nvidia.sha256 == hashlib.sha256(gzip.compress(NVIDIA, mtime=0)).hexdigest(), "of the file as it is installed"
    assert "Canonical" in nvidia.signer
    assert (nvidia_fs.module, nvidia_fs.version, nvidia_fs.driver, nvidia_fs.signer) == (
        "nvidia_fs", "2.26.6", "580.159.03", "",
    )  # fmt: skip
    assert nvidia_fs.vermagic == VERMAGIC


def test_a_package_is_read_once(tmp_path: Path) -> None:
    package = packaged(tmp_path, {f"lib/modules/{RELEASE}/kernel/nvidia.ko": NVIDIA})
    steps: list[str] = []
    first = reader(tmp_path, steps)([package])
    assert reader(tmp_path, steps)([package]) == first
    assert steps == [f"Reading {package.package} 1"]
    (memory,) = (tmp_path / "cache/modules-in-packages").iterdir()
    memory.write_text('[{"module": 1}]')
    assert reader(tmp_path, steps)([package]) == first
    assert len(steps) == 2, "what is not as it was written counts for nothing"


def test_a_package_without_modules_is_one_that_hosts_link(tmp_path: Path) -> None:
    package = packaged(tmp_path, {f"lib/modules/{RELEASE}/kernel/nvidia-580/bits/BUILD": b""})
    with pytest.raises(RepositoryUnusable, match="it has no kernel modules: they may be linked on each host"):
        reader(tmp_path)([package])


@pytest.mark.parametrize("content", [NVIDIA[:200], b"", b"\x7fELF" + b"x" * 100])
def test_a_damaged_module_is_named(tmp_path: Path, content: bytes) -> None:
    package = packaged(tmp_path, {f"lib/modules/{RELEASE}/kernel/nvidia.ko": content})
    with pytest.raises(
        RepositoryUnusable, match=r"1 \(ubuntu\): its modules can't be read: /lib/modules/.*/nvidia\.ko"
    ) as error:
        reader(tmp_path)([package])
    assert "`modules: build`" in str(error.value.hint)


def test_a_package_that_changed_is_refused(tmp_path: Path) -> None:
    package = packaged(tmp_path, {f"lib/modules/{RELEASE}/kernel/nvidia.ko": NVIDIA})
    (tmp_path / "modules.deb").write_bytes((tmp_path / "modules.deb").read_bytes()[:-2] + b"xx")
    with pytest.raises(Exception, match=r"modules\.deb"):
        reader(tmp_path)([package])
