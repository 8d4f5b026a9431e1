"""A kernel module under another release's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.kmod.module import read_module
from gdslab.kit import kernel
from tests.unit.host.kmod.kmod_elf import SIGNATURE, VERMAGIC, module_bytes

NAME = "6.14.0-37-generic"


@pytest.mark.parametrize("signature", [b"", SIGNATURE])
def test_only_the_release_changes_and_the_signature_goes(tmp_path: Path, signature: bytes) -> None:
    options = {"name": "xfs", "depends": "libcrc32c", "imports": {"printk": 7}, "exports": {"xfs_read": (9, True)}}
    (tmp_path / "old.ko").write_bytes(module_bytes(**options, signature=signature))  # type: ignore[arg-type]
    (tmp_path / "new.ko").write_bytes(kernel.renamed((tmp_path / "old.ko").read_bytes(), NAME))
    old, new = (read_module(str(tmp_path / name)) for name in ("old.ko", "new.ko"))
    assert new.vermagic == VERMAGIC.replace("6.12.94+deb13-amd64", NAME)
    assert (new.name, new.depends, new.license) == (old.name, old.depends, old.license)
    assert (new.imports, new.exports) == (old.imports, old.exports)
    assert b"Module signature appended" not in (tmp_path / "new.ko").read_bytes()


def test_another_name_follows_the_first() -> None:
    twice = kernel.renamed(kernel.renamed(module_bytes(), "1.0-longer-than-before-generic"), NAME)
    assert twice.count(b"vermagic=" + NAME.encode() + b" SMP") == 1
    assert b"longer-than-before" not in twice[twice.rindex(b"license=") :]


def test_a_file_without_a_release_is_refused() -> None:
    with pytest.raises(ValueError, match="no vermagic"):
        kernel.renamed(module_bytes().replace(b"vermagic=", b"somewhat="), NAME)
