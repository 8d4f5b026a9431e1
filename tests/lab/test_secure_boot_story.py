"""The whole chain under real UEFI Secure Boot: a fleet's key, the real modules, another key, and a rollout that enrols.

Goes on with the builder and the VM host of test_vm_modules.py, whose disk now boots by OVMF, shim and Debian's
signed GRUB.  The firmware begins with the fleet's key, as that of hosts which somebody has prepared.  The builder signs
what it has built, and compiles nothing again.  The tests build on each other, in order.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from gdsdeploy import paths
from gdsdeploy.model.lock import Lock
from gdslab import archive as archives, lifecycle, mokmanager
from gdslab.firmware import Firmware
from gdslab.host import LabHost
from gdslab.mokmanager import Console, Request
from gdslab.state import Lab
from tests.lab.image import Image
from tests.lab.program import PATIENCE, gdsdeploy
from tests.lab.rollouts import PROGRAM, outcome, steps, upgraded_lock, words
from tests.lab.two_stacks import fleet

pytestmark = pytest.mark.lab

KEYS = "/etc/gdsdeploy-keys"
OLD_KEY, NEW_KEY = "modules", "next"
ROLLOUT = {"canary": {"hosts": ["gpu1"], "soak": "1s"}, "console": {"timeout": "20m"}, "reboot_timeout": "15m"}


@dataclass(frozen=True)
class Chain:
    """The lab, its lock, and the fleet's first key."""

    lab: Lab
    lock: Lock
    certificate: bytes

    @property
    def host(self) -> LabHost:
        return self.lab.host("gpu1")

    def root(self, script: str, name: str = "gpu1") -> str:
        """Output of a script that root runs."""
        return self.lab.host(name).ssh(["sudo", "sh", "-c", script], ok=range(255), timeout=PATIENCE).stdout

    def findings(self) -> dict[str, dict[str, Any]]:
        report = json.loads(gdsdeploy("validate", self.lab.fleet_path, "--limit", "gpu1", "--json").stdout)
        return {finding["check"]: finding for finding in report["hosts"]["gpu1"]["findings"]}

    def builds_are_signed(self) -> bool:
        """Whether all modules on the builder have the signature that its settings name, by its own program."""
        argv = [*PROGRAM, "kmod", "sign", "--check", "--kernel", self.lock.targets["vm"].kernel.release, "--json"]
        answer = json.loads(self.lab.host("build1").ssh(argv, timeout=PATIENCE).stdout)
        assert len(answer["modules"]) >= 2
        return not answer["changed"]

    def signer(self) -> str:
        return self.root("modinfo --field signer nvidia-fs").strip()


def write(lab: Lab, key: str) -> None:
    """The fleet file: the VM host, and the builder that signs with ``key``."""
    value = fleet("new", lab, ROLLOUT)
    profile = value["profiles"]["vm"]
    (builder,) = value["builders"].values()
    builder["profile"] = "vm"
    profile |= {"builder": "build1", "signing": {"certificate": f"{KEYS}/{key}.der", "key": f"{KEYS}/{key}.key"}}
    profile["gate"] |= {"measured_boot": True}
    value["profiles"] = {"vm": profile}
    value["hosts"] = {name: host for name, host in value["hosts"].items() if name == "gpu1"}
    lab.fleet_path.write_text(yaml.safe_dump(value, sort_keys=False))


