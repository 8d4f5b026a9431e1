"""Writes every file that this program leaves on a host; only root decides where.

A reader meets the old content or the new one, and so does a boot after a power cut.  A path is walked part by part,
each from the descriptor of its folder.  A new file gets a name that can't be guessed, and is then
renamed in that folder.  Mode and owner are changed through descriptors only.  A link or a pipe
there is replaced, never followed or written to, because others may have left it; a device, which only root makes,
is refused.

Root refuses folders that others can change.  ``shared`` allows them, for what belongs to others anyway: links there
aren't followed, so that whatever others put there, root writes to that folder or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import shutil
import stat
from typing import IO, Dict, Iterator, Optional, Tuple, Union

#: (uid, gid)
Owner = Tuple[int, int]
#: Extended attributes, of which ACLs are some: name → value.
Attributes = Dict[str, bytes]
#: The policy gives a file its label; see labels.py.
_LABEL = "security.selinux"

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_LIMIT = 40
#: Ubuntu lets the group syslog change it.
_SHARED = ("/var/log",)
_SUFFIX = ".gdsdeploy-new"


class UnsafePathError(OSError):
    """Others than root could lead root's writing elsewhere; ``filename``: the folder, file or link that is theirs."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, f"{path} {why}", path)


@contextlib.contextmanager
def replacing(
    path: str,
    mode: int = 0o644,
    owner: Optional[Owner] = None,
    attributes: Optional[Attributes] = None,
    *,
    make: bool = True,
    shared: bool = False,
) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` when the block ends.

    make: its folder, too.  owner: only root gives files away.  attributes: all that it has then; None: those that its
    folder gives it.  Raises OSError, UnsafePathError; ``path`` is then as it was, and so it is when the block raises.
    """
    with _parent(path, make=make, shared=shared) as (folder, name):
        _require_no_device(folder, name, path)
        temporary = _temporary(name)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                _set_access(fd, mode, owner, attributes)
                os.fsync(fd)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)


def write(
    path: str,
    content: Union[str, bytes],
    mode: int = 0o644,
    owner: Optional[Owner] = None,
    attributes: Optional[Attributes] = None,
    *,
    shared: bool = False,
) -> None:
    """Replace ``path``, text as UTF-8; as :func:`replacing`."""
    with replacing(path, mode, owner, attributes, shared=shared) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def copy(source: str, target: str) -> None:
    """Replace ``target`` by the content of a file, with its mode; as :func:`replacing`."""
    with open(source, "rb") as file, replacing(target, os.fstat(file.fileno()).st_mode & 0o777) as new:
        shutil.copyfileobj(file, new)


def link(path: str, target: str, owner: Owner) -> None:
    """Replace ``path`` by a symbolic link; as :func:`replacing`."""
    with _parent(path) as (folder, name):
        temporary = _temporary(name)
        os.symlink(target, temporary, dir_fd=folder)
        if os.geteuid() == 0:
            os.chown(temporary, *owner, dir_fd=folder, follow_symlinks=False)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def make_folder(
    path: str, mode: Optional[int] = None, owner: Optional[Owner] = None, attributes: Optional[Attributes] = None
) -> None:
    """Make a folder and those above it.  mode and the others: that it gets even if it exists.  Raises OSError.

    Without them, raises UnsafePathError for a folder that others than root can change.
    """
    fd = _open_folder(os.path.abspath(path))
    try:
        if mode is None:
            _is_roots(fd, path, shared=False)
        else:
            _set_access(fd, mode, owner, attributes)
    finally:
        os.close(fd)


def open_descriptor(path: str, flags: int = os.O_RDWR, mode: int = 0o600) -> int:
    """A descriptor of a file that stays where it is (a lock, a log), made if need be; its folder is made.

    mode: set even if the file exists.  A user who can read a file can lock it, so only root can read locks.
    Raises OSError, UnsafePathError for a file that isn't root's alone.
    """
    with _parent(path) as (folder, name):
        safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags | safe, mode, dir_fd=folder)
    status = os.fstat(fd)
    if os.geteuid() == 0 and not (stat.S_ISREG(status.st_mode) and status.st_uid == 0 and status.st_nlink == 1):
        os.close(fd)
        raise UnsafePathError(path, "is not a file of root's alone")
    # The mode of a file that can only be appended to (chattr +a) can't be set, even to what it is.
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)
    return fd


def remove(path: str) -> None:
    """Remove a file or a link if it is there.  Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _parent(path, make=False, shared=True) as (folder, name):
        os.unlink(name, dir_fd=folder)


def sweep(path: str, *, shared: bool = False) -> None:
    """Remove temporary files of killed writers beside ``path``; no other writer may be active."""
    parent = _parent(path, make=False, shared=shared)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), parent as (folder, name):
        left = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}{re.escape(_SUFFIX)}")
        for name_left in filter(left.fullmatch, os.listdir(folder)):
            os.unlink(name_left, dir_fd=folder)


def _require_no_device(folder: int, name: str, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EEXIST, "this is a device, and no file replaces it", path)


def _temporary(name: str) -> str:
    # Never read by systemd, modprobe, apt, dnf or run-parts: it begins with a dot and has no suffix of theirs.
    return f".{name}.{secrets.token_hex(8)}{_SUFFIX}"


def attributes_of(place: Union[str, int]) -> Attributes:
    """The extended attributes of a file or folder, or of a descriptor, but for its label.  Raises OSError."""
    try:
        names = os.listxattr(place)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    return {name: os.getxattr(place, name) for name in names if name != _LABEL}


def _set_access(fd: int, mode: int, owner: Optional[Owner], attributes: Optional[Attributes]) -> None:
    # Tests run without root; there every file is the tester's.
    if owner is not None and os.geteuid() == 0:
        os.fchown(fd, *owner)
    os.fchmod(fd, mode)
    if attributes is not None:
        for name in set(attributes_of(fd)) - set(attributes):
            os.removexattr(fd, name)
        # After the mode, whose bits of the group are an ACL's mask.
        for name, value in attributes.items():
            os.setxattr(fd, name, value)


@contextlib.contextmanager
def _parent(path: str, *, make: bool = True, shared: bool = False) -> Iterator[Tuple[int, str]]:
    """A descriptor of the folder of ``path``, and the name in it."""
    above, name = os.path.split(os.path.abspath(path))
    fd = _open_folder(above, make=make, shared=shared)
    try:
        _is_roots(fd, above, shared=shared)
        yield fd, name
    finally:
        os.close(fd)


def _open_folder(path: str, *, make: bool = True, shared: bool = False, links: int = 0) -> int:
    """A descriptor of the folder at an absolute path, and of nothing that others put in its place."""
    parts = [part for part in path.split("/") if part]
    fd, done = os.open("/", _FOLDER | os.O_RDONLY), "/"
    try:
        for place, part in enumerate(parts):
            below = os.path.join(done, part)
            only_root = _is_roots(fd, done, shared=shared)
            target = _link_target(fd, part, make=make)
            if target:
                if not only_root:
                    raise UnsafePathError(below, "is a link in a folder that others than root can change")
                if links == _LINKS_LIMIT:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), below)
                whole = os.path.normpath(os.path.join(done, target, *parts[place + 1 :]))
                return _open_folder(whole, make=make, shared=shared, links=links + 1)
            # Folders on the way needn't be readable.
            inner = os.open(part, _FOLDER | (os.O_PATH if place + 1 < len(parts) else os.O_RDONLY), dir_fd=fd)
            os.close(fd)
            fd, done = inner, below
        return os.dup(fd)
    finally:
        os.close(fd)


def _link_target(folder: int, name: str, *, make: bool) -> str:
    """The target of the link ``name``, empty for other entries; a missing folder is made."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
    return ""


def _is_roots(fd: int, path: str, *, shared: bool) -> bool:
    """Whether only root can change the folder; raises UnsafePathError where that has to be so.

    In one with the sticky bit, other users can't remove root's files.
    """
    if os.geteuid() != 0:
        return True
    status = os.fstat(fd)
    others = status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != 0)
    if status.st_uid == 0 and not others:
        return True
    if (status.st_uid == 0 and status.st_mode & stat.S_ISVTX) or shared or path in _SHARED:
        return False
    access = f"owner {status.st_uid}, group {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o}"
    raise UnsafePathError(path, f"can be changed by others than root ({access}), so root writes nothing there")


def exposure(path: str, state: os.stat_result) -> Optional[Tuple[str, str]]:
    """Why the file ``path``, which has this ``state``, keeps no secret and the command that mends it; None: it does."""
    mode = stat.S_IMODE(state.st_mode)
    if state.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {state.st_uid}", f"chown {os.geteuid()} {shlex.quote(path)}"
    if mode & 0o077:
        return f"can be read by others than its owner (mode {mode:04o})", f"chmod 0600 {shlex.quote(path)}"
    return None
