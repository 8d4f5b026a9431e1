"""Real UEFI Secure Boot on a VM host: what its kernel refuses, and a key that a person enrols at the console."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdsdeploy import lab as labs
from gdsdeploy.errors import LabUnavailable
from gdsdeploy.lab import Lab, LabHost, guest, mokmanager
from gdsdeploy.lab.signing import ModuleKey, make_key, unsigned
from tests.lab.program import gdsdeploy
from tests.naming import unique

pytestmark = pytest.mark.lab

LOAD = (Path(__file__).parent / "load_modules.py").read_text()
#: Modules of the kernel that aren't loaded and that nothing needs.
OWN = "lib/crc7.ko.xz"
#: Not in /tmp, which a reboot empties.
FOLDER = "/var/tmp/modules"
PASSWORD = "ten-letter"
#: Passes the password to mokutil as a person types it, and leaves it where `gdsdeploy kmod enrol` does.
REQUEST = f"""
umask 077 && echo {PASSWORD} >{mokmanager.ONE_TIME} && cat >/var/tmp/key.der
printf '{PASSWORD}\\n{PASSWORD}\\n' | mokutil --import /var/tmp/key.der
"""


@dataclass(frozen=True)
class Machine:
    """A VM host with Secure Boot; its Machine Owner Key ``owner``, and ``stranger``, a key that it doesn't have."""

    lab: Lab
    host: LabHost
    owner: ModuleKey
    stranger: ModuleKey

    def refusals(self, *names: str) -> dict[str, str]:
        """Name of a module → "loaded", or the name of the error."""
        argv = ["sudo", "python3", "-", *(f"{FOLDER}/{name}.ko" for name in names)]
        answers = json.loads(self.host.ssh(argv, input=LOAD, timeout=300).stdout)
        return {Path(name).stem: errno.errorcode.get(answer["errno"], "loaded") for name, answer in answers.items()}

    def request(self, key: ModuleKey) -> None:
        """Ask the firmware to enrol ``key``."""
        self.host.ssh(["sudo", "sh", "-euc", REQUEST], input=key.certificate.read_bytes())

    def root(self, line: str) -> str:
        """Output of a line of root's shell."""
        return self.host.ssh(["sudo", "sh", "-c", line], ok=range(255)).stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("keys")
    keys = [ModuleKey(folder / f"{name}.pem", folder / f"{name}.der") for name in ("owner", "stranger")]
    for key in keys:
        make_key(key.key, key.certificate, f"Test's {key.key.stem}")
    name = unique("secure-boot")
    try:
        gdsdeploy("lab", "up", "--lab", name, "--light", "0", "--secure-boot", "--mok", keys[0].certificate, "--yes")
        lab = Lab(name)
        machine = Machine(lab, lab.host("gpu1"), *keys)
        write_modules(machine)
        yield machine
    finally:
        labs.down(Lab(name))


def write_modules(machine: Machine) -> None:
    """Put one module, signed in several ways, into FOLDER of the host."""
    release = machine.host.ssh(["uname", "-r"]).stdout.strip()
    packed = machine.host.ssh(["base64", f"/lib/modules/{release}/kernel/{OWN}"]).stdout
    own = lzma.decompress(base64.b64decode(packed))
    plain = unsigned(own)
    signed = machine.owner.sign(plain)
    assert signed.count(b"license=GPL") == 1
    modules = {
        "own": own,
        "plain": plain,
        "owner": signed,
        "changed": signed.replace(b"license=GPL", b"license=gPL"),
        "stranger": machine.stranger.sign(plain),
    }
    archive = guest.tar({f"{FOLDER[1:]}/{name}.ko": (data, 0o644) for name, data in modules.items()})
    machine.host.ssh(["sudo", "tar", "--extract", "--directory=/"], input=archive)


def test_the_host_booted_by_shim_with_the_owners_key(machine: Machine) -> None:
    assert machine.root("mokutil --sb-state") == "SecureBoot enabled\n"
    assert "[integrity]" in machine.root("cat /sys/kernel/security/lockdown")
    keys = machine.root("cat /proc/keys")
    for name in ("Test's owner", "Key of gdsdeploy's lab for kernel modules", "Debian Secure Boot CA"):
        assert f" {name}: " in keys
    assert "Test's stranger" not in keys
    # Debian's key, the lab's and the owner's.
    assert ".machine: 3" in keys
    assert "/boot/efi vfat" in machine.root("findmnt --noheadings --output TARGET,FSTYPE /boot/efi | tr -s ' '")
    assert "BootCurrent" in machine.root("efibootmgr")


def test_the_kernel_loads_only_what_a_key_of_its_firmware_signed(machine: Machine) -> None:
    assert machine.refusals("own", "plain", "owner", "changed", "stranger") == {
        "own": "loaded",
        "plain": "EKEYREJECTED",
        "owner": "loaded",
        "changed": "EKEYREJECTED",
        "stranger": "EKEYREJECTED",
    }
    messages = machine.root("dmesg")
    assert "Loading of unsigned module is rejected" in messages
    assert "Loading of module with unavailable key is rejected" in messages


def test_the_stand_in_is_signed_with_the_labs_key(machine: Machine) -> None:
    labs.plug(machine.lab, machine.host, machine.host.ssh(["uname", "-r"]).stdout.strip())
    assert "0680: 10de:22a3" in machine.host.ssh(["lspci", "-n"]).stdout


def test_without_a_request_mokmanager_is_not_started(machine: Machine) -> None:
    with pytest.raises(LabUnavailable, match="gpu1 has no pending request to delete a key"):
        mokmanager.operate(machine.lab, "gpu1", "delete")


def test_a_request_that_nobody_answers_is_dropped(machine: Machine) -> None:
    machine.request(machine.stranger)
    done = gdsdeploy("lab", "mokmanager", "gpu1", "--lab", machine.lab.name, "--action", "nothing")
    assert "not enrolled: shim dropped the request" in done.stderr + done.stdout
    assert "SHA1" not in machine.root("mokutil --list-new")
    assert "is not enrolled" in machine.root("mokutil --test-key /var/tmp/key.der")


def test_a_key_enrolled_at_the_console_signs_for_the_kernel(machine: Machine) -> None:
    assert machine.refusals("stranger") == {"stranger": "EKEYREJECTED"}
    machine.request(machine.stranger)
    done = gdsdeploy("lab", "mokmanager", "gpu1", "--lab", machine.lab.name)
    # As MokManager's screen shows it.
    pending = hashlib.sha1(machine.stranger.certificate.read_bytes()).hexdigest()
    assert f"{pending} enrolled" in done.stderr + done.stdout
    assert machine.refusals("stranger", "owner", "plain") == {
        "stranger": "loaded",
        "owner": "loaded",
        "plain": "EKEYREJECTED",
    }
