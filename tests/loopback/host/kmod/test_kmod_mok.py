"""Keys made by the real openssl; requests to an imitated firmware, by a mokutil that writes down what it got."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from gdsdeploy.host.secure_boot import signing
from gdsdeploy.host.secure_boot.signing import SigningError, read_certificate_file
from tests.unit.host.kmod.kmod_keys import Pair, efi, pair, signature_list

MOKUTIL = """#!/bin/sh
echo "$@" > {folder}/words
cp "$2" {folder}/certificate && cp "$4" {folder}/hash && stat -c %a "$4" > {folder}/mode
exit {status}
"""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("keys"), "owner")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(signing, "ONE_TIME", str(tmp_path / "password"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def imitate(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
    (folder / "bin").mkdir()
    (folder / "bin/mokutil").write_text(MOKUTIL.format(folder=folder, status=status))
    (folder / "bin/mokutil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_a_key_is_its_owners_alone_and_is_never_overwritten(tmp_path: Path) -> None:
    key, certificate = tmp_path / "keys/a.key", tmp_path / "keys/a.der"
    result = signing.make_key(str(key), str(certificate), "fleet 7", 30)
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    shown = subprocess.run(
        ["openssl", "x509", "-inform", "DER", "-in", str(certificate), "-noout", "-text", "-fingerprint"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert f"Fingerprint={result.fingerprint.upper()}" in shown
    # Whose owner's shim may load modules with it, and start nothing.
    assert "1.3.6.1.4.1.2312.16.1.2" in shown
    assert "CA:FALSE" in shown
    before = key.read_bytes()
    with pytest.raises(SigningError, match=r"a\.key already exists"):
        signing.make_key(str(key), str(tmp_path / "b.der"), "fleet 7", 30)
    with pytest.raises(SigningError, match=r"a\.der already exists"):
        signing.make_key(str(tmp_path / "b.key"), str(certificate), "fleet 7", 30)
    assert key.read_bytes() == before
    assert not (tmp_path / "b.key").exists()
    assert sorted(path.name for path in key.parent.iterdir()) == ["a.der", "a.key"]


def test_key_and_certificate_may_be_on_different_file_systems(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        signing.make_key(f"{memory}/a.key", str(tmp_path / "a.der"), "fleet 7", 30)
        assert [*map(os.listdir, (memory, tmp_path))] == [["a.key"], ["a.der"]]


@pytest.mark.parametrize(("name", "days"), [("", 1), ("a\nb", 1), ("$ENV::HOME", 1), ("a", 0)])
def test_names_that_openssl_would_take_for_more_are_refused(tmp_path: Path, name: str, days: int) -> None:
    with pytest.raises(SigningError, match="makes no certificate"):
        signing.make_key(str(tmp_path / "k"), str(tmp_path / "c"), name, days)


def test_the_request_and_what_a_person_has_to_do(
    root: Path, owner: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    efi(root)
    imitate(tmp_path, monkeypatch)
    assert signing.enrol(read_certificate_file(str(owner.pem)), str(root), check=True)["state"] == "absent"
    assert not (tmp_path / "words").exists()
    answer = signing.enrol(read_certificate_file(str(owner.pem)), str(root))
    assert (answer["state"], answer["changed"], answer["secure_boot"]) == ("pending", True, True)
    assert any(answer["fingerprint"] in text for text in answer["steps"])
    assert (tmp_path / "certificate").read_bytes() == owner.der.read_bytes(), "as DER, whatever it was given"
    password = (tmp_path / "password").read_text().strip()
    assert (tmp_path / "password").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mode").read_text().strip() == "600"
    # The hash is of that password, which is in no output and no command line.
    _, kind, salt, _ = (tmp_path / "hash").read_text().strip().split("$")
    argv = ["openssl", "passwd", f"-{kind}", "-salt", salt, "-stdin"]
    result = subprocess.run(argv, input=password + "\n", capture_output=True, text=True, check=True).stdout.strip()
    assert result == (tmp_path / "hash").read_text().strip()
    output = capfd.readouterr()
    assert password not in output.out + output.err + repr(answer) + (tmp_path / "words").read_text()


def test_a_request_is_made_once_and_is_done_when_the_key_is_enrolled(
    root: Path, owner: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate(tmp_path, monkeypatch)
    listed = signature_list(owner.der.read_bytes())
    efi(root, MokNew=listed)
    answer = signing.enrol(read_certificate_file(str(owner.der)), str(root))
    assert (answer["state"], answer["changed"], bool(answer["steps"])) == ("pending", False, True)
    efi(root, mok=listed)
    answer = signing.enrol(read_certificate_file(str(owner.der)), str(root))
    assert (answer["state"], answer["changed"], answer["steps"]) == ("enrolled", False, [])
    assert not (tmp_path / "words").exists()


def test_where_there_is_nothing_to_do(root: Path, owner: Pair) -> None:
    assert signing.enrol(read_certificate_file(str(owner.der)), str(root))["state"] == "no-efi"
    efi(root, secure_boot=0)
    answer = signing.enrol(read_certificate_file(str(owner.der)), str(root), where_needed=True)
    assert (answer["state"], answer["changed"]) == ("not-needed", False)


def test_a_request_that_is_not_taken_leaves_no_password_behind(
    root: Path, owner: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    efi(root)
    imitate(tmp_path, monkeypatch, status=1)
    with pytest.raises(SigningError, match="refused the request"):
        signing.enrol(read_certificate_file(str(owner.der)), str(root))
    assert not (tmp_path / "password").exists()


def test_a_key_that_no_module_needs_is_deleted_by_a_person(
    root: Path, owner: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, listed = read_certificate_file(str(owner.der)), signature_list(owner.der.read_bytes())
    imitate(tmp_path, monkeypatch)
    efi(root, mok=listed)
    assert signing.unenrol(owners, str(root), check=True)["state"] == "enrolled"
    with pytest.raises(SigningError, match=r"would no longer load without it: /lib/modules/a/nvidia\.ko"):
        signing.unenrol(owners, str(root), in_use=["/lib/modules/a/nvidia.ko"])
    assert not (tmp_path / "words").exists()
    answer = signing.unenrol(owners, str(root))
    assert (answer["state"], answer["changed"]) == ("leaving", True)
    assert any("Delete MOK" in text and answer["fingerprint"] in text for text in answer["steps"])
    assert (tmp_path / "words").read_text().startswith("--delete ")
    efi(root, mok=listed, MokDel=listed)
    assert signing.unenrol(owners, str(root))["changed"] is False


def test_a_key_that_is_not_enrolled_needs_no_deletion(root: Path, owner: Pair) -> None:
    owners, listed = read_certificate_file(str(owner.der)), signature_list(owner.der.read_bytes())
    assert signing.unenrol(owners, str(root))["state"] == "no-efi"
    efi(root)
    assert signing.unenrol(owners, str(root))["state"] == "absent"
    efi(root, MokNew=listed)
    with pytest.raises(SigningError, match="its enrolment is pending"):
        signing.unenrol(owners, str(root))


def test_one_request_at_a_time_has_a_password(root: Path, owner: Pair, tmp_path: Path) -> None:
    other = pair(tmp_path, "another")
    efi(root, mok=signature_list(owner.der.read_bytes()), MokNew=signature_list(other.der.read_bytes()))
    with pytest.raises(SigningError, match="a request to enrol another key is pending"):
        signing.unenrol(read_certificate_file(str(owner.der)), str(root))


def test_requests_are_withdrawn(root: Path, owner: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mokutil").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\n')
    (tmp_path / "bin/mokutil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    efi(root)
    assert signing.withdraw(str(root)) == {"changed": False, "withdrawn": []}
    listed = signature_list(owner.der.read_bytes())
    efi(root, MokNew=listed, MokDel=listed)
    assert signing.withdraw(str(root), check=True)["changed"] is True
    assert not (tmp_path / "words").exists()
    assert signing.withdraw(str(root)) == {"changed": True, "withdrawn": ["owner", "owner"]}
    assert (tmp_path / "words").read_text().split() == ["--revoke-import", "--revoke-delete"]


def test_a_key_that_the_host_has_revoked_is_not_enrolled(root: Path, owner: Pair) -> None:
    efi(root, MokListXRT=signature_list(owner.der.read_bytes()))
    with pytest.raises(SigningError, match="has revoked the key"):
        signing.enrol(read_certificate_file(str(owner.der)), str(root))


def test_a_key_of_the_firmware_needs_no_enrolment(root: Path, owner: Pair) -> None:
    efi(root, db=signature_list(owner.der.read_bytes()))
    assert signing.enrol(read_certificate_file(str(owner.der)), str(root))["state"] == "firmware"
