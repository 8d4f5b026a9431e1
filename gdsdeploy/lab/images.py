"""Base systems: mmdebstrap makes one per release and kind; all labs share them through a cache."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.lab import families, files, guest
from gdsdeploy.lab.archive import Archive
from gdsdeploy.lab.guest import ImagePackages, Release
from gdsdeploy.lab.kit.kits import Kit
from gdsdeploy.lab.systems import System

#: A VM host's disk, a sparse file.
DISK_BYTES = 12 << 30
#: The only partition begins at 1 MiB; GRUB's core image lies before it.
PARTITION_OFFSET = 1 << 20
SECTOR = 512
#: When the program ends, all its processes and mounts end, too.
CONTAINED = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True)
class VmBase:
    """A VM base: ``disk`` (qcow2, below the hosts' overlays) and its kernel for the trial of KVM."""

    disk: Path
    kernel: Path


def light_base(cache: Path, rel: Release, archive: Archive, preinstalled: ImagePackages | None = None) -> Path:
    """Root folder of the base system of light hosts with ``preinstalled`` packages; made when missing."""

    def make(work: Path) -> None:
        _bootstrap(rel, archive, "light", work, preinstalled)

    name = entry_name(rel, archive, "light", preinstalled)
    return files.cached_folder(cache, name, make, what=f"the {rel.name} base system") / "root"


def family_base(cache: Path, system: System, kit: Kit) -> Path:
    """Root folder of the base system of light hosts of ``system``, made from its kit when missing."""
    rel, archive = families.bootstrap_source(system, kit)
    content = families.all_files(system, rel, archive, "light")

    def make(work: Path) -> None:
        _bootstrap(rel, archive, "light", work, None, content, system.os)

    # The kit's name in the archive's address has the digest of all that the kit is made from.
    name = entry_name(rel, archive, "light", None, content, system.os)
    return files.cached_folder(cache, name, make, what=f"the {system.os} base system") / "root"


def vm_base(
    cache: Path,
    rel: Release,
    archive: Archive,
    early: Callable[[Path], None],
    preinstalled: ImagePackages | None = None,
    content: Mapping[str, str | Path] | None = None,
    title: str = "",
) -> VmBase:
    """The base system of VM hosts with ``preinstalled`` packages; made when missing.

    early, content, title: as in :func:`disk_base` and :func:`entry_name`.
    """

    def bootstrap(work: Path) -> None:
        _bootstrap(rel, archive, "vm", work, preinstalled, content, title)

    name = entry_name(rel, archive, "vm", preinstalled, content, title)
    return disk_base(cache, name, title or rel.name, bootstrap, early)


def disk_base(
    cache: Path, name: str, system: str, bootstrap: Callable[[Path], None], early: Callable[[Path], None]
) -> VmBase:
    """The base system ``name`` of VM hosts, as a disk; made when missing.

    bootstrap: makes ``root`` in a folder.  early: called with the kernel, seconds before the disk is ready if ``root``
    has one; not called for a cached base.
    """

    def make(work: Path) -> None:
        bootstrap(work)
        root = work / "root"
        kernels = list((root / "boot").glob("vmlinuz-*"))
        for kernel in kernels[:1]:
            early(kernel)
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
            if not kernels:
                early(work / "vmlinuz")
            write_boot_sectors(work / "disk.raw", work / "boot.img", work / "core.img")
            convert = ["qemu-img", "convert", "-O", "qcow2", work / "disk.raw", work / "disk.qcow2"]
            run.run([str(part) for part in convert], doing="convert the disk image")
            for part in ("disk.raw", "boot.img", "core.img"):
                (work / part).unlink()
            files.remove_tree(root, within=work)

    entry = files.cached_folder(cache, name, make, what=f"the {system} base system")
    return VmBase(entry / "disk.qcow2", entry / "vmlinuz")


def entry_name(
    rel: Release,
    archive: Archive,
    kind: str,
    preinstalled: ImagePackages | None = None,
    content: Mapping[str, str | Path] | None = None,
    title: str = "",
) -> str:
    """Name of a base system in the cache; it depends on the recipe and on the archive.

    content: the files in it, by default those of a Debian host.  title: begins the name, by default the release's name.
    """
    laid_out = guest.base_files(rel, archive, kind) if content is None else content
    recipe = {
        "archive": {name: str(value) for name, value in asdict(archive).items()},
        "packages": [*guest.packages(kind, rel.image, preinstalled), guest.further_kernel(kind, rel, preinstalled)],
        "begins": asdict(preinstalled) if preinstalled else None,
        "files": {name: str(value) for name, value in laid_out.items()},
        "scripts": [
            guest.data(f"guest/{name}").read_text() for name in ("base.sh", "begin.sh", "boot.sh", "grub-probe")
        ],
        "disk": DISK_BYTES,
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return f"{title or rel.name}-{kind}-{digest[:12]}"


def mmdebstrap_argv(
    rel: Release, archive: Archive, kind: str, root: Path, tree: Path, preinstalled: ImagePackages | None = None
) -> list[str]:
    """The mmdebstrap command that makes ``root``; ``tree``: folder of files that the hook copies into it."""
    arguments = [tree.as_posix(), kind, guest.USER, guest.NVME_MOUNT]
    kernel = guest.further_kernel(kind, rel, preinstalled)
    argv = from_archive(
        rel,
        archive,
        root,
        "minbase",
        guest.packages(kind, rel.image, preinstalled),
        *([f"--include={kernel}"] if kernel else ()),
        setup_hook(tree),
        hook("base.sh", arguments),
        *([_preinstall_hook(preinstalled)] if preinstalled else ()),
    )
    return [*argv, _source(archive, archive.uri, rel.suite)] if kernel else argv


def from_archive(
    rel: Release, archive: Archive, root: Path, variant: str, packages: Sequence[str], *more: str
) -> list[str]:
    """The mmdebstrap command that puts ``packages`` of ``rel`` into ``root``; ``variant``, ``more``: mmdebstrap's."""
    options = guest.apt_options(archive, archive.ca_bundle.as_posix() if archive.ca_bundle else None)
    return [
        "mmdebstrap",
        "--mode=root",
        f"--variant={variant}",
        "--format=directory",
        f"--include={','.join(packages)}",
        *(f'--aptopt={name} "{value}"' for name, value in sorted(options.items())),
        *more,
        rel.name,
        root.as_posix(),
        *(_source(archive, uri, suite) for uri, suites in guest.suites(rel, archive) for suite in suites),
    ]


def _source(archive: Archive, uri: str, suite: str) -> str:
    return f"deb [signed-by={archive.keyring}] {uri} {suite} main"


def _preinstall_hook(preinstalled: ImagePackages) -> str:
    """The hook that installs ``preinstalled`` into a complete base system."""
    packages = [f"{name}={version}" for name, version in preinstalled.packages]
    return hook("begin.sh", [str(len(preinstalled.sources)), *preinstalled.sources, *packages])


def setup_hook(tree: Path) -> str:
    """The option that puts dpkg's options in ``tree`` into the root first.

    With mmdebstrap's --dpkgopt, each excluded path would start a Python program for each package.
    """
    return f'--setup-hook=install -D {shlex.quote(f"{tree}/{guest.DPKG}")} "$1/{guest.DPKG}"'


def hook(script: str, arguments: Sequence[str]) -> str:
    """The option with which mmdebstrap runs ``guest/SCRIPT ROOT ARGUMENTS`` at its end."""
    path = guest.data(f"guest/{script}").as_posix()
    return f'--customize-hook={shlex.join(["sh", path])} "$1" {shlex.join(arguments)}'


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
        with files.hold_lock(cache / f"{name}.lock", what=f"the cached {name}"):
            files.remove_tree(entry, within=cache)
    if cache.is_dir() and not any(cache.iterdir()):
        cache.rmdir()
    return remaining


def _bootstrap(
    rel: Release,
    archive: Archive,
    kind: str,
    work: Path,
    preinstalled: ImagePackages | None,
    content: Mapping[str, str | Path] | None = None,
    system: str = "",
) -> Path:
    """Make ``work/root`` from the archive, with a log beside it."""
    root = work / "root"
    title = f"Making the {system or rel.name} base system of {'VM' if kind == 'vm' else 'light'} hosts"
    title += f", with {len(preinstalled.packages)} locked packages" if preinstalled else ""
    with console.step(title), tempfile.TemporaryDirectory(prefix="gdsdeploy-lab-") as folder:
        tree = Path(folder)
        lay_out(guest.base_files(rel, archive, kind) if content is None else content, tree)
        argv = mmdebstrap_argv(rel, archive, kind, root, tree, preinstalled)
        run.run(
            run.as_root([*CONTAINED, *argv]),
            doing=f"make the {system or rel.name} base system",
            log=work / "log",
            hint="It comes from this machine's apt archive; check it with: apt-get update",
        )
    return root


def lay_out(content: Mapping[str, str | Path], tree: Path) -> None:
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
