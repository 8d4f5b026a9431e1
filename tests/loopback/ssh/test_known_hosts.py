from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.ssh.endpoint import Endpoint
from gdsdeploy.ssh.known_hosts import KnownKey, fingerprint, is_recorded, known_keys, record_name


def host(address: str, port: int, *files: Path, alias: str = "") -> Endpoint:
    return Endpoint("one", address, port, "root", (), files, host_key_alias=alias)


BLOB = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519 and so on").decode()


@pytest.mark.parametrize(
    ("names", "address", "port", "expected"),
    [
        ("gpu1", "gpu1", 22, True),
        ("gpu1", "GPU1", 22, True),
        ("gpu1", "gpu1", 2222, False),
        ("[gpu1]:2222", "gpu1", 2222, True),
        ("[gpu1]:2222", "gpu1", 22, False),
        ("other,gpu1,10.0.0.1", "10.0.0.1", 22, True),
        ("*.example", "gpu1.example", 22, True),
        ("*.example", "gpu1-example", 22, False),
        ("gpu?", "gpu1", 22, True),
        ("gpu?", "gpu10", 22, False),
        ("*,!gpu1", "gpu1", 22, False),
        ("*,!gpu1", "gpu2", 22, True),
        ("[*]:2222", "gpu1", 2222, True),
        ("2001:db8::1", "2001:db8::1", 22, True),
        ("|1|not base64|x", "gpu1", 22, False),
    ],
)
def test_names(tmp_path: Path, names: str, address: str, port: int, expected: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"{names} ssh-ed25519 {BLOB} a comment\n")
    assert bool(known_keys(host(address, port, file))) is expected


def test_an_alias_stands_for_the_host_whatever_its_port(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"node7 ssh-ed25519 {BLOB}\n[10.0.0.7]:2222 ssh-rsa {BLOB}\n")
    assert [key.type for key in known_keys(host("10.0.0.7", 2222, file, alias="node7"))] == ["ssh-ed25519"]


def test_lines_markers_and_what_is_no_entry(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_text(f"# gpu1 ssh-rsa {BLOB}\n\ngpu1\n@revoked gpu1 ssh-rsa {BLOB}\ngpu1 ssh-rsa ***\n")
    second.write_text(f"gpu1 ssh-ed25519 {BLOB}\n@cert-authority * ssh-rsa {BLOB}\n")
    keys = known_keys(host("gpu1", 22, first, tmp_path / "none", second))
    assert [(key.place(), key.type, key.marker) for key in keys] == [
        (f"{first}:4", "ssh-rsa", "revoked"),
        (f"{second}:1", "ssh-ed25519", ""),
        (f"{second}:2", "ssh-rsa", "cert-authority"),
    ]


@pytest.mark.parametrize(
    ("markers", "accepted"),
    [([""], True), ([], False), (["cert-authority"], False), (["", "revoked"], False), (["revoked"], False)],
)
def test_a_key_counts_only_when_it_is_there_plainly(markers: list[str], accepted: bool) -> None:
    keys = [KnownKey(Path("f"), 1, "ssh-rsa", b"blob", marker) for marker in markers]
    assert is_recorded([*keys, KnownKey(Path("f"), 2, "ssh-rsa", b"other")], b"blob") is accepted


def test_openssh_agrees(tmp_path: Path) -> None:
    """ssh-keygen finds the same entries, hashed ones included, and prints the same fingerprint."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, blob = key.with_suffix(".pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"{record_name(host('gpu1', 2222))} {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    (record,) = known_keys(host("gpu1", 2222, file))
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True).stdout
    assert fingerprint(record.blob) in shown
    assert known_keys(host("gpu1", 22, file)) == []
