"""Exchange modules under a real kernel, as ``rollout reload`` does; print the outcome of each try as one JSON object.

Runs on the VM host as root: ``python3 - PROGRAM``.  Modules of the kernel's own stand for NVIDIA's: three that need
each other, and one with a device file, which a service holds.  Other files are mounted over theirs for a while, so that
depmod need not run.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from gdsdeploy.host.apply import gpu
from gdsdeploy.host.archive import pack
from gdsdeploy.host.boot import needed
from gdsdeploy.host.boot.present import boot_id
from gdsdeploy.host.errors import HostError
from gdsdeploy.host.kmod.files import sha256
from gdsdeploy.host.rollout import reload

IDENT, DEVICE, UNIT = "lab-exchange", "/dev/uinput", "lab-exchange.service"
NAMES = ("dm_mirror", "dm_region_hash", "dm_log", "uinput")
STACK = reload.Stack(NAMES, (DEVICE,), (UNIT,))
FILE = Path("/run/systemd/system") / UNIT
MARK = b"~Module signature appended~\n"
folder = Path(tempfile.mkdtemp())
mounted = []


def call(*argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def replace_module(name, old=b"", new=b""):
    """Another module in the place of this one: unsigned, with another build id, and ``new`` instead of ``old``."""
    path = Path(needed.file_of(name))
    with lzma.open(path) as file:
        data = file.read()
    if data.endswith(MARK):
        size = struct.unpack(">I", data[-len(MARK) - 4 : -len(MARK)])[0]
        data = data[: -len(MARK) - 12 - size]
    note = bytes.fromhex(OLD[name])
    assert data.count(note) == 1
    data = data.replace(note, note[:-4] + b"\xaa\xbb\xcc\xdd")
    assert old in data
    replacement = folder / path.name
    # The kernel decompresses it, and knows no other check.
    with lzma.open(replacement, "wb", preset=0, check=lzma.CHECK_CRC32) as file:
        file.write(data.replace(old, new, 1))
    call("mount", "--bind", replacement, path)
    mounted.append(path)


def restore():
    while mounted:
        call("umount", mounted.pop())


def put_aside():
    """The archive that ``rollout keep`` would have made of NVIDIA's modules."""
    paths = [Path(needed.file_of(name)) for name in NAMES]
    rows = [
        {"name": name, "file": path.name, "sha256": sha256(path), "size": path.stat().st_size, "srcversion": ""}
        for name, path in zip(NAMES, paths, strict=True)
    ]
    manifest = {"format": 1, "kernel_release": os.uname().release, "modules": rows}
    manifest.update({"vermagic": "", "symvers": "", "compiler": "", "driver": {}, "nvidia_fs": {}, "key": {}})
    text = json.dumps(manifest).encode()
    place = Path(pack.kept_path(IDENT, os.uname().release))
    place.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(place, "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
        for path in paths:
            archive.add(path, "modules/" + path.name)


def try_exchange():
    """What an exchange comes to: what it did, or the kind and words of its refusal; and what is there afterwards."""
    try:
        outcome = reload.exchange(boot_id(), IDENT, of=STACK)["did"]
    except HostError as error:
        outcome = [getattr(error, "kind", ""), error.message]
    loaded = {module["name"]: reload.build_id(module["name"]) for module in gpu.modules("/", NAMES)}
    versions = {name: "old" if loaded[name] == OLD[name] else "new" for name in loaded}
    return {
        "said": outcome,
        "loaded": versions,
        "service": reload.is_active(UNIT),
        "unfinished": Path(reload.MARKER).exists(),
    }


def kill_exchange():
    """An exchange whose program is killed after it has unloaded everything."""
    child = os.fork()
    if child == 0:
        reload._load = lambda chosen: os._exit(9)
        try:
            reload.exchange(boot_id(), IDENT, of=STACK)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


results = {}
try:
    for name in reversed(NAMES):
        call("modprobe", name)
    OLD = {name: reload.build_id(name) for name in NAMES}
    results["the same"] = try_exchange()
    replace_module("dm_log")
    results["not kept"] = try_exchange()
    restore()
    put_aside()
    replace_module("dm_log")
    chosen = reload.plan(boot_id(), IDENT, of=STACK)
    results["plan"] = chosen.document()
    results["other kernel"] = reload.plan(boot_id(), IDENT, "9.9.9", STACK).reasons
    with Path(DEVICE).open("rb"):
        results["in use"] = try_exchange()
    release = os.uname().release.encode()
    replace_module("dm_region_hash", release + b" SMP ", release + b" XMP ")
    results["refused by the kernel"] = try_exchange()
    restore()
    replace_module("dm_log")
    FILE.write_text(f"[Service]\nExecStart=/bin/sh -c 'exec 3<{DEVICE}; exec sleep infinity'\n")
    call("systemctl", "daemon-reload")
    call("systemctl", "start", UNIT)
    results["exchanged"] = try_exchange()
    results["again"] = try_exchange()
    restore()
    # Back to the old ones: what is loaded now is what is to be kept.
    replace_module("dm_log")
    put_aside()
    restore()
    results["killed"] = [
        kill_exchange(),
        [module["name"] for module in gpu.modules("/", NAMES)],
        reload.is_active(UNIT),
    ]
    results["finished"] = try_exchange()
finally:
    restore()
    subprocess.run(["systemctl", "stop", UNIT], check=False)
    FILE.unlink(missing_ok=True)
    call("systemctl", "daemon-reload")
    for module in gpu.modules("/", NAMES):
        subprocess.run(["rmmod", module["name"]], check=False)
    # What they brought along; it stays where it is in use.
    subprocess.run(["modprobe", "--remove", "--quiet", "dm_mod"], check=False)
    pack.forget_kept(IDENT)
    subprocess.run(["rm", "-r", folder], check=False)
json.dump(results, sys.stdout)