def make_key(lab: Lab, name: str) -> bytes:
    """A key on the builder; its certificate (DER)."""
    builder = lab.host("build1")
    argv = [*PROGRAM, "kmod", "keygen", "--name", f"Fleet {name}"]
    argv += ["--key", f"{KEYS}/{name}.key", "--certificate", f"{KEYS}/{name}.der", "--json"]
    answer = json.loads(builder.ssh(argv, timeout=120).stdout)
    assert answer["certificate"] == f"{KEYS}/{name}.der"
    command = ["ssh", "-F", str(lab.ssh_config), "build1", "sudo", "cat", f"{KEYS}/{name}.der"]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def chain(golden: Image, booted: LabHost) -> Chain:
    """The VM host under Secure Boot, with the fleet's key enrolled, and a builder that has signed its modules."""
    lab = golden.lab
    certificate = make_key(lab, OLD_KEY)
    write(lab, OLD_KEY)
    lock = upgraded_lock(lab.fleet_path)
    gdsdeploy("provision", lab.fleet_path, "--limit", "build1")
    booted.ssh(["sudo", "sync"])
    booted.stop()
    # A host of a BIOS until now.
    record = Firmware(uefi=True, secure_boot=True, moks=(certificate,), tpm=True).record()
    lab.update(lambda value: value.update(firmware=record))
    lifecycle.start_vms(lab, archives.controller_archive())
    return Chain(lab, lock, certificate)


@pytest.fixture(scope="module")
def provisioned(chain: Chain) -> dict[str, Any]:
    """What provision did on the host."""
    done = gdsdeploy("provision", chain.lab.fleet_path, "--limit", "gpu1", "--json")
    return dict(json.loads(done.stdout)["hosts"]["gpu1"])


def test_the_host_boots_under_secure_boot(chain: Chain) -> None:
    assert chain.root("mokutil --sb-state") == "SecureBoot enabled\n"
    assert "[integrity]" in chain.root("cat /sys/kernel/security/lockdown")


def test_the_builder_signs_what_it_has_built(chain: Chain) -> None:
    assert chain.builds_are_signed()


def test_the_plan_sees_a_key_that_is_enrolled(chain: Chain) -> None:
    plan = json.loads(gdsdeploy("plan", chain.lab.fleet_path, "--limit", "gpu1", "--json", status=32).stdout)
    actions = plan["hosts"]["gpu1"]["actions"]
    assert {action["role"] for action in actions} >= {"gds_modules", "gds_secureboot"}
    assert "enrol" not in {action["kind"] for action in actions}


def test_the_real_modules_load_under_lockdown(chain: Chain, provisioned: dict[str, Any]) -> None:
    nvidia_fs = chain.lock.targets["vm"].nvidia_fs
    assert nvidia_fs is not None
    assert chain.root("cat /sys/module/nvidia_fs/version").strip() == nvidia_fs.version
    assert chain.lock.targets["vm"].driver.version in chain.root("cat /proc/driver/nvidia/version")
    assert chain.signer() == f"Fleet {OLD_KEY}"
    assert "module verification failed" not in chain.root("dmesg")


def test_the_host_passes_its_validation(chain: Chain, provisioned: dict[str, Any]) -> None:
    finding = chain.findings()["secure-boot.signatures"]
    assert finding["verdict"] == "pass"
    assert "Secure Boot is on, the kernel is locked down (integrity)" in finding["found"]
    plan = json.loads(gdsdeploy("plan", chain.lab.fleet_path, "--limit", "gpu1", "--json").stdout)
    assert plan["hosts"]["gpu1"]["state"] == "nothing to do"


def test_the_gate_records_the_state_of_the_boot(chain: Chain, provisioned: dict[str, Any]) -> None:
    record = json.loads(chain.root(f"{' '.join(PROGRAM[1:])} gate run --json"))
    assert record["measured"]["secure_boot"] == "on"
    assert len(record["measured"]["mok"]) == 64
    assert record["measured"]["bank"] == "sha256"
    assert len(record["measured"]["pcr7"]) == 64
    assert "problem" not in record["measured"]


@pytest.fixture(scope="module")
def signed_anew(chain: Chain, provisioned: dict[str, Any]) -> Chain:
    """The builder signs with the fleet's next key, which the host doesn't have, and compiles nothing."""
    certificate = make_key(chain.lab, NEW_KEY)
    write(chain.lab, NEW_KEY)
    compiled = "find /var/lib/dkms -name make.log -printf '%p %T@\\n' | sort"
    before = chain.root(compiled, "build1")
    gdsdeploy("provision", chain.lab.fleet_path, "--limit", "build1")
    assert chain.builds_are_signed()
    assert before
    assert chain.root(compiled, "build1") == before
    return replace(chain, certificate=certificate)


