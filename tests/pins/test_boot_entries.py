"""Kernel arguments under the real kernel-install: a later kernel inherits them, and a removal finds them there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.unit.host.apply.boot_hosts import RELEASE, TOKEN, rhel, systemd_boot

NEWER = "6.12.117-1"
WORDS = ["iommu=pt", "nvme_core.multipath=N"]
IN_PLACE = """
set +e
mount -t tmpfs tmpfs /boot
mount -t tmpfs tmpfs /run
mkdir -p /boot/TOKEN
cp -r "$1/." /
program=$2
call() { python3 -I -S "$program" "$@"; }
cd "$(mktemp -d)" || exit
call apply --json --desired /etc/desired.json > first
kernel-install add NEWER /boot/vmlinuz-NEWER > kernel-install.txt 2>&1
cat /boot/loader/entries/TOKEN-NEWER.conf > entry
call apply --json --desired /etc/desired.json > second
call remove --json boot_arguments > removed
grep -rs iommu=pt /boot/loader /etc/kernel > left
cat /boot/loader/entries/TOKEN-NEWER.conf > entry-after
cat /etc/kernel/cmdline > cmdline
for name in *; do echo "== $name"; cat $name; echo; done
"""


@pytest.mark.skipif(shutil.which("kernel-install") is None, reason="kernel-install isn't installed")
@pytest.mark.parametrize("loader", ["GRUB of RHEL", "systemd-boot"])
def test_a_kernel_that_kernel_install_adds_has_the_arguments(tmp_path: Path, loader: str) -> None:
    root, program = tmp_path / "root", tmp_path / "gdsdeploy-host.pyz"
    hostapp.build(program)
    _ = rhel(root) if loader.startswith("GRUB") else systemd_boot(root, "/boot")
    shutil.rmtree(root / "proc")
    before = (root / "etc/kernel/cmdline").read_text()
    resource = {"resource": "boot_arguments", "desired": {"kernel_release": RELEASE, "arguments": WORDS}}
    files = {
        "etc/desired.json": json.dumps({"version": 1, "resources": [resource]}),
        "etc/kernel/install.conf": "layout=bls\n",
        "etc/kernel/entry-token": f"{TOKEN}\n",
        f"boot/vmlinuz-{NEWER}": "imitated\n",
        f"usr/lib/modules/{NEWER}/modules.order": "",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    script = IN_PLACE.replace("TOKEN", TOKEN).replace("NEWER", NEWER)
    argv = in_place(script, root, program, over=("etc", "usr", "var", "tmp"))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=300, check=False)
    parts = dict(re.findall(r"^== (\S+)\n(.*?)\n(?=^== |\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    assert json.loads(parts["first"])["error"] is None, parts
    options = re.search(r"^options\s+(.*)$", parts["entry"], re.MULTILINE)
    assert options is not None, parts["kernel-install.txt"]
    assert set(WORDS) <= set(options[1].split())
    second = json.loads(parts["second"])
    assert (second["error"], second["resources"][0]["changes"]) == (None, [])
    assert parts["left"] == ""
    assert parts["cmdline"] == before
    assert set(options[1].split()) - set(parts["entry-after"].split()) == set(WORDS)
