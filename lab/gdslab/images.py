"""Base systems: mmdebstrap makes one per recipe; all labs share them through a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.files import folders
from gdslab import guest
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.guest import DISK_BYTES
from gdslab.recipe import Content, Recipe, from_archive

#: The only partition begins at 1 MiB; GRUB's core image lies before it.
PARTITION_OFFSET = 1 << 20
SECTOR = 512
#: Bytes that making a base system of a kind of hosts needs at least: its files, and for a VM twice those of its disk.
_SPACE = {"light": 1 << 30, "vm": 3 << 30}
#: When the program ends, all its processes and mounts end, too.
CONTAINED = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")


def path(cache: Path, recipe: Recipe) -> Path:
    """Where :func:`base` has, or will have, a recipe's base system."""
    return cache / recipe.name / ("disk.qcow2" if recipe.kind == "vm" else "root")


def base(cache: Path, recipe: Recipe) -> Path:
    """A base system, made when missing: the root folder of light hosts, or the disk below the overlays of VM hosts.

    Beside a disk is its kernel, vmlinuz, for the trial of KVM.
    """

    def make(work: Path) -> None:
        _bootstrap(recipe, work)
        if recipe.kind == "vm":
            _make_disk(recipe.system, work)

    folders.cached_folder(cache, recipe.name, make, what=f"the {recipe.system} base system")
    return path(cache, recipe)


def unpacked(
    cache: Path, archive: Archive, release: str, packages: Sequence[str], *, name: str, what: str, title: str
) -> Path:
    """Folder below ``cache`` with the files of ``packages`` of a Debian release, and all that they need.

    Made when missing.  name: begins that of the cached folder.  what, title: for people.  Raises ProgramFailed.
    """

    def argv(target: Path) -> list[str]:
        return from_archive(guest.RELEASES[release], archive, target, "extract", packages)

    def make(work: Path) -> None:
        with console.step(f"Fetching {release}'s {title}"):
            run.run(
                run.as_root([*CONTAINED, *argv(work / "root")]), doing=f"fetch {release}'s {what}", log=work / "log"
            )

    digest = hashlib.sha256(chr(0).join(argv(Path("root"))).encode()).hexdigest()
    return folders.cached_folder(cache, f"{name}-{release}-{digest[:12]}", make, what=f"the {what}") / "root"


def _bootstrap(recipe: Recipe, work: Path) -> None:
    """Make ``work/root`` from the archive, with a log beside it; raises LabUnavailable if it has no space."""
    needed, free = _SPACE[recipe.kind], shutil.disk_usage(work).free
    if free < needed:
        raise LabUnavailable(
            f"no space left for the {recipe.system} base system: {work.parent} has {free >> 20} MiB free, "
            f"and it needs {needed >> 20} MiB",
            hint="Free space there, or set GDSDEPLOY_CACHE_DIR to a folder of a larger disk",
        )
    title = f"Making the {recipe.system} base system of {'VM' if recipe.kind == 'vm' else 'light'} hosts"
    with console.step(title), tempfile.TemporaryDirectory(prefix="gdsdeploy-lab-") as folder:
        tree = Path(folder)
        lay_out(recipe.files, tree)
        run.run(
            # A disk gets its initramfs later; each takes seconds, and packages would make one several times.
            run.as_root([*CONTAINED, "env", "INITRD=No", *recipe.argv(work / "root", tree)]),
            doing=f"make the {recipe.system} base system",
            log=work / "log",
            hint="It comes from this machine's apt archive; check it with: apt-get update",
        )


def _make_disk(system: str, work: Path) -> None:
    """Turn ``work/root`` into a disk and its kernel."""
    root = work / "root"
    size = (DISK_BYTES - PARTITION_OFFSET) // 1024
    script = guest.data("guest/boot.sh").as_posix()
    arguments = [root, work, size, PARTITION_OFFSET, guest.ROOT_UUID]
    with console.step(f"Making the {system} disk image"):
        run.run(
            run.as_root([*CONTAINED, "sh", script, *map(str, arguments)]),
            doing=f"make the {system} disk image",
            log=work / "log",
        )
        _change_owner(work)
        write_boot_sectors(work / "disk.raw", work / "boot.img", work / "core.img")
        convert = ["qemu-img", "convert", "-O", "qcow2", work / "disk.raw", work / "disk.qcow2"]
        run.run([str(part) for part in convert], doing="convert the disk image")
        for part in ("disk.raw", "boot.img", "core.img"):
            (work / part).unlink()
        folders.remove_tree(root, within=work)


def master_boot_record(boot: bytes, disk_bytes: int) -> bytes:
    """Sector 0: GRUB's boot.img (its first 440 bytes are code) and a table with one active Linux partition."""
    sectors = disk_bytes // SECTOR - PARTITION_OFFSET // SECTOR
    # Cylinder/head/sector addresses end at 8 GB; this value means "use the sector numbers".
    beyond = b"\xfe\xff\xff"
    entry = struct.pack("<B3sB3sII", 0x80, beyond, 0x83, beyond, PARTITION_OFFSET // SECTOR, sectors)
    return boot[:440] + struct.pack("<IH", guest.DISK_ID, 0) + entry + bytes(48) + b"\x55\xaa"


def write_boot_sectors(disk: Path, boot: Path, core: Path) -> None:
    """Write GRUB before the first partition: boot.img to sector 0, core.img from sector 1."""
    image = core.read_bytes()
    if SECTOR + len(image) > PARTITION_OFFSET:
        raise ValueError(f"GRUB's core image of {len(image)} bytes does not fit before the first partition")
    with disk.open("r+b") as stream:
        stream.write(master_boot_record(boot.read_bytes(), DISK_BYTES))
        stream.write(image)


def purge(cache: Path, used: set[Path]) -> list[Path]:
    """Remove every cached folder that no lab uses; return the others."""
    remaining: list[Path] = []
    for entry in sorted(cache.iterdir()) if cache.is_dir() else []:
        if entry.suffix == ".lock":
            continue
        if any(entry == path or entry in path.parents for path in used):
            remaining.append(entry)
            continue
        name = entry.name.split(".tmp-")[0]
        with folders.hold_lock(cache / f"{name}.lock", what=f"the cached {name}"):
            folders.remove_tree(entry, within=cache)
    if cache.is_dir() and not any(cache.iterdir()):
        cache.rmdir()
    return remaining


def lay_out(content: Content, tree: Path) -> None:
    """Write ``content`` (path → text, or the file to copy) below ``tree``."""
    tree.chmod(0o755)
    for name, value in content.items():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, Path):
            shutil.copyfile(value, target)
        else:
            target.write_text(value)
        target.chmod(0o644)
    for folder in tree.rglob("*/"):
        folder.chmod(0o755)


def _change_owner(work: Path) -> None:
    """Change the owner of root's images to this user, as QEMU runs as this user."""
    if os.geteuid() != 0:
        owner = f"{os.geteuid()}:{os.getegid()}"
        images = [str(work / name) for name in ("disk.raw", "boot.img", "core.img", "vmlinuz")]
        run.run(run.as_root(["chown", owner, *images]), doing="change the owner of the disk image")
