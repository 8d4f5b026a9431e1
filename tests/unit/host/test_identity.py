from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.boot import present

ID = "0123456789abcdef0123456789abcdef"
#: As OpenSSL computes it: openssl dgst -sha256 -mac HMAC -macopt hexkey:ID, of the text that the module has.
DIGEST = "fe50b3d2f8f657ab473e0a949c2bf779ca132d3c3675af927981faf93f92f44c"


def root(folder: Path, text: str) -> str:
    (folder / "etc").mkdir()
    (folder / "etc/machine-id").write_text(text)
    return str(folder)


def test_a_digest_stands_for_the_machine_id(tmp_path: Path) -> None:
    assert present.machine_digest(root(tmp_path, ID + "\n")) == DIGEST


@pytest.mark.parametrize("text", ["", "uninitialized\n", ID.upper(), ID + "0", ID[:-1]])
def test_what_is_not_an_id_has_no_digest(tmp_path: Path, text: str) -> None:
    assert present.machine_digest(root(tmp_path, text)) == ""


def test_links_in_a_circle_are_no_id(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").symlink_to("machine-id")
    assert present.machine_digest(str(tmp_path)) == ""
