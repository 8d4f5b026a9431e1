"""Kernel arguments under the real grub-mkconfig and the real kernel-install: set, shown, and taken out again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.unit.host.apply import boot_hosts
from tests.unit.host.apply.boot_hosts import TOKEN

RELEASE, OLDER, NEWER = "6.12.94+deb13-amd64", "6.12.90+deb13-amd64", "6.12.117-1"
WORDS = ["iommu=pt", "nvme_core.multipath=N", "pci=disable_acs_redir=pci:0:0"]
#: As in grub2-common.
UPDATE_GRUB = '#!/bin/sh\nset -e\nexec grub-mkconfig -o /boot/grub/grub.cfg "$@"\n'
SET_DEFAULT = '#!/bin/sh\nexec grub-editenv /boot/grub/grubenv set "saved_entry=$1"\n'
#: Which disk has a folder is all that GRUB's scripts ask it; here the folders are in memory.
GRUB_PROBE = """#!/bin/sh
for word; do case "$word" in --target=*) target=${word#--target=} ;; esac; done
case "$target" in
    device) echo /dev/vda1 ;;
    fs_uuid) echo 0f3c ;;
    fs) echo ext2 ;;
    drive) echo "(hd0,gpt1)" ;;
    partmap) echo gpt ;;
esac
"""
#: Everything that is written lands in memory, above this machine's own folders, and is gone with the namespace.
BEGIN = """
set +e
mount -t tmpfs tmpfs /boot
mount -t tmpfs tmpfs /run
cp -r "$1/." /
program=$2
cd "$(mktemp -d)" || exit
"""
#: Of a machine with GRUB.
FILES = {
    "etc/default/grub": 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="console=ttyS0"\n',
    "etc/default/grub.d/other.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX net.ifnames=0"\n',
    "usr/sbin/update-grub": UPDATE_GRUB,
    "usr/sbin/grub-set-default": SET_DEFAULT,
    "usr/sbin/grub-probe": GRUB_PROBE,
    "boot/vmlinuz-" + RELEASE: "imitated\n",
    "boot/vmlinuz-" + OLDER: "imitated\n",
}
END = 'for name in *; do echo "== $name"; cat $name; echo; done'
ARGUMENTS = """
mkdir -p /boot/grub /var/lib/gdsdeploy
digest() { find /boot /etc/default /var/lib/gdsdeploy -type f | sort | xargs sha256sum; }
apply() { python3 -I -S "$program" apply --json --desired /etc/desired.json "$@"; }
update-grub 2> update-grub.txt
digest > before
apply --check > check
digest > checked
apply > first
cat /boot/grub/grub.cfg > grub.cfg
apply > second
python3 -I -S "$program" remove --json boot_arguments > removed
digest > after
"""
#: An administrator's saved entry, and entries by hand of which the first mentions the locked kernel.
OWN_DEFAULT = f"""
printf '%s\\n' '#!/bin/sh' 'exec tail -n +3 $0' \\
    "menuentry 'Rescue shell on {RELEASE}' {{" '  linux /vmlinuz-{RELEASE} root=UUID=0f3c ro init=/bin/bash' '}}' \\
    "menuentry 'Other system' {{" '  linux /vmlinuz-{RELEASE} root=UUID=ffff ro' '}}' > /etc/grub.d/09_custom
