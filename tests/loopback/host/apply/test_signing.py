"""What signs on a machine that builds, the certificate on one that receives, and the request to its firmware."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import signing
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.secure_boot import signing as mok
from tests.unit.host.apply.kernel_hosts import apply, check, short
from tests.unit.host.kmod.kmod_keys import Pair, efi, pair, signature_list

KEY, CERTIFICATE = "/etc/gdsdeploy-keys/modules.key", "/etc/gdsdeploy-keys/modules.der"
SETTINGS = json.dumps({"certificate": CERTIFICATE, "key": KEY, "signer": []}) + "\n"
BUILDS: dict[str, Any] = {"certificate": CERTIFICATE, "key": KEY, "settings": SETTINGS, "signs": True}
MOKUTIL = '#!/bin/sh\necho "$@" >> {folder}/asked\ncp "$2" {folder}/certificate\n'


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("keys"), "owner")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def builder(root: Path, owner: Pair) -> Path:
    (root / "etc/gdsdeploy-keys").mkdir(parents=True)
    for path, source, mode in ((KEY, owner.key, 0o600), (CERTIFICATE, owner.der, 0o644)):
        (root / path.lstrip("/")).write_bytes(source.read_bytes())
        (root / path.lstrip("/")).chmod(mode)
    return root


@pytest.fixture
def receives(owner: Pair) -> dict[str, Any]:
    content = base64.b64encode(owner.der.read_bytes()).decode()
    return {"certificate": CERTIFICATE, "enrols": True, "certificate_content": content}


@pytest.fixture
def mokutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mok, "ONE_TIME", str(tmp_path / "password"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mokutil").write_text(MOKUTIL.format(folder=tmp_path))
    (tmp_path / "bin/mokutil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "asked"


def refused(root: Path, desired: dict[str, Any]) -> list[str]:
    return [refusal["id"] for refusal in check(root, "signing", desired).to_json()["refusals"]]


def test_a_machine_that_builds_is_told_who_signs(builder: Path, owner: Pair) -> None:
    first = apply(builder, "signing", BUILDS)
    modes = {
        path: (builder / path.lstrip("/")).stat().st_mode & 0o777 for path in (signing.SETTINGS, signing.SIGN_FILE)
    }
    assert modes == {signing.SETTINGS: 0o600, signing.SIGN_FILE: 0o755}
    assert (builder / signing.SETTINGS.lstrip("/")).read_text() == SETTINGS
    framework = (builder / signing.FRAMEWORK.lstrip("/")).read_text()
    assert f'mok_certificate="{CERTIFICATE}"' in framework
    assert 'try_sign_modules="true"' in framework
    assert "python3 -I -S /usr/lib" in (builder / signing.SIGN_FILE.lstrip("/")).read_text()
    assert base64.b64decode(first.report["certificate"]) == owner.der.read_bytes()
    assert apply(builder, "signing", BUILDS).changes == []
    assert KEY not in json.dumps(first.report["observed"]["files"])


def test_a_key_that_is_missing_or_not_roots_alone_is_refused(builder: Path) -> None:
    assert refused(builder, BUILDS) == []
    for mode in (0o640, 0o604, 0o601):
        (builder / KEY.lstrip("/")).chmod(mode)
        assert refused(builder, BUILDS) == ["key-readable"]
    (builder / KEY.lstrip("/")).unlink()
    assert refused(builder, BUILDS) == ["no-key"]
    (builder / CERTIFICATE.lstrip("/")).unlink()
    assert refused(builder, BUILDS) == ["no-certificate", "no-key"]
    with pytest.raises(ApplyError, match="with which modules are signed, is not there") as caught:
        apply(builder, "signing", BUILDS)
    assert f'kmod keygen --name "NAME OF YOUR FLEET" --certificate {CERTIFICATE} --key {KEY}' in caught.value.hint
    assert not (builder / signing.SETTINGS.lstrip("/")).exists()


def test_a_program_that_signs_needs_no_key_here(builder: Path) -> None:
    (builder / KEY.lstrip("/")).unlink()
    assert refused(builder, {**BUILDS, "key": ""}) == []


def test_a_machine_that_receives_gets_the_certificate(root: Path, owner: Pair, receives: dict[str, Any]) -> None:
    assert refused(root, {**receives, "certificate_content": ""}) == ["not-delivered"]
    apply(root, "signing", receives)
    assert (root / signing.RECEIVED.lstrip("/")).read_bytes() == owner.der.read_bytes()
    assert apply(root, "signing", receives).changes == []
    assert not (root / "etc/dkms").exists()


def test_without_signing_nothing_is_done(root: Path) -> None:
    assert apply(root, "signing", {"enrols": True}).changes == []
    assert list(root.iterdir()) == []


def test_a_key_that_secure_boot_does_not_know_is_a_persons_to_enrol(
    root: Path, owner: Pair, receives: dict[str, Any], mokutil: Path
) -> None:
    efi(root, secure_boot=1)
    changes = check(root, "signing", receives).changes
    assert short(changes)[-1] == ("enrol", signing.RECEIVED, "secure-boot")
    assert (changes[-1].before, changes[-1].disruption) == ("absent", "reboot")
    assert not mokutil.exists()
    with pytest.raises(ApplyError, match=r"by a person at the console of this host: \(1\) read the one-time") as caught:
        apply(root, "signing", receives)
    assert caught.value.kind == "refused"
    assert (mokutil.parent / "certificate").read_bytes() == owner.der.read_bytes()
    assert (root / signing.RECEIVED.lstrip("/")).exists()
    efi(root, secure_boot=1, MokNew=signature_list(owner.der.read_bytes()))
    assert [(step.kind, step.before) for step in check(root, "signing", receives).changes] == [("enrol", "pending")]
    with pytest.raises(ApplyError, match="by a person"):
        apply(root, "signing", receives)
    assert len(mokutil.read_text().splitlines()) == 1
    efi(root, secure_boot=1, mok=signature_list(owner.der.read_bytes()))
    (root / f"sys/firmware/efi/efivars/MokNew-{'605dab50-e046-4300-abb6-3dd810dd8b23'}").unlink()
    assert apply(root, "signing", receives).changes == []


def test_secure_boot_off_asks_for_nothing(root: Path, receives: dict[str, Any], mokutil: Path) -> None:
    efi(root, secure_boot=0)
    assert "enrol" not in [change.kind for change in apply(root, "signing", receives).changes]
    assert not mokutil.exists()


def test_what_is_no_certificate_cannot_be_told(root: Path, receives: dict[str, Any]) -> None:
    efi(root)
    bad = {**receives, "certificate_content": base64.b64encode(b"nonsense").decode()}
    assert "isn't a certificate" in check(root, "signing", bad).unknown[0]
    with pytest.raises(ApplyError, match="not base64"):
        apply(root, "signing", {**receives, "certificate_content": "%"})


def test_everything_of_it_is_taken_back_but_the_key(builder: Path) -> None:
    apply(builder, "signing", BUILDS)
    signing.Signing().revert(ManagedHost(check=True, root=str(builder)))
    assert (builder / signing.SETTINGS.lstrip("/")).exists()
    signing.Signing().revert(ManagedHost(root=str(builder)))
    left = sorted(str(path.relative_to(builder)) for path in builder.rglob("*") if path.is_file())
    assert [name for name in left if "before.json" not in name] == [CERTIFICATE.lstrip("/"), KEY.lstrip("/")]
