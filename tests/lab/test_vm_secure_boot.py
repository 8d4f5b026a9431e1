"""Real UEFI Secure Boot on a VM host: what the audit says beforehand of each wrong state, and the kernel's answer.

The states come one after the other on one host, whose firmware changes: a person at its console enrols and deletes
keys, and tests change its variables while it is off.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import lzma
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy.zipapp import hostapp
from gdslab import Lab, LabHost, archive as archives, guest, lifecycle, mokmanager
from gdslab.qemu import VmHost
from gdslab.signing import ModuleKey, make_key, unsigned
from tests.lab.program import PATIENCE, gdsdeploy
from tests.naming import unique
from tests.unit.host.kmod.kmod_keys import SHIM, signature_list

pytestmark = pytest.mark.lab

LOAD = (Path(__file__).parent / "load_modules.py").read_text()
AUDIT = (Path(__file__).parent / "audit_modules.py").read_text()
#: Modules of the kernel that aren't loaded and that nothing needs.
OWN = "lib/crc7.ko.xz"
#: Not in /tmp, which a reboot empties.
FOLDER = "/var/tmp/modules"
PROGRAM, KEY = f"{FOLDER}/gdsdeploy-host.pyz", "/var/tmp/key.der"
#: Whoever puts a variable into the firmware.
OWNER = "b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c0005"


@dataclass(frozen=True)
class Machine:
    """A VM host with Secure Boot and its Machine Owner Key ``owner``; it doesn't have ``stranger`` and ``vendor``."""

    lab: Lab
    host: LabHost
    owner: ModuleKey
    stranger: ModuleKey
    vendor: ModuleKey

    def outcomes(self, *names: str) -> dict[str, tuple[list[str], str]]:
        """Module → what the audit says of its signature beforehand, and "loaded" or the error of loading it."""
        audits = {
            Path(audit["file"]).stem: [f"{finding['severity']} {finding['id']}" for finding in audit["findings"]]
            for audit in self.audits(*names)
        }
        argv = ["sudo", "python3", "-", *(f"{FOLDER}/{name}.ko" for name in names)]
        answers = json.loads(self.host.ssh(argv, input=LOAD, timeout=PATIENCE).stdout)
        loads = {Path(name).stem: errno.errorcode.get(answer["errno"], "loaded") for name, answer in answers.items()}
        return {name: (audits[name], loads[name]) for name in names}

    def audits(self, *names: str) -> list[dict[str, Any]]:
        """The audits of modules, with findings about their signatures only."""
        # One by one: files that are audited together are one stack.
        words = json.dumps([[f"{FOLDER}/{name}.ko"] for name in names])
        text = self.host.ssh(["sudo", "python3", "-", PROGRAM, words], input=AUDIT, timeout=PATIENCE).stdout
        results: list[dict[str, Any]] = [audit for (audit,) in json.loads(text)]
        for audit in results:
            audit["findings"] = [each for each in audit["findings"] if "sign" in each["id"]]
        return results

    def kmod(self, *words: str) -> dict[str, Any]:
        argv = ["sudo", "python3", "-I", "-S", PROGRAM, "kmod", *words, "--json"]
        return dict(json.loads(self.host.ssh(argv, timeout=PATIENCE).stdout))

    def request(self, key: ModuleKey) -> None:
        """Ask the firmware to enrol ``key``, as an administrator does."""
        self.host.ssh(["sudo", "tee", KEY], input=key.certificate.read_bytes())
        assert self.kmod("enrol", "--certificate", KEY)["state"] == "pending"

    def state(self) -> str:
        """The state of the key that was requested last."""
        return str(self.kmod("enrol", "--certificate", KEY, "--check")["state"])

    def boot(self, *options: str, variables: Sequence[dict[str, Any]] = (), store: str = "") -> None:
        """Boot with changed variables of the firmware; options: virt-fw-vars'.  store: OVMF's, to begin with."""
        self.host.stop()
        host = self.lab.host("gpu1")
        assert isinstance(host, VmHost)
        assert host.uefi is not None
        path, work = host.directory / "VARS.fd", host.directory / "variables.json"
        if store:
            shutil.copyfile(host.uefi.root / "usr/share/OVMF" / store, path)
        else:
            work.write_text(json.dumps({"version": 2, "variables": list(variables)}))
            host.uefi.change_variables(path, [*options, "--set-json", str(work)])
        lifecycle.start_vms(self.lab, archives.controller_archive())
        # Loaded modules are gone, and so is what was in memory.
        write_modules(self)

    def root(self, line: str) -> str:
        """Output of a line of root's shell."""
        return self.host.ssh(["sudo", "sh", "-c", line], ok=range(255)).stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("keys")
    keys = [ModuleKey(folder / f"{name}.pem", folder / f"{name}.der") for name in ("owner", "stranger", "vendor")]
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
    """Put one module, signed in several ways, and the program on hosts into FOLDER of the host."""
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
        "malformed": signed[:-60] + signed[-40:],
        "stranger": machine.stranger.sign(plain),
        "vendor": machine.vendor.sign(plain),
    }
    files: dict[str, tuple[str | bytes, int]] = {
        f"{FOLDER[1:]}/{name}.ko": (data, 0o644) for name, data in modules.items()
    }
    files[PROGRAM[1:]] = (hostapp.build(), 0o644)
    machine.host.ssh(["sudo", "tar", "--extract", "--directory=/"], input=guest.tar(files))


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
    assert machine.outcomes("own", "plain", "owner", "changed", "malformed", "stranger", "vendor") == {
        "own": ([], "loaded"),
        "plain": (["error unsigned"], "EKEYREJECTED"),
        "owner": ([], "loaded"),
        "changed": (["error signature-wrong"], "EKEYREJECTED"),
        "malformed": (["error signature-malformed"], "EBADMSG"),
        "stranger": (["error signature-key"], "EKEYREJECTED"),
        "vendor": (["error signature-key"], "EKEYREJECTED"),
    }
    messages = machine.root("dmesg")
    assert "Loading of unsigned module is rejected" in messages
    assert "Loading of module with unavailable key is rejected" in messages