def test_a_host_without_the_key_is_refused_before_anything_is_drained(signed_anew: Chain) -> None:
    done = gdsdeploy("rollout", "start", signed_anew.lab.fleet_path, "--yes", status=50)
    assert "for 1 reason:" in done.stderr
    assert "gpu1: Secure Boot is on, and the firmware doesn't have the key of the modules" in done.stderr
    assert signed_anew.signer() == f"Fleet {OLD_KEY}"


class Person:
    """Somebody at a host's console, who waits for a rollout to reboot it."""

    def __init__(self, lab: Lab, name: str, fingerprint: str) -> None:
        self.error: BaseException | None = None
        self._lab, self._name = lab, name
        self._request = Request("enrol", (fingerprint,), ())
        self._screen = Console(lab.host(name))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            mokmanager.attend(self._screen, self._name, self._request, self._password())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _password(self) -> str:
        """The one-time password, as soon as the rollout has left it for this person."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for path in (paths.state() / "rollouts").glob(f"*/{self._name}.mok-password"):
                assert path.stat().st_mode & 0o777 == 0o600
                return path.read_text().strip()
            time.sleep(0.2)
        raise AssertionError("the rollout left no password")

    def leave(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def test_a_rollout_waits_for_a_person_and_the_host_gets_the_next_key(signed_anew: Chain) -> None:
    lab = signed_anew.lab
    # As MokManager's screen shows it.
    person = Person(lab, "gpu1", hashlib.sha1(signed_anew.certificate).hexdigest())
    done = gdsdeploy("rollout", "start", lab.fleet_path, "--enrol-keys", "--yes", "--json")
    person.leave()
    document = json.loads(gdsdeploy("rollout", "status", lab.fleet_path, "--json").stdout)
    assert document["phase"] == "finished"
    assert [wave["hosts"] for wave in document["waves"]] == [["build1"], ["gpu1"]]
    assert steps(document, "gpu1")[:3] == ["preflight", "drain", "enrol"]
    assert outcome(document, "gpu1") == "done", words(document, "gpu1")
    assert signed_anew.signer() == f"Fleet {NEW_KEY}"
    assert signed_anew.findings()["secure-boot.signatures"]["verdict"] == "pass"
    passwords = [*(paths.state() / "rollouts").glob("*/*.mok-password")]
    assert passwords == [], "the rollout forgets it"
    assert signed_anew.root("test -e /var/lib/gdsdeploy-mok-password; echo $?").strip() == "1"
    assert "gpu1 reboots now. At its console" in done.stderr
    assert "gpu1.mok-password" in done.stderr


def test_the_old_key_may_leave_once_no_module_needs_it(chain: Chain, signed_anew: Chain) -> None:
    host = signed_anew.host
    for name, key in (("old", chain), ("next", signed_anew)):
        host.ssh(["sudo", "tee", f"/root/{name}.der"], input=key.certificate)
    unenrol = [*PROGRAM, "kmod", "unenrol", "--json", "--certificate"]
    refused = host.ssh([*unenrol, "/root/next.der"], ok=range(255))
    assert "would no longer load without it" in refused.stdout + refused.stderr
    # What follows at the console is in test_vm_secure_boot.py.
    answer = json.loads(host.ssh([*unenrol, "/root/old.der"], timeout=PATIENCE).stdout)
    assert (answer["state"], answer["changed"]) == ("leaving", True)
    withdrawn = json.loads(host.ssh([*PROGRAM, "kmod", "enrol", "--withdraw", "--json"], timeout=PATIENCE).stdout)
    assert withdrawn["withdrawn"] == [f"Fleet {OLD_KEY}"]
