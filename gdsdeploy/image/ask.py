"""Run the host program in the root of an image: in namespaces of its own, on this machine's kernel, with no service."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from gdsdeploy import run
from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.io import jsontext
from gdsdeploy.image.root import MOUNTED, ImageRoot
from gdsdeploy.zipapp import hostapp

#: Asked by Debian's invoke-rc.d before it starts a service.
_POLICY: Final = "/usr/sbin/policy-rc.d"
_RESOLVER: Final = "/etc/resolv.conf"
#: Where enter.sh has the file that is handed over.
_PARCEL: Final = "/run/gdsdeploy-image/parcel"
#: Puts what is handed over in its place, which is the first argument.
_UNPACK: Final = f'install -D -m 0644 -o root -g root {_PARCEL} "$1"'
_NAMESPACES: Final = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
_PROGRAMS: Final = {"unshare": "util-linux", "setpriv": "util-linux", "findmnt": "util-linux", "mount": "mount"}
#: Values in an answer.
_VALUES: Final = 100_000
#: Lines that an error quotes.
_TAIL: Final = 6


class Parcel(NamedTuple):
    """A file of this machine, and its absolute path in the image."""

    source: Path
    place: str


def ask(
    image: ImageRoot,
    argv: Sequence[str],
    stdin: bytes = b"",
    *,
    program: bytes,
    changes: bool,
    parcel: Parcel | None = None,
    line: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The host program's answer to ``argv`` in the image.

    program: the zipapp.  changes: whether it may change the image.  parcel: put in its place before.  line: takes what
    the program says meanwhile.  Raises HostUnfit where it gives no answer, MissingProgram, and Interrupted; Ctrl-C is
    passed on to the program.
    """
    for name, package in _PROGRAMS.items():
        run.which(name, hint=f"apt-get install {package}")
    mark = secrets.token_hex(16)
    answer = _Answer(mark, line)
    with _mount_point(image, _RESOLVER) as resolver, _policy(image, changes=changes) as policy:
        command = command_line(image, resolver, policy, parcel)
        sent = hostapp.sent(program, argv, stdin, f"\n{mark}\n".encode())
        status = run.stream(command, doing=f"work in {image.path}", line=answer.take, input=sent)
    return answer.document(image, status)


def command_line(image: ImageRoot, resolver: str, policy: str, parcel: Parcel | None) -> list[str]:
    """The command that starts what :func:`hostapp.sent` gives it; resolver, policy: see enter.sh."""
    script = str(resources.files("gdsdeploy") / "image" / "enter.sh")
    devices = [word for device in image.devices for word in (device.path, device.number, device.uuid)]
    source = str(parcel.source.resolve()) if parcel else ""
    inner = ["sh", script, str(image.path), resolver, policy, source, str(len(image.devices)), *devices]
    start = f"exec {hostapp.start()}"
    program = ["-c", f"{_UNPACK}\n{start}", "sh", parcel.place] if parcel else ["-c", start]
    # If this process dies, so does everything in the image.
    outer = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES]
    return [*outer, *inner, "sh", "-eu", *program]


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


class _Answer:
    """Reads lines: those before the mark and those after it that aren't the document are for a person."""

    def __init__(self, mark: str, line: Callable[[str], None]) -> None:
        self._mark, self._line = mark, line
        self._begun = False
        self._text = ""
        self._tail: deque[str] = deque(maxlen=_TAIL)

    def take(self, text: str) -> None:
        """Take in one line."""
        if text == self._mark:
            self._begun = True
        elif self._begun and text.startswith("{"):
            self._text = text
        elif text.strip():
            self._tail.append(text[:500])
            self._line(text[:500])

    def document(self, image: ImageRoot, status: int) -> dict[str, Any]:
        """The JSON object; raises HostUnfit."""
        tail = "".join(f"\n  | {text}" for text in self._tail)
        if not self._begun:
            hint = "The image needs Python 3.8 or newer as python3, and this machine has to allow namespaces and mounts"
            raise HostUnfit(f"{image.path}: gdsdeploy's program did not start there{tail}", hint=hint)
        try:
            value = jsontext.loads(self._text, items=_VALUES)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            words = f"{image.path}: gdsdeploy's program ended with status {status} and gave no answer{tail}"
            raise HostUnfit(words, hint="Run it again: it continues where it stopped")
        return value