def test_the_stand_in_is_signed_with_the_labs_key(machine: Machine) -> None:
    labs.plug(machine.lab, machine.host, machine.host.ssh(["uname", "-r"]).stdout.strip())
    assert "0680: 10de:22a3" in machine.host.ssh(["lspci", "-n"]).stdout


def test_a_key_that_is_deleted_at_the_console_signs_no_more(machine: Machine) -> None:
    """That a key is enrolled at the console is in test_secure_boot_story.py."""
    machine.host.ssh(["sudo", "tee", KEY], input=machine.owner.certificate.read_bytes())
    assert machine.kmod("unenrol", "--certificate", KEY)["state"] == "leaving"
    assert machine.outcomes("owner") == {"owner": (["warning signature-key-leaving"], "loaded")}
    done = gdsdeploy("lab", "mokmanager", "gpu1", "--lab", machine.lab.name, "--action", "delete")
    # As MokManager's screen shows it.
    fingerprint = hashlib.sha1(machine.owner.certificate.read_bytes()).hexdigest()
    assert f"{fingerprint} deleted" in done.stderr + done.stdout
    assert machine.state() == "absent"
    assert machine.outcomes("owner", "own") == {
        "owner": (["error signature-key"], "EKEYREJECTED"),
        "own": ([], "loaded"),
    }


def test_a_key_of_the_firmware_counts_and_debians_kernel_heeds_no_revocation(machine: Machine) -> None:
    machine.request(machine.stranger)
    begin = machine.host.log.stat().st_size
    add = ("--add-db", OWNER, str(machine.vendor.certificate), "--add-mok", OWNER, str(machine.owner.certificate))
    machine.boot(*add, variables=[revoked(machine.owner)])
    assert machine.outcomes("vendor", "owner", "plain", "stranger") == {
        "vendor": ([], "loaded"),
        "owner": ([], "loaded"),
        "plain": (["error unsigned"], "EKEYREJECTED"),
        "stranger": (["error signature-key"], "EKEYREJECTED"),
    }
    # No key was pressed in that boot.
    screen = mokmanager.compact(machine.host.log.read_bytes()[begin:].decode(errors="replace"))
    assert mokmanager.compact("Press any key to perform MOK management") in screen
    assert machine.state() == "absent", "shim dropped the request"


def test_with_shims_validation_off_the_kernel_has_no_key_of_the_owner(machine: Machine) -> None:
    machine.boot(variables=[variable("MokSBState", b"\x01")])
    assert "validation is disabled in shim" in machine.root("mokutil --sb-state")
    assert machine.outcomes("plain", "owner", "changed", "stranger") == {
        "plain": (["note unsigned"], "loaded"),
        "owner": ([], "loaded"),
        "changed": (["note signature-wrong"], "loaded"),
        "stranger": (["note signature-key"], "loaded"),
    }
    machine.root("echo Y >/sys/module/module/parameters/sig_enforce")
    assert machine.outcomes("own", "plain", "owner") == {
        "own": ([], "loaded"),
        "plain": (["error unsigned"], "EKEYREJECTED"),
        "owner": (["error signature-key"], "EKEYREJECTED"),
    }


def test_in_setup_mode_everything_loads(machine: Machine) -> None:
    machine.boot(store="OVMF_VARS_4M.fd")
    assert "Platform is in Setup Mode" in machine.root("mokutil --sb-state")
    (audit,) = machine.audits("plain")
    (finding,) = audit["findings"]
    assert finding["message"].endswith("Secure Boot is off: the firmware is in Setup Mode, without a platform key")
    assert machine.outcomes("plain", "changed") == {
        "plain": (["note unsigned"], "loaded"),
        # Without Secure Boot, shim keeps no list of the owner's keys here.
        "changed": (["note signature-key"], "loaded"),
    }


def variable(name: str, content: bytes) -> dict[str, Any]:
    """A variable of shim, as virt-fw-vars reads it: kept, and hidden from the running system."""
    return {"name": name, "guid": SHIM, "attr": 3, "data": content.hex()}


def revoked(key: ModuleKey) -> dict[str, Any]:
    """Shim's list of keys that it refuses; Debian builds its kernels without CONFIG_SYSTEM_REVOCATION_LIST."""
    return variable("MokListX", signature_list(key.certificate.read_bytes()))
