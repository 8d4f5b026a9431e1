"""After DKMS has installed modules, gdsdeploy's recipe signs those that DKMS left unsigned, and copies them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.build import dkms
from gdsdeploy.host.cli import kmod
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.secure_boot import signing
from gdsdeploy.host.secure_boot.signing import SigningError
from tests.unit.host.kmod.kmod_root import RELEASE, Root

FILES = ["updates/dkms/nvidia.ko", "updates/dkms/nvidia-uvm.ko"]


class Recipe:
    """In place of the kernel, of the key and of the copies: what was done, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, signer: Any = "signer", fails: bool = False) -> None:
        self.done: list[Any] = []
        self.fails = fails
        monkeypatch.setattr(signing, "from_settings", lambda **_: signer)
        monkeypatch.setattr(signing, "sign", self.sign)
        monkeypatch.setattr(dkms, "installed_files", lambda *_: FILES)
        monkeypatch.setattr(dkms, "save", self.save)

    def sign(self, _kernel: Any, paths: list[str], by: Any) -> None:
        self.done.append((by, [Path(path).name for path in paths]))
        if self.fails:
            raise SigningError("the key is gone")

    def save(self, _kernel: Any, name: str) -> list[str]:
        self.done.append(name)
        return FILES


def save(root: Path) -> list[str]:
    action = kmod._BACKUP_ACTIONS["save"]
    return action(Kernel(RELEASE, str(Root(root).path)), "nvidia")


SIGNED = ("signer", ["nvidia.ko", "nvidia-uvm.ko"])


def test_modules_are_signed_before_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(monkeypatch)
    assert save(tmp_path) == FILES
    assert recipe.done == [SIGNED, "nvidia"]


def test_a_host_that_does_not_sign_only_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(monkeypatch, signer=None)
    save(tmp_path)
    assert recipe.done == ["nvidia"]


def test_a_key_that_cannot_be_used_is_an_error_and_the_copy_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(monkeypatch, fails=True)
    with pytest.raises(SigningError, match="the key is gone"):
        save(tmp_path)
    assert recipe.done == [SIGNED, "nvidia"]
