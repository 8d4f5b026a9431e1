"""Sent to a host ahead of the program: reads it from standard input, keeps it in memory and becomes it.

It has to compile on every Python 3, to be able to say that one is too old.
"""

import json
import os
import select
import signal
import struct
import sys
from typing import BinaryIO


def load(stream: BinaryIO) -> None:
    """Read time limit, mark, arguments, program and its input from ``stream``; print the mark; become the program."""
    if sys.version_info < (3, 8):  # noqa: UP036 - it runs on what the host has
        sys.stderr.write("its python3 is {}.{}; 3.8 or newer is needed\n".format(*sys.version_info[:2]))
        sys.exit(78)
    (limit,) = struct.unpack(">Q", stream.read(8))
    mark, argv = part(stream), json.loads(part(stream).decode())
    program, given = keep(part(stream)), keep(part(stream))
    os.dup2(given, 0)
    os.close(given)
    guard(limit)
    os.write(1, mark)
    os.execv(sys.executable, [sys.executable, "-I", f"/proc/self/fd/{program}", *argv])  # noqa: S606


def guard(limit: int) -> None:
    """Fork a process that ends the program after ``limit`` seconds, or when nobody reads its answer any more.

    A timer of the program's own would not do: alarm() is one for the whole process, and the program uses it.
    """
    program = os.getpid()
    alive, hold = os.pipe()
    if os.fork():
        # The program keeps the other end open as long as it lives.
        os.close(alive)
        os.set_inheritable(hold, True)
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


def part(stream: BinaryIO) -> bytes:
    """One piece: eight bytes of length, then so many bytes."""
    (size,) = struct.unpack(">Q", stream.read(8))
    data = stream.read(size)
    if len(data) != size:
        sys.exit("gdsdeploy's program did not arrive whole")
    return data


def keep(data: bytes) -> int:
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
    os.set_inheritable(fd, True)
    return fd