chmod 755 /etc/grub.d/09_custom
sed -i s/GRUB_DEFAULT=0/GRUB_DEFAULT=saved/ /etc/default/grub
mkdir -p /boot/grub /var/lib/gdsdeploy
update-grub 2>/dev/null
old=$(grep -o 'gnulinux-{OLDER}-advanced-[^ ]*' /boot/grub/grub.cfg | head -n 1 | tr -d "'")
top=$(grep -o 'gnulinux-advanced-[^ ]*' /boot/grub/grub.cfg | head -n 1 | tr -d "'")
grub-editenv /boot/grub/grubenv set "saved_entry=$top>$old"
boot() {{ python3 -I -S "$program" boot "$@" --json; }}
apply() {{ python3 -I -S "$program" apply --json --desired /etc/desired.json "$@"; }}
state() {{ sha256sum /boot/grub/grub.cfg; cat /boot/grub/grubenv; find /etc/default /var/lib/gdsdeploy; }}
state > before
boot default --kernel {RELEASE} > first
boot default --kernel {RELEASE} > second
boot show > between
apply > arguments
python3 -I -S "$program" remove --json boot_arguments > removed
mv /usr/sbin/update-grub /usr/sbin/update-grub.aside
printf '#!/bin/sh\\nexit 1\\n' > /usr/sbin/update-grub; chmod 755 /usr/sbin/update-grub
boot clear > failed
mv /usr/sbin/update-grub.aside /usr/sbin/update-grub
boot clear > cleared
boot clear > again
state > after
"""
#: A kernel whose package made no entry.
KERNEL = f"""
mkdir -p /boot/grub
mv /boot/vmlinuz-{RELEASE} /tmp/kernel
update-grub 2>/dev/null
mv /tmp/kernel /boot/vmlinuz-{RELEASE}
boot() {{ python3 -I -S "$program" boot "$@" --json; }}
boot default --kernel {RELEASE} --check > check
boot show > before
boot default --kernel {RELEASE} > first
boot show > after
boot default --kernel {RELEASE} > second
"""
#: A later kernel, by kernel-install.
INSTALL = """
mkdir -p /boot/TOKEN
call() { python3 -I -S "$program" "$@"; }
call apply --json --desired /etc/desired.json > first
kernel-install add NEWER /boot/vmlinuz-NEWER > kernel-install.txt 2>&1
cat /boot/loader/entries/TOKEN-NEWER.conf > entry
call apply --json --desired /etc/desired.json > second
call remove --json boot_arguments > removed
grep -rs iommu=pt /boot/loader /etc/kernel > left
cat /boot/loader/entries/TOKEN-NEWER.conf > entry-after
cat /etc/kernel/cmdline > cmdline
"""


@pytest.mark.skipif(shutil.which("grub-mkconfig") is None, reason="grub-common isn't installed")
@pytest.mark.parametrize("loses", [False, True], ids=["kept", "another file sets the variable as a whole"])
def test_arguments_go_through_the_scripts_of_grub(tmp_path: Path, loses: bool) -> None:
    resource = {"resource": "boot_arguments", "desired": {"kernel_release": RELEASE, "arguments": WORDS}}
    files = {"etc/desired.json": json.dumps({"version": 1, "resources": [resource]})}
    if loses:
        files["etc/default/grub.d/zzz.cfg"] = 'GRUB_CMDLINE_LINUX="console=ttyS0"\n'
    parts = run(ARGUMENTS, FILES | files, tmp_path)
    assert parts["checked"] == parts["before"], "a check changed something"
    if loses:
        message = answer(parts["first"])["error"]["message"]
        assert message == "update-grub left iommu=pt out of /boot/grub/grub.cfg"
        assert "zz-gdsdeploy-boot.cfg" not in parts["after"]
        return
    first_changes = changes(parts["first"])
    assert first_changes == changes(parts["check"])
    assert [change["kind"] for change in first_changes] == ["write", "arguments"]
    lines = re.findall(r"^\s*linux\t(.*)$", parts["grub.cfg"], re.MULTILINE)
    assert len(lines) == 5, "the newest kernel stands there twice, and each of both has an entry for recovery"
    assert all(f" console=ttyS0 net.ifnames=0 {' '.join(WORDS)}" in line for line in lines)
    assert (changes(parts["second"]), answer(parts["second"])["error"]) == ([], None)
    assert len(changes(parts["removed"])) == 2
    assert without_record(parts["after"]) == parts["before"].splitlines()


@pytest.mark.skipif(shutil.which("grub-mkconfig") is None, reason="grub-common isn't installed")
def test_kernel_without_an_entry_gets_one(tmp_path: Path) -> None:
    parts = run(KERNEL, FILES, tmp_path)
    assert answer(parts["check"])["changes"] == ["/boot/grub/grub.cfg (update-grub)"]
    assert answer(parts["before"])["default"] == OLDER
    assert answer(parts["first"])["changed"]
    assert answer(parts["after"])["default"] == RELEASE
    assert not answer(parts["second"])["changed"]


@pytest.mark.skipif(shutil.which("grub-mkconfig") is None, reason="grub-common isn't installed")
def test_an_administrators_default_comes_back_also_after_a_removal_that_failed(tmp_path: Path) -> None:
    resource = {"resource": "boot_arguments", "desired": {"kernel_release": RELEASE, "arguments": WORDS}}
    files = {"etc/desired.json": json.dumps({"version": 1, "resources": [resource]})}
    parts = run(OWN_DEFAULT, FILES | files, tmp_path)
    assert f">gnulinux-{RELEASE}-advanced-" in answer(parts["first"])["entry"]
    assert (answer(parts["between"])["default"], answer(parts["second"])["changed"]) == (RELEASE, False)
    assert answer(parts["arguments"])["error"] is None, "entries by hand lack the arguments"
    assert "failed" not in parts or not parts["failed"].strip()
    assert answer(parts["cleared"])["changed"]
    assert answer(parts["cleared"])["kernel"] == OLDER
    assert not answer(parts["again"])["changed"]
    assert without_record(parts["after"]) == parts["before"].splitlines()


@pytest.mark.skipif(shutil.which("kernel-install") is None, reason="kernel-install isn't installed")
@pytest.mark.parametrize("loader", ["GRUB of RHEL", "systemd-boot"])
def test_a_kernel_that_kernel_install_adds_has_the_arguments(tmp_path: Path, loader: str) -> None:
    root = tmp_path / "root"
    _ = boot_hosts.rhel(root) if loader.startswith("GRUB") else boot_hosts.systemd_boot(root, "/boot")
    shutil.rmtree(root / "proc")
    before = (root / "etc/kernel/cmdline").read_text()
    resource = {"resource": "boot_arguments", "desired": {"kernel_release": boot_hosts.RELEASE, "arguments": WORDS}}
    files = {
        "etc/desired.json": json.dumps({"version": 1, "resources": [resource]}),
        "etc/kernel/install.conf": "layout=bls\n",
        "etc/kernel/entry-token": f"{TOKEN}\n",
        f"boot/vmlinuz-{NEWER}": "imitated\n",
        f"usr/lib/modules/{NEWER}/modules.order": "",
    }
    parts = run(INSTALL.replace("TOKEN", TOKEN).replace("NEWER", NEWER), files, tmp_path)
    assert answer(parts["first"])["error"] is None, parts
    options = re.search(r"^options\s+(.*)$", parts["entry"], re.MULTILINE)
    assert options is not None, parts["kernel-install.txt"]
    assert set(WORDS) <= set(options[1].split())
    second = answer(parts["second"])
    assert (second["error"], second["resources"][0]["changes"]) == (None, [])
    assert parts["left"] == ""
    assert parts["cmdline"] == before
    assert set(options[1].split()) - set(parts["entry-after"].split()) == set(WORDS)


def run(script: str, files: dict[str, str], folder: Path) -> dict[str, str]:
    """Run a script on a machine with ``files`` and those below root; what it leaves in its folder, by name."""
    root, program = folder / "root", folder / "gdsdeploy-host.pyz"
    hostapp.build(program)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(0o755 if path.startswith("usr") else 0o644)
    argv = in_place(BEGIN + script + END, root, program, over=("etc", "usr", "var", "tmp"))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=300, check=False)
    parts = dict(re.findall(r"^== (\S+)\n(.*?)\n(?=^== |\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    assert "first" in parts, done.stderr
    return parts


def answer(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text)
    return value


def changes(text: str) -> list[dict[str, str]]:
    return [change for resource in answer(text)["resources"] for change in resource["changes"]]


def without_record(digests: str) -> list[str]:
    """A removal of one resource leaves the record of the others."""
    return [line for line in digests.splitlines() if not line.endswith("/before.json")]
