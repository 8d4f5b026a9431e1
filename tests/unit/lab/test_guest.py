"""What is written into the hosts."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gdslab import guest
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable

TRIXIE = guest.RELEASES["trixie"]


def test_sources_are_as_the_installer_writes_them(mirror: Archive) -> None:
    assert guest.debian_sources(TRIXIE, mirror) == (
        "Types: deb\n"
        "URIs: http://mirror.example/debian\n"
        "Suites: trixie trixie-updates\n"
        "Components: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        "\n"
        "Types: deb\n"
        "URIs: http://mirror.example/debian-security\n"
        "Suites: trixie-security\n"
        "Components: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_archive_without_security(mirror: Archive) -> None:
    assert "security" not in guest.debian_sources(TRIXIE, replace(mirror, security_uri=None))


def test_proxy_bundle_and_foreign_keyring_travel(mirror: Archive) -> None:
    site = replace(
        mirror,
        keyring=Path("/etc/apt/keyrings/site.gpg"),
        proxy={"Acquire::http::Proxy": "http://proxy.example:3128"},
        ca_bundle=Path("/etc/ssl/site.pem"),
    )
    files = guest.base_files(TRIXIE, site, "light")
    assert files["etc/apt/apt.conf.d/90lab"] == (
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::Languages "none";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::CAInfo "/etc/ssl/certs/lab-archive.pem";\n'
    )
    assert files["etc/ssl/certs/lab-archive.pem"] == Path("/etc/ssl/site.pem")
    assert files["usr/share/keyrings/lab-site.gpg"] == Path("/etc/apt/keyrings/site.gpg")
    assert "Signed-By: /usr/share/keyrings/lab-site.gpg" in str(files["etc/apt/sources.list.d/debian.sources"])


def test_bare_hosts_have_no_compiler() -> None:
    for kind in ("vm", "light"):
        assert not {"gcc", "make", "build-essential", "dkms"} & set(guest.packages(kind))


def seed(mirror: Archive, kind: str) -> dict[str, tuple[str, int]]:
    return guest.seed_files("gpu1", 22011, "ssh-ed25519 AAAA lab", ("PRIVATE\n", "PUBLIC\n"), mirror, kind)


def test_seed_makes_the_host_itself(mirror: Archive) -> None:
    files = seed(mirror, "vm")
    assert files["etc/hostname"] == ("gpu1\n", 0o644)
    assert files["etc/ssh/ssh_host_ed25519_key"] == ("PRIVATE\n", 0o600)
    assert files["home/admin/.ssh/authorized_keys"][0] == "ssh-ed25519 AAAA lab"
    assert not [name for name in files if "port" in name or "forward" in name]


def test_light_host_listens_on_its_port_of_loopback_only(mirror: Archive) -> None:
    assert seed(mirror, "light")["etc/ssh/sshd_config.d/lab-port.conf"][0] == "Port 22011\nListenAddress 127.0.0.1\n"


def test_loopback_archive_answers_inside_a_vm_too(mirror: Archive) -> None:
    local = replace(mirror, uri="http://127.0.0.1:8000/debian", proxy={"Acquire::http::Proxy": "http://localhost:3142"})
    files = seed(local, "vm")
    assert "ListenStream=127.0.0.1:8000\n" in files["etc/systemd/system/lab-forward-8000.socket"][0]
    assert "systemd-socket-proxyd 10.0.2.2:3142\n" in files["etc/systemd/system/lab-forward-3142.service"][0]
    assert not [name for name in seed(local, "light") if "forward" in name]


def test_network_unit_has_the_address_that_qemu_forwards_to() -> None:
    unit = guest.data("guest/lab-network.service").read_text()
    assert f" {guest.GUEST_ADDRESS}/24 dev eth0\n" in unit
    assert f" via {guest.GATEWAY}\n" in unit


def test_tar_has_files_only_with_their_permissions() -> None:
    with tarfile.open(
        fileobj=io.BytesIO(guest.tar({"etc/key": ("x", 0o600), "lib/m.ko": (b"\x7fELF", 0o644)}))
    ) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert set(members) == {"etc/key", "lib/m.ko"}
        assert members["etc/key"].mode == 0o600
        assert members["etc/key"].uname == "root"
        content = archive.extractfile("lib/m.ko")
        assert content is not None
        assert content.read() == b"\x7fELF"


def test_unknown_release_is_one_error() -> None:
    with pytest.raises(LabUnavailable, match="no release potato"):
        guest.release("potato")
