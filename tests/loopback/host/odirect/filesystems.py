"""Real filesystems in files, mounted in a mount namespace of their own; what is in it goes with its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Filesystem → size of the file it lies in, how it is made, options of its mount.
KINDS: dict[str, tuple[str, list[str], str]] = {
    "ext4": ("64M", ["mkfs.ext4", "-q", "-F"], "rw"),
    "ext4-journal": ("64M", ["mkfs.ext4", "-q", "-F"], "data=journal"),
    "ext4-inline": ("64M", ["mkfs.ext4", "-q", "-F", "-O", "inline_data"], "rw"),
    "ext4-encrypt": ("64M", ["mkfs.ext4", "-q", "-F", "-O", "encrypt"], "rw"),
    "ext4-readonly": ("64M", ["mkfs.ext4", "-q", "-F"], "ro"),
    "xfs": ("320M", ["mkfs.xfs", "-q", "-f"], "rw"),
    "btrfs": ("128M", ["mkfs.btrfs", "-q", "-f"], "rw"),
    "btrfs-compressed": ("128M", ["mkfs.btrfs", "-q", "-f"], "compress-force=zstd"),
}

PROGRAM = r"""
import contextlib, json, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
folder, kinds, body = sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
os.chdir(folder)
run = lambda *argv: subprocess.run(argv, check=True, capture_output=True)
run("mount", "--make-rprivate", "/")
run("mount", "-t", "tmpfs", "tests", folder)
os.chdir(folder)
for name, (size, make, options) in kinds.items():
    with open(name + ".img", "w") as file:
        file.truncate(int(size[:-1]) << 20)
    subprocess.run([*make, name + ".img"], check=True, capture_output=True, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
    os.mkdir(name)
    run("mount", "-o", "loop," + options, name + ".img", name)
answer = {}
exec(body)
print(json.dumps(answer))
"""  # noqa: E501


def inside(folder: Path, kinds: list[str], body: str, *words: str) -> Any:
    """What ``body`` put into ``answer``, run where each of ``kinds`` is mounted under its name in ``folder``."""
    chosen = json.dumps({name: KINDS[name] for name in kinds})
    root = str(Path(__file__).parents[4])
    argv = ["unshare", "--mount", sys.executable, "-c", PROGRAM, root, str(folder), chosen, body, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: Puts the key of an fscrypt policy into the filesystem and the policy on a folder: linux/fscrypt.h.
ENCRYPT = r"""
def encrypt(folder):
    import fcntl, struct
    os.mkdir(folder)
    opened = os.open(folder, os.O_RDONLY)
    key = os.urandom(64)
    argument = bytearray(struct.pack("=II32sII32s", 2, 0, bytes(32), len(key), 0, bytes(32)) + key)
    fcntl.ioctl(opened, 0xC0506617, argument)
    # AES-256-XTS for contents, AES-256-CTS for names, names padded to 16 bytes.
    fcntl.ioctl(opened, 0x800C6613, struct.pack("=BBBBB3s16s", 2, 1, 4, 2, 0, bytes(3), bytes(argument[8:24])))
    os.close(opened)
"""
