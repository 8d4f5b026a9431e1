"""What VM hosts boot by: options, the lab's record, and what is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gdslab import cli as verb
from gdslab import firmware, lifecycle
from gdslab.errors import LabUnavailable
from gdslab.firmware import Firmware
from gdslab.host import HostRecord
from gdslab.qemu import VmHost
from gdslab.signing import make_key
from gdslab.state import Lab


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("key")
    make_key(folder / "key.pem", folder / "mok.der", "someone")
    return folder / "mok.der"


def test_options_choose_the_firmware(tmp_path: Path, certificate: Path) -> None:
    assert firmware.choose(None, secure_boot=False, files=()) is None
    assert firmware.choose("bios", secure_boot=False, files=()) == Firmware()
    assert firmware.choose("uefi", secure_boot=False, files=()) == Firmware(uefi=True)
    pem = tmp_path / "mok.pem"
    pem.write_bytes(x509.load_der_x509_certificate(certificate.read_bytes()).public_bytes(Encoding.PEM))
    chosen = firmware.choose(None, secure_boot=True, files=(certificate, pem))
    assert chosen == Firmware(uefi=True, secure_boot=True, moks=(certificate.read_bytes(),)), "the same key, once"
    assert chosen.title == "UEFI with Secure Boot"
    assert firmware.of(chosen.record()) == chosen


def test_labs_of_earlier_versions_have_a_bios() -> None:
    assert firmware.of(None) == firmware.BIOS


@pytest.mark.parametrize(
    ("kind", "secure_boot", "moks", "problem"),
    [
        ("bios", True, False, "a BIOS has no Secure Boot"),
        ("uefi", False, True, "only hosts with Secure Boot have Machine Owner Keys"),
        (None, False, True, "only hosts with Secure Boot have Machine Owner Keys"),
    ],
)
def test_options_that_exclude_each_other(
    kind: str | None, secure_boot: bool, moks: bool, problem: str, certificate: Path
) -> None:
    with pytest.raises(LabUnavailable, match=problem):
        firmware.choose(kind, secure_boot, [certificate] if moks else [])


def test_a_file_that_is_no_certificate_is_one_error(tmp_path: Path, certificate: Path) -> None:
    with pytest.raises(LabUnavailable, match=r"cannot read the certificate .*/missing: No such file"):
        firmware.read_certificate(tmp_path / "missing")
    (tmp_path / "text").write_text("text")
    with pytest.raises(LabUnavailable, match="text is not a certificate, neither PEM nor DER") as caught:
        firmware.read_certificate(tmp_path / "text")
    assert "kmod keygen" in (caught.value.hint or "")
    with pytest.raises(LabUnavailable, match="not a certificate") as caught:
        firmware.read_certificate(certificate.with_name("key.pem"))
    assert "private key" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--secure-boot", "--firmware", "bios"], "--secure-boot needs UEFI"),
        (["--mok", "mok.der"], "--mok needs --secure-boot"),
        (["--firmware", "uefi", "--mok", "mok.der"], "--mok needs --secure-boot"),
    ],
)
def test_the_command_line_refuses_them_as_usage(argv: list[str], problem: str) -> None:
    done = CliRunner().invoke(verb.command, ["up", *argv])
    assert done.exit_code == 2
    assert problem in done.output


def lab_with(chosen: Firmware, *hosts: HostRecord) -> Lab:
    lab = Lab("one")
    lab.write({"os": "debian-13", "hosts": [asdict(host) for host in hosts], "firmware": chosen.record()})
    return lab


VM = HostRecord("gpu1", "vm", 22011, "/c/disk.qcow2")


@pytest.mark.usefixtures("home")
def test_a_lab_remembers_its_firmware() -> None:
    lab = lab_with(Firmware(uefi=True), VM)
    assert lifecycle._firmware(lab, None) == Firmware(uefi=True)
    assert lifecycle._firmware(lab, Firmware(uefi=True)) == Firmware(uefi=True)


@pytest.mark.usefixtures("home")
def test_hosts_that_exist_cannot_change_their_firmware(certificate: Path) -> None:
    lab = lab_with(Firmware(uefi=True, secure_boot=True), VM)
    with pytest.raises(LabUnavailable, match="boot by UEFI with Secure Boot, not BIOS") as caught:
        lifecycle.up("one", firmware=Firmware())
    assert "gdsdeploy lab down --lab one" in (caught.value.hint or "")
    other = Firmware(uefi=True, secure_boot=True, moks=(certificate.read_bytes(),))
    with pytest.raises(LabUnavailable, match="with other Machine Owner Keys"):
        lifecycle.up("one", firmware=other)
    assert lab.firmware.moks == ()


@pytest.mark.usefixtures("home")
def test_a_lab_without_vm_hosts_may_still_choose() -> None:
    lab = lab_with(Firmware(), HostRecord("build1", "light", 22001, "/c/root"))
    assert lifecycle._firmware(lab, Firmware(uefi=True)) == Firmware(uefi=True)


@pytest.mark.usefixtures("home")
def test_hosts_get_the_labs_keys_before_the_others(certificate: Path) -> None:
    mok = certificate.read_bytes()
    lab = lab_with(Firmware(uefi=True, secure_boot=True, moks=(mok,)), VM)
    lab.update(lambda value: value.update(uefi={"root": "/c/uefi/root", "moks": ["aa"], "db": ["bb"]}))
    (host,) = lab.hosts()
    assert isinstance(host, VmHost)
    assert host.uefi is not None
    assert (host.uefi.root, host.uefi.grub) == (Path("/c/uefi/root"), "grub")
    assert (host.uefi.secure_boot, host.uefi.moks, host.uefi.db) == (True, (b"\xaa", mok), (b"\xbb",))
    lab.update(lambda value: value.update(firmware=Firmware().record()))
    (host,) = lab.hosts()
    assert isinstance(host, VmHost)
    assert host.uefi is None
