"""The root folder of an image: refused unless it is a whole system that nothing runs, and locked while it's in use.

The folder is data of others.  Links in it are followed inside it only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdsdeploy import run
from gdsdeploy.errors import Busy, HostUnfit
from gdsdeploy.host.boot.arguments import loader
from gdsdeploy.host.model.system import system_of, without_minor
from gdsdeploy.host.rootdir import LoopError, inside, read_text

#: Top folders on which enter.sh mounts empty ones.
MOUNTED: Final = ("proc", "sys", "dev", "run", "tmp")
_GRUB_CFG: Final = "/boot/grub/grub.cfg"
#: What user ids a user namespace has that has all of them (user_namespaces(7)).
_ALL_IDS: Final = ["0", "0", "4294967295"]
_LAYERS: Final = re.compile(r"(?:lowerdir|upperdir)=([^,]*)")


@dataclass(frozen=True)
class BlockDevice:
    """A device of the image's disk; ``number``: MAJOR:MINOR.  ``uuid``: of its file system, empty if it has none."""

    path: str
    number: str
    uuid: str = ""


@dataclass(frozen=True)
class ImageRoot:
    """A folder that was accepted and is locked; ``path`` has no links.  ``devices``: of the image's own disk.

    has_loader: whether a boot loader is set up in it; one that boots from the network has none.
    """

    path: Path
    devices: tuple[BlockDevice, ...] = ()
    has_loader: bool = False

    def place(self, path: str) -> Path:
        """Where ``path`` of the image is on this machine; raises HostUnfit for links that lead round in a circle."""
        try:
            return Path(inside(str(self.path), path))
        except LoopError as error:
            raise HostUnfit(f"{self.path}: {error.message}", hint="Correct the links in the image") from None


@contextlib.contextmanager
def open_root(folder: Path, os_name: str) -> Iterator[ImageRoot]:
    """Lock ``folder`` while the block runs.  os_name: the system that it must have, such as ``debian-13``.

    Raises HostUnfit for anything that isn't the root of an image, and Busy if gdsdeploy works on it already.
    """
    _require_rights()
    path = _real(folder)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy(f"{path}: another gdsdeploy works on this image", hint="Wait until it ends") from None
        _require_system(path, os_name)
        _require_idle(path)
        devices = _devices(path)
        if read_text(str(path), _GRUB_CFG):
            _require_disk(path, devices)
        yield ImageRoot(path, devices, _has_loader(path))
    finally:
        os.close(descriptor)


def _require_rights() -> None:
    if os.geteuid() != 0:
        raise HostUnfit("the root of an image can be changed by root only", hint="Run the same command with sudo")
    if Path("/proc/self/uid_map").read_text(encoding="ascii").split() != _ALL_IDS:
        raise HostUnfit(
            "this process runs in a user namespace, where the image's files would get other owners",
            hint="Run it as root outside of the container, or in a container that has no user namespace",
        )


def _real(folder: Path) -> Path:
    try:
        path = folder.resolve(strict=True)
        status = path.stat()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "too many symbolic links"
        raise HostUnfit(f"{folder}: {reason}", hint="Pass the folder that has the image's root file system") from None
    if not stat.S_ISDIR(status.st_mode):
        raise HostUnfit(f"{folder}: not a folder", hint="Mount the image, and pass the folder where it is mounted")
    if os.path.samestat(status, Path("/").stat()):
        hint = "Pass the folder of an image; to change this machine, name it as a host in the fleet file"
        raise HostUnfit(f"{folder}: is the root of this machine", hint=hint)
    return path


def _require_system(path: Path, os_name: str) -> None:
    """Raise HostUnfit unless ``path`` is a writable root folder of the system ``os_name``."""
    flags = os.statvfs(path).f_flag
    for flag, option, other in ((os.ST_RDONLY, "ro", "rw"), (os.ST_NOEXEC, "noexec", "exec")):
        if flags & flag:
            words = f"{path}: its file system is mounted with the option {option}"
            raise HostUnfit(words, hint=f"Mount it with {other}: mount -o remount,{other} …")
    text = read_text(str(path), "/etc/os-release") or read_text(str(path), "/usr/lib/os-release")
    if not text:
        words = f"{path}: not the root of a system: it has no etc/os-release"
        raise HostUnfit(words, hint="Pass the folder that has the image's etc, usr and var")
    system = system_of(text)
    if os_name not in (system, without_minor(system)):
        words = f"{path}: is {ascii(system)[1:-1]}, but the profile was locked for {os_name}"
        raise HostUnfit(words, hint="Name a host of another profile with --limit")
    for name in MOUNTED:
        with contextlib.suppress(OSError):
            if stat.S_ISDIR((path / name).lstat().st_mode):
                continue
        words = f"{path}/{name}: is not a folder, so the system there can't be entered"
        raise HostUnfit(words, hint=f"Make it an empty folder: {name}")


