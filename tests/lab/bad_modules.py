"""Runs on the builder: write damaged modules that a kernel has to refuse, and the good one.

Arguments: the host program, the kernel's release, the folder to write to.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from gdsdeploy.host.kmod.files import open_plain
from gdsdeploy.host.secure_boot.signature import read_signature


def plain(release: str, name: str) -> bytes:
    """The module of that file name from this builder, unpacked and unsigned."""
    places = (Path(f"/lib/modules/{release}/updates"), Path("/var/lib/dkms"))
    modules = [path for place in places for path in place.rglob(name) if release in str(path)]
    with open_plain(str(modules[0])) as file:
        signature = read_signature(file)
        file.seek(0)
        return file.read() if signature is None else file.read(signature.size)


def main(program: str, release: str, folder: Path) -> None:
    """Write the modules."""
    folder.mkdir(exist_ok=True)
    good = plain(release, "nvidia-fs.ko*")
    place = good.index(struct.pack("<56s", b"nvidia_p2p_get_pages")) - 8
    variants = {
        "good": good,
        "crc": good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :],
        "vermagic": good.replace(b" mod_unload ", b" mod_frozen ", 1),
        "truncated": good[: len(good) * 3 // 5],
        "stub": plain(release, "nvidia*-peermem.ko*"),
        "stranger": good,
        "driver": plain(release, "nvidia-current-open.ko*"),
    }
    for name, data in variants.items():
        (folder / f"{name}.ko").write_bytes(data)
    key, certificate, stranger = (folder / name for name in ("owner.key", "owner.der", "stranger.ko"))
    command = [sys.executable, program, "kmod"]
    files = ["--key", str(key), "--certificate", str(certificate)]
    if not key.exists():
        subprocess.run([*command, "keygen", "--name", "nobody", *files], check=True)
    subprocess.run([*command, "sign", "--kernel", release, *files, str(stranger)], check=True)
    signed = stranger.read_bytes()
    # The message no longer starts with a SEQUENCE.
    (folder / "malformed.ko").write_bytes(signed[: len(good)] + b"\x31" + signed[len(good) + 1 :])


main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
