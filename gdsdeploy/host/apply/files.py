"""Files and folders: desired, observed, compared, and written so that a reader never meets half of one."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import shutil
import stat
from typing import IO, Any, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ..errors import CannotTellError, DesiredError
from ..io import atomic
from ..rootdir import open_file
from . import written
from .model import NONE, Change, Refusal

FILE, FOLDER, ABSENT = "file", "folder", "absent"
#: Of an entry only: a link that leads round in a circle.
LINK = "link"
#: The first line of everything that gdsdeploy renders says so.
MARK = written.MARK
ROOT = (0, 0)


class File(NamedTuple):
    """A path as it should be, owned by root."""

    path: str
    kind: str = FILE
    content: bytes = b""
    mode: int = 0o644

    @classmethod
    def of(cls, path: str, text: str, mode: int = 0o644) -> File:
        """A file with this text."""
        return cls(path, FILE, text.encode("utf-8"), mode)


class PathState(NamedTuple):
    """A path as it is; ``kind`` is ``file``, ``folder``, ``link`` or ``other``, ``sha256`` empty but for files."""

    kind: str
    mode: int
    uid: int
    gid: int
    sha256: str = ""


def entry(place: str, path: str) -> Optional[PathState]:
    """What is at ``place``, links followed; None: nothing.  Raises CannotTellError that names ``path``."""
    try:
        status = os.stat(place)
        owner = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if not stat.S_ISREG(status.st_mode):
            return PathState(FOLDER if stat.S_ISDIR(status.st_mode) else "other", *owner)
        digest = hashlib.sha256()
        with _open_regular(place, path) as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
        return PathState(FILE, *owner, digest.hexdigest())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CannotTellError(f"{path}: {error.strerror}") from None


def text(place: str, path: str) -> str:
    """The text of a file, at most 8 MiB; empty when there is none.  Raises CannotTellError."""
    try:
        with _open_regular(place, path) as file:
            return file.read(8 << 20).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise CannotTellError(f"{path}: {error.strerror}") from None


@contextlib.contextmanager
def _open_regular(place: str, path: str) -> Iterator[IO[bytes]]:
    """A file to read; raises OSError, CannotTellError for anything else, even if it was a file a moment ago."""
    with open_file(place) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CannotTellError(f"{path}: is not a file")
        yield file


def compare(file: File, present: Optional[PathState], disruption: str = NONE) -> List[Change]:
    """What makes ``present`` the file or folder: no change, or one.

    The wrong kind of entry (a folder for a file) is a change, and one that is refused: see :func:`in_the_way`.
    """
    digest = "" if present is None else f"sha256:{present.sha256}" if present.kind == FILE else present.kind
    if file.kind == ABSENT:
        return [Change("delete", file.path, digest, "", "not-wanted", NONE)] if present is not None else []
    kind = "write" if file.kind == FILE else "make"
    after = f"sha256:{hashlib.sha256(file.content).hexdigest()}" if file.kind == FILE else f"{file.mode:04o}"
    if present is None:
        return [Change(kind, file.path, "", after, "missing", disruption)]
    if present.kind != file.kind:
        return [Change(kind, file.path, present.kind, after, "kind", disruption)]
    if file.kind == FILE and digest != after:
        return [Change(kind, file.path, digest, after, "content", disruption)]
    if present.mode != file.mode:
        return [Change(kind, file.path, f"{present.mode:04o}", f"{file.mode:04o}", "mode", NONE)]
    if (present.uid, present.gid) != (0, 0):
        return [Change(kind, file.path, f"{present.uid}:{present.gid}", "0:0", "owner", NONE)]
    return []


def refusals(pairs: Iterable[Tuple[File, Optional[PathState]]]) -> List[Refusal]:
    """The refusals of :func:`in_the_way` for files and what is at their paths."""
    return [refusal for file, entry in pairs for refusal in [in_the_way(file, entry)] if refusal is not None]


def decode_base64(text: str, place: str) -> bytes:
    """The bytes of base64; raises DesiredError that names ``place``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DesiredError(f"{place}: not base64") from None


def in_the_way(file: File, present: Optional[PathState]) -> Optional[Refusal]:
    """The refusal where something else has the path: a folder for a file, a file for a folder, a device."""
    if present is None or present.kind in (file.kind, LINK) or file.kind == ABSENT:
        return None
    thing = {FOLDER: "a folder", FILE: "a file"}.get(present.kind, "neither a file nor a folder")
    words = f"{file.path}: is {thing}; a {file.kind} is needed"
    return Refusal("kind", words, f"move it away: mv {file.path} {file.path}.aside")


def bring_about(place: str, file: File) -> None:
    """Make ``place`` what ``file`` says.  Raises OSError; then it is as it was.

    The path itself is replaced: a link there doesn't lead the content elsewhere.
    """
    if file.kind == FILE:
        replace(place, file.content, file.mode)
    elif file.kind == FOLDER:
        if os.path.islink(place):
            os.unlink(place)
        atomic.make_folder(place, file.mode, ROOT)
    elif os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    else:
        atomic.remove(place)


def replace(
    place: str,
    content: bytes,
    mode: int,
    owner: atomic.Owner = ROOT,
    attributes: Optional[atomic.Attributes] = None,
) -> None:
    """Write a file at once, and sweep what a killed run left beside it: there is one writer at a time.

    Raises OSError; then the file is as it was.
    """
    atomic.sweep(place)
    atomic.write(place, content, mode, owner, attributes)


def put_back(place: str, before: Any) -> None:
    """Make ``place`` what ``record.look`` said it was; None: nothing.  Raises OSError."""
    atomic.sweep(place)
    folder = os.path.isdir(place) and not os.path.islink(place)
    if folder and (before is None or "folder" not in before):
        # Other programs may keep files in the folder: then it stays, and this raises OSError.
        os.rmdir(place)
    owner = (int(before["uid"]), int(before["gid"])) if before else ROOT
    listed = dict(before.get("attributes", {})) if before else {}
    attributes = {str(name): base64.b64decode(str(value)) for name, value in listed.items()}
    if before is None:
        atomic.remove(place)
    elif "link" in before:
        atomic.link(place, str(before["link"]), owner)
    elif "content" in before:
        replace(place, base64.b64decode(str(before["content"])), int(before["mode"]), owner, attributes)
    elif folder:
        atomic.make_folder(place, int(before["mode"]), owner, attributes)