def _has_loader(path: Path) -> bool:
    try:
        return bool(loader(str(path)).kind)
    except LoopError as error:
        raise HostUnfit(f"{path}: {error.message}", hint="Correct the links in the image") from None


def _require_idle(path: Path) -> None:
    """Raise HostUnfit if a process has its root there, or an overlay that is mounted has it as a layer."""
    root = path.stat()
    namespaces: set[str] = set()
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            namespace = str((process / "ns/mnt").readlink())
            if os.path.samestat((process / "root").stat(), root):
                name = (process / "comm").read_text(errors="replace").strip()
                words = f"{path}: a running system: it is the root of process {process.name} ({ascii(name)[1:-1]})"
                raise HostUnfit(words, hint="Stop what runs there, or name it as a host in the fleet file")
            if namespace not in namespaces:
                namespaces.add(namespace)
                if str(path) in _layers((process / "mountinfo").read_text(errors="replace")):
                    words = f"{path}: a layer of an overlay that is mounted, which mustn't change below it"
                    hint = f"Unmount the overlay, see: grep overlay /proc/{process.name}/mountinfo"
                    raise HostUnfit(words, hint=hint)


def _layers(mountinfo: str) -> set[str]:
    """The folders that are layers of overlays."""
    lines = [line for line in mountinfo.splitlines() if " - overlay " in line]
    return {layer for line in lines for option in _LAYERS.findall(line) for layer in option.split(":")}


def _require_disk(path: Path, devices: tuple[BlockDevice, ...]) -> None:
    """Raise HostUnfit unless update-grub finds the disk of the image, and writes entries for its kernels."""
    if not devices:
        raise HostUnfit(
            f"{path}: has GRUB's {_GRUB_CFG}, but no file system of its own, so update-grub can't find its disk",
            hint="Mount the image's disk there, or delete that file if hosts boot the image in another way",
        )
    if re.fullmatch(r"/dev/loop[0-9]", devices[0].path):
        # Without a message: /etc/grub.d/10_linux of Debian 12 and 13, and of Ubuntu.
        words = f"{path}: update-grub writes no entry for a file system on {devices[0].path}, which has no partitions"
        hint = "Attach the whole disk: losetup --find --show --partscan DISK, and mount its partition /dev/loopNpM"
        raise HostUnfit(words, hint=hint)


def _devices(path: Path) -> tuple[BlockDevice, ...]:
    """The devices with the file systems that are mounted at ``path``, which is first, and below; none for a folder.

    The disks of partitions are among them, because GRUB reads partitions through their disk.
    """
    argv = ["findmnt", "--json", "--list", "--output", "TARGET,SOURCE,FSROOT,MAJ:MIN"]
    mounts = json.loads(run.run(argv, doing="list the mounted file systems").stdout)["filesystems"]
    sources: dict[str, str] = {}
    for mount in (mount for mount in mounts if mount["fsroot"] == "/" and _is_disk(mount["source"], mount["maj:min"])):
        target = Path(mount["target"])
        if target == path or path in target.parents:
            sources[mount["source"]] = mount["maj:min"]
    if not any(Path(mount["target"]) == path and mount["source"] in sources for mount in mounts):
        return ()
    partitions = [BlockDevice(source, number, _uuid(source)) for source, number in sources.items()]
    disks = dict.fromkeys(disk for number in sources.values() for disk in _disk_of(number))
    return (*partitions, *(disk for disk in disks if disk.path not in sources))


def _is_disk(source: str | None, number: str) -> bool:
    try:
        status = Path(source or "/").stat()
    except OSError:
        return False
    return stat.S_ISBLK(status.st_mode) and f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" == number


def _disk_of(number: str) -> list[BlockDevice]:
    """The disk of the partition with this device number; none for a whole disk."""
    folder = Path("/sys/dev/block", number).resolve()
    if not (folder / "partition").exists():
        return []
    return [BlockDevice(f"/dev/{folder.parent.name}", (folder.parent / "dev").read_text(encoding="ascii").strip())]


def _uuid(source: str) -> str:
    argv = [run.which("blkid", hint="apt-get install util-linux"), "--probe", "--match-tag=UUID", "--output=value"]
    text = run.run([*argv, source], doing=f"read the UUID of {source}", ok=(0, 2)).stdout.strip()
    # It names a link in the image's /dev.
    return text if re.fullmatch(r"[0-9A-Za-z-]+", text) else ""
