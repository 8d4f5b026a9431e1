# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Sent to a host ahead of the host program: reads it from standard input and runs it in its own process.

The program contains a copy, for starts from its file.

It has to compile on every Python 3, to be able to say that one is too old: no f-strings, no annotated variables, no
unpacking in lists, and no import that an old one lacks.
"""

import io
import json
import os
import select
import signal
import stat
import struct
import sys
import time

TOO_OLD = 78
#: Root's own folder, empty after a boot.
FOLDER = "/run/gdsdeploy"
#: Seconds that the modules of a program stay there; the next call brings them back.
RETENTION = 86400


def load(stream):
    """Read a time limit, a mark, arguments, the program's name, its input, who asks, and it; print the mark; run it.

    Where the program is empty, the sender waits for the mark, or for ``request_of`` the mark, and then sends it.
    """
    if sys.version_info < (3, 9):  # noqa: UP036 - it runs on what the host has
        sys.stderr.write("its python3 is {}.{}; 3.9 or newer is needed\n".format(*sys.version_info[:2]))
        sys.exit(TOO_OLD)
    limit, mark, argv = size_in(stream), part(stream), json.loads(part(stream).decode("utf-8"))
    name, text = part(stream).decode("utf-8"), keep(part(stream))
    os.environ["GDSDEPLOY_CONTROLLER"] = part(stream).decode("utf-8")
    program = part(stream)
    if limit:
        guard(limit)

    def fetch():
        nonlocal program
        if not program:
            os.write(1, request_of(mark))
            program = part(stream)
        return program

    place, main = locate(name, fetch)
    os.dup2(text, 0)
    os.close(text)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    os.write(1, mark)
    sys.path.insert(0, place)
    sys.argv = [place] + argv
    exec(main, {"__name__": "__main__", "__file__": os.path.join(place, "__main__.py")})  # noqa: S102 # nosec B102 # the program that came with it


def request_of(mark: bytes) -> bytes:
    """What asks the sender for the program; it doesn't contain the mark, which ends with a new line."""
    return mark[:-1] + b" needs it\n"


def locate(name, fetch):
    """Where the modules of the program are, and the code to run; ``fetch`` brings the program where it isn't there yet.

    For root that is a folder, in which Python keeps the modules compiled; for others it is memory.
    """
    if os.geteuid() == 0:
        try:
            place = unpack(os.path.join(FOLDER, name), fetch)
            with open(os.path.join(place, "__main__.py")) as file:
                return place, compile(file.read(), file.name, "exec")
        except OSError:
            # No room, or a /run that can't be written: memory will do.
            pass
    import zipimport

    place = "/proc/self/fd/{}".format(keep(fetch()))
    return place, zipimport.zipimporter(place).get_code("__main__")


def unpack_file(path):
    """The folder to import the zipapp ``path`` from, or ``path`` itself where there can be none.

    From an archive, Python compiles every module twice at each start.
    """
    try:
        with open(path, "rb") as file:
            program = file.read()
        return unpack(os.path.join(FOLDER, name_of(program)), lambda: program)
    except OSError:
        return path


def name_of(program: bytes) -> str:
    """The name of the folder of ``program``: other programs have other folders."""
    import hashlib

    return "program-" + hashlib.sha256(program).hexdigest()[:32]


def unpack(folder, fetch):
    """``folder`` with the files of the program, made where it isn't there; raises OSError."""
    if is_private(folder):
        return folder
    import shutil
    import zipfile

    os.makedirs(FOLDER, 0o755, exist_ok=True)
    if not is_private(FOLDER):
        raise OSError(FOLDER + " can be changed by others")
    program = fetch()
    new = "{}.{}".format(folder, os.getpid())
    os.mkdir(new, 0o700)
    try:
        zipfile.ZipFile(io.BytesIO(program)).extractall(new)
        with open(os.path.join(new, "program.pyz"), "wb") as file:
            file.write(program)
        os.rename(new, folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        # Another call may have made it meanwhile.
        if not is_private(folder):
            raise
    for other in os.listdir(FOLDER):
        path = os.path.join(FOLDER, other)
        if other.startswith("program-") and os.lstat(path).st_mtime < time.time() - RETENTION:
            shutil.rmtree(path, ignore_errors=True)
    return folder


def is_private(folder):
    """Whether ``folder`` is a folder, no link, that only this user can write to."""
    try:
        mode = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(mode.st_mode) and mode.st_uid == os.geteuid() and not mode.st_mode & 0o022


def guard(limit):
    """Fork a watchdog that ends this process after ``limit`` seconds, or when the reader of its answer is gone.

    A timer of the program's own would not do: alarm() is one for the whole process, and the program uses it.
    """
    program = os.getpid()
    alive, hold = os.pipe()
    if os.fork():
        # The write end stays open until this process ends.
        os.close(alive)
        return
    os.close(hold)
    watched = select.poll()
    watched.register(alive, 0)
    watched.register(1, 0)
    if alive not in dict(watched.poll(limit * 1000)):
        watched.unregister(1)
        for number in (signal.SIGINT, signal.SIGKILL):
            os.kill(program, number)
            if watched.poll(3000):
                break
    os._exit(0)


def part(stream):
    """One piece: eight bytes of length, then so many bytes."""
    return whole(stream, size_in(stream))


def size_in(stream):
    """Eight bytes as a number."""
    return struct.unpack(">Q", whole(stream, 8))[0]


def whole(stream, size):
    """The next ``size`` bytes; ends this process where fewer come."""
    data = stream.read(size)
    if len(data) != size:
        sys.exit("gdsdeploy's program did not arrive whole")
    return data


def keep(data):
    """A descriptor of an unnamed file that holds ``data``."""
    try:
        fd = os.memfd_create("gdsdeploy")
    except OSError:
        # An old kernel or a sandbox: a file that has lost its name serves as well.
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
