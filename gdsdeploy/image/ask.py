"""Enter the root of an image: namespaces of its own, on this machine's kernel, with no service."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gdsdeploy import run
from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import line
from gdsdeploy.image.root import MOUNTED, ImageRoot
from gdsdeploy.zipapp import hostapp

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
        raise HostUnfit(words, hint="The image needs Python 3.8 or newer as python3; else run the command again")
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
