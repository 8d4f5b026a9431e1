"""The lab's own signatures on modules, as gdsdeploy's host program reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.secure_boot.certificate import read_certificate
from gdsdeploy.host.secure_boot.signing import is_signed
from gdslab import signing
from tests.unit.host.kmod.kmod_elf import SIGNATURE, module_bytes


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> signing.ModuleKey:
    return signing.module_key(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("signature", [b"", SIGNATURE])
def test_a_signature_takes_the_place_of_another(tmp_path: Path, key: signing.ModuleKey, signature: bytes) -> None:
    path, certificate = tmp_path / "one.ko", read_certificate(key.certificate.read_bytes())
    path.write_bytes(key.sign(module_bytes(signature=signature)))
    assert is_signed(str(path), certificate)
    assert signing.unsigned(path.read_bytes()) == module_bytes()
    path.write_bytes(path.read_bytes().replace(b"license=", b"License=", 1))
    assert not is_signed(str(path), certificate)


def test_the_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    first = signing.module_key(tmp_path)
    assert first.key.stat().st_mode & 0o777 == 0o600
    assert signing.module_key(tmp_path).fingerprint == first.fingerprint
    assert first.key.parent == signing.folder_of(tmp_path)
