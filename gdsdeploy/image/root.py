"""The root folder of an image: refused unless it is a whole system that nothing runs, and locked while it's in use.

It is entered with namespaces of its own, on this machine's kernel, with no service.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gdsdeploy import run
from gdsdeploy.errors import Busy, HostUnfit
from gdsdeploy.host.boot.loader import loader
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.model.system import fits, system_of
from gdsdeploy.host.rootdir import LoopError, inside, read_text
from gdsdeploy.zipapp import hostapp

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
    if not fits(os_name, system):
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
        return bool(loader(str(path)).arguments().kind)
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


#: Asked by Debian's invoke-rc.d before it starts a service.
_POLICY: Final = "/usr/sbin/policy-rc.d"
_RESOLVER: Final = "/etc/resolv.conf"
_FOLDER: Final = Path(__file__).parent
_NAMESPACES: Final = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
_PROGRAMS: Final = {"unshare": "util-linux", "setpriv": "util-linux", "findmnt": "util-linux", "mount": "mount"}
#: Process 1 of the image: says that it runs, and ends when it's told to.  If it isn't, because of an exception, the
#: other processes have 15 seconds to end.
_HOLD: Final = """\
echo
read -r word && exit
rounds=75
while set -- /proc/[0-9]*; [ $# -gt 1 ] && [ $rounds -gt 0 ]; do
    rounds=$((rounds - 1))
    sleep 0.2
done
"""
#: Values in an answer.
_VALUES: Final = 100_000
#: Lines that an error quotes, and what is kept of the output to find the answer in.
_TAIL, _KEPT = 6, 12


@contextlib.contextmanager
def entered(image: ImageRoot, *, changes: bool) -> Iterator[tuple[str, ...]]:
    """Keep namespaces for the image while the block runs; the command that runs its sh there, with the words behind it.

    changes: whether programs may change the image.  With the block, everything in the image ends: after an exception
    such as Ctrl-C, programs may clean up before.  It also ends when this process is killed.
    Raises HostUnfit where the root can't be entered, and MissingProgram.
    """
    for name, package in _PROGRAMS.items():
        run.which(name, hint=f"apt-get install {package}")
    with _mount_point(image, _RESOLVER) as resolver, _policy(image, changes=changes) as policy:
        held = run.dial(hold(image, resolver, policy), doing=f"enter {image.path}")
        try:
            if not held.socket.recv(1):
                words = f"{image.path}: can't be entered: {held.complaint()}"
                raise HostUnfit(words, hint="This machine has to allow namespaces and mounts, and the image needs a sh")
            yield join(held.process.pid)
            with contextlib.suppress(OSError):
                held.socket.sendall(b"end\n")
        finally:
            held.close()


def hold(image: ImageRoot, resolver: str, policy: str) -> list[str]:
    """The command that makes the namespaces, and keeps them; resolver, policy: see enter.sh."""
    devices = [word for device in image.devices for word in (device.path, device.number, device.uuid)]
    inner = [str(_FOLDER / "enter.sh"), str(image.path), resolver, policy, str(len(image.devices)), *devices]
    # If this process dies, so does everything in the image.
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "sh", *inner, "sh", "-c", _HOLD]


def join(process: int) -> tuple[str, ...]:
    """The command that runs the image's sh in the namespaces that ``process``, an unshare, has made."""
    kinds = {"uts": "uts", "ipc": "ipc", "pid": "pid_for_children"}
    namespaces = [f"--{kind}=/proc/{process}/ns/{name}" for kind, name in kinds.items()]
    python = [sys.executable, *hostapp.FLAGS, str(_FOLDER / "join.py"), str(process)]
    return ("setpriv", "--inh-caps", "-all", "nsenter", *namespaces, *python)


def ask(image: ImageRoot, enter: Sequence[str], argv: Sequence[str], stdin: bytes, program: bytes) -> dict[str, Any]:
    """The host program's answer to ``argv`` in the image.

    enter: of :func:`entered`.  program: the zipapp.  Raises HostUnfit where it gives no answer, and Interrupted.
    """
    lines: deque[str] = deque(maxlen=_KEPT)
    sent = hostapp.sent(program, argv, stdin, b"")
    status = run.stream(
        [*enter, "-c", f"exec {hostapp.start()}"], doing=f"ask {image.path}", line=lines.append, input=sent
    )
    text = next((line for line in reversed(lines) if line.startswith("{")), "")
    try:
        value = jsontext.loads(text, items=_VALUES)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        tail = "".join(f"\n  | {line(words[:500])}" for words in [*lines][-_TAIL:])
        words = f"{image.path}: gdsdeploy's program ended with status {status} and gave no answer{tail}"
        raise HostUnfit(words, hint="The image needs Python 3.9 or newer as python3; else run the command again")
    return value


@contextlib.contextmanager
def _policy(image: ImageRoot, *, changes: bool) -> Iterator[str]:
    """The place of the policy for services, which Debian's and Ubuntu's package scripts ask; empty: there is none."""
    if not changes or not image.place("/usr/sbin/invoke-rc.d").exists():
        yield ""
        return
    place = image.place(_POLICY)
    with contextlib.suppress(FileNotFoundError):
        # A run that was killed has left its mount point.
        if stat.S_ISREG(place.lstat().st_mode) and not place.lstat().st_size:
            place.unlink()
    with _mount_point(image, _POLICY) as name:
        yield name


@contextlib.contextmanager
def _mount_point(image: ImageRoot, path: str) -> Iterator[str]:
    """Where ``path`` is, relative to the root; an empty file while the block runs if nothing is there."""
    place = image.place(path)
    name = str(place.relative_to(image.path))
    if name.partition("/")[0] in MOUNTED:
        # enter.sh makes it there.
        yield name
        return
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        if not stat.S_ISREG(place.lstat().st_mode):
            raise HostUnfit(f"{place}: is not a file", hint="Remove it from the image") from None
        yield name
        return
    except OSError as error:
        raise HostUnfit(f"{place}: {error.strerror}", hint=f"Correct {path} in the image") from None
    os.close(descriptor)
    try:
        yield name
    finally:
        # A package may have put its own file there.
        with contextlib.suppress(FileNotFoundError):
            if not place.lstat().st_size:
                place.unlink()
