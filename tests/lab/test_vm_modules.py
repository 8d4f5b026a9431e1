"""The audit of a module agrees with the real kernel.

Goes on with the machines of test_story.py: modules that its builder really built, damaged one by one, audited on the VM
host first and then handed to its kernel.  Enforced signatures are in test_vm_secure_boot.py.
"""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from gdslab import LabHost
from tests.lab.image import Image

pytestmark = pytest.mark.lab

SCRIPTS = Path(__file__).parent
PROGRAM, FOLDER = "/tmp/gdsdeploy-host.pyz", "/tmp/bad"
#: A module of the kernel that isn't loaded and that nothing needs.
OWN = "kernel/lib/crc7.ko.xz"

#: Unpacks the kernel's own module, and changes what it says about itself: one letter after it was signed.
CHANGED = f"""
import lzma, sys
data = lzma.open(sys.argv[1]).read()
open("{FOLDER}/own.ko", "wb").write(data)
old = b"license=GPL"
assert old in data
open("{FOLDER}/changed.ko", "wb").write(data.replace(old, b"license=gPL", 1))
"""


@pytest.fixture(scope="module")
def host(golden: Image, booted: LabHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """The VM host with the modules in FOLDER, the driver loaded and nvidia-fs not."""
    lab, machine = golden.lab, booted
    builder = lab.host("build1")
    release = machine.ssh(["uname", "-r"]).stdout.strip()
    program = tmp_path_factory.mktemp("program") / "gdsdeploy-host.pyz"
    hostapp.build(program)
    for each in (builder, machine):
        each.ssh(["tee", PROGRAM], input=program.read_bytes())
    script = (SCRIPTS / "bad_modules.py").read_text()
    builder.ssh(["sudo", "python3", "-", PROGRAM, release, FOLDER], input=script, timeout=300)
    argv = ["ssh", "-F", str(lab.ssh_config), builder.name, "sudo", "tar", "-cC", FOLDER, "--exclude=owner.*", "."]
    packed = subprocess.run(argv, capture_output=True, check=True, timeout=120).stdout
    machine.ssh(["sh", "-c", f"mkdir -p {FOLDER} && tar -xC {FOLDER}"], input=packed)
    # Without it the audit gathers symbol versions from hundreds of modules, for minutes where the CPU is emulated.
    symvers = subprocess.run(
        ["ssh", "-F", str(lab.ssh_config), builder.name, "cat", f"/lib/modules/{release}/build/Module.symvers"],
        capture_output=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    machine.ssh(["sudo", "tee", f"/boot/symvers-{release}"], input=symvers)
    machine.ssh(["python3", "-", f"/lib/modules/{release}/{OWN}"], input=CHANGED)
    ready = (
        "rmmod nvidia_fs 2>/dev/null; [ -d /sys/module/nvidia ] || "
        f"{{ modprobe -a $(modinfo -F depends {FOLDER}/driver.ko | tr , ' ') && insmod {FOLDER}/driver.ko; }}"
    )
    machine.ssh(["sudo", "sh", "-c", ready])
    yield machine
    machine.ssh(["sudo", "rm", f"/boot/symvers-{release}"])


def audit_errors(host: LabHost, *names: str) -> dict[str, set[str]]:
    """File → ids of the errors that the audit finds in it."""
    release = host.ssh(["uname", "-r"]).stdout.strip()
    # One by one, each with the driver that is to be there: files that are audited together are taken for one stack.
    options = ["--kernel", release, "--peermem", f"{FOLDER}/driver.ko"]
    words = json.dumps([[*options, f"{FOLDER}/{name}.ko"] for name in names])
    script = (SCRIPTS / "audit_modules.py").read_text()
    text = host.ssh(["python3", "-", PROGRAM, words], input=script, timeout=600).stdout
    results: list[list[dict[str, Any]]] = json.loads(text)
    return {
        Path(result["file"]).stem: {answer["id"] for answer in result["findings"] if answer["severity"] == "error"}
        for _, result in results
    }


def refusals(host: LabHost, *names: str) -> dict[str, tuple[int, str]]:
    """File → errno of loading it, and what the kernel wrote."""
    argv = ["sudo", "python3", "-", *(f"{FOLDER}/{name}.ko" for name in names)]
    answers = json.loads(host.ssh(argv, input=(SCRIPTS / "load_modules.py").read_text(), timeout=600).stdout)
    return {Path(name).stem: (answer["errno"], "\n".join(answer["kernel"])) for name, answer in answers.items()}


def test_damaged_modules_are_caught_beforehand_and_refused_by_the_kernel(host: LabHost) -> None:
    names = ("good", "crc", "vermagic", "truncated", "stub", "malformed", "changed", "own")
    assert audit_errors(host, *names) == {
        "good": set(),
        "crc": {"symbol-crc"},
        "vermagic": {"vermagic"},
        "truncated": {"unreadable"},
        "stub": {"peermem-stub"},
        "malformed": {"signature-malformed"},
        "changed": {"signature-wrong"},
        "own": set(),
    }
    answers = refusals(host, *names)
    numbers = {name: errno.errorcode.get(number, "loaded") for name, (number, _) in answers.items()}
    assert numbers == {
        "good": "loaded",
        "crc": "EINVAL",
        "vermagic": "ENOEXEC",
        "truncated": "ENOEXEC",
        "stub": "EINVAL",
        "malformed": "EBADMSG",
        "changed": "EKEYREJECTED",
        "own": "loaded",
    }
    assert "disagrees about version of symbol nvidia_p2p_get_pages" in answers["crc"][1]
    assert "version magic" in answers["vermagic"][1]
    assert "should be" in answers["vermagic"][1]
