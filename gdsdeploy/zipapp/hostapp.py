"""Pack :mod:`gdsdeploy.host` into the one file that runs on hosts; the same sources always give the same bytes.

The collection loads this module by its own name and without the rest of gdsdeploy: hence the relative imports.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import socket
import struct
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from .. import __version__, atomic
from . import bootstrap

#: Of every start of Python as root: no variables, nothing from the current folder or a user's, no site-packages.
FLAGS = ("-I", "-S")
SHEBANG = b"#!/usr/bin/python3 -IS\n"
#: Dates in the archive: the earliest that zip knows, so that they say nothing.
DATE = (1980, 1, 1, 0, 0, 0)
#: Modules and tables.  Compiled files are left out (they belong to one Python and hold dates), and so are schemas of
#: tables, which only tests read.
PACKED = ("**/*.py", "data/*.json")
_PACKAGE = Path(__file__).parents[1]
#: What this module needs of gdsdeploy while it doesn't pack.
MODULES = (
    "__init__.py",
    "atomic.py",
    "zipapp/__init__.py",
    "zipapp/bootstrap.py",
    "zipapp/hostapp.py",
)

_MAIN = """\
import gc
import os
import sys

# Most of what is made at first are modules, which stay: looking for garbage among them takes a tenth of the time.
gc.set_threshold(100000)

if sys.version_info < (3, 9):
    sys.exit("python3 is {}.{}; 3.9 or newer is needed".format(*sys.version_info[:2]))
if os.geteuid() == 0 and os.path.isfile(sys.path[0]):
    import gdsdeploy_bootstrap

    sys.path[0] = gdsdeploy_bootstrap.unpack_file(sys.path[0])

from gdsdeploy.host.__main__ import main

sys.exit(main())
"""


def build(path: Path | None = None) -> bytes:
    """Return the zipapp; write it to ``path`` (mode 0755) if one is given and its content differs.  Raises OSError."""
    program = packed(tuple(sorted(_files())))
    if path is not None:
        _write(path, program)
    return program


@lru_cache(maxsize=2)
def packed(files: tuple[tuple[str, bytes], ...]) -> bytes:
    """The zipapp of these files; a process that asks hosts again needs it again, and compression takes longest."""
    stream = io.BytesIO(SHEBANG)
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = 0o644 << 16
            # The system that packs is recorded otherwise.
            entry.create_system = 3
            # Level 4 takes two thirds of the time of zlib's default, for 3 % more bytes.
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 4)
    return stream.getvalue()


def keep(folder: Path) -> Path:
    """The zipapp as a file in ``folder``, named by its content, so that other versions keep theirs.  Raises OSError."""
    program = build()
    path = folder / f"gdsdeploy-host-{hashlib.sha256(program).hexdigest()[:16]}.pyz"
    folder.mkdir(parents=True, exist_ok=True)
    _write(path, program)
    return path


def start(python: str = "python3") -> str:
    """A shell command that runs on a host what :func:`sent` gives it on standard input; ``python`` is quoted."""
    source = f'f=open(0,"rb",closefd=False);exec(f.read({len(_bootstrap())}));load(f)'
    return f"{python} {' '.join(FLAGS)} -c '{source}'"


def sent(
    program: bytes, argv: Sequence[str], text: bytes, mark: bytes, *, limit: int = 0, waits: bool = False
) -> bytes:
    """The standard input of :func:`start`: the bootstrap, then what it reads.

    mark: ends with a new line; printed before anything else; without it, Python did not start.
    limit: seconds after which the host ends the program; it also ends the program when the connection is gone.  0
    turns both off.
    waits: don't send the program yet: a host that doesn't have it prints ``bootstrap.request_of`` the mark, and then
    needs it ``framed``.
    """
    parts = (mark, json.dumps(list(argv)).encode(), _name(program), text, claim().encode(), b"" if waits else program)
    return _bootstrap() + struct.pack(">Q", limit) + b"".join(map(framed, parts))


def framed(part: bytes) -> bytes:
    """A piece as the bootstrap reads it."""
    return struct.pack(">Q", len(part)) + part


@lru_cache(maxsize=1)
def claim() -> str:
    """``USER@MACHINE`` of this controller, for the audit trails of hosts, which can't verify it."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@lru_cache(maxsize=2)
def digest(program: bytes) -> str:
    return hashlib.sha256(program).hexdigest()


@lru_cache(maxsize=2)
def _name(program: bytes) -> bytes:
    return bootstrap.name_of(program).encode()


@lru_cache(maxsize=1)
def _bootstrap() -> bytes:
    return (_PACKAGE / "zipapp" / "bootstrap.py").read_bytes()


def _write(path: Path, program: bytes) -> None:
    if not (path.is_file() and path.read_bytes() == program):
        # A process that runs the old one meanwhile keeps it whole.
        atomic.write(path, program, mode=0o755)


def _files() -> Iterator[tuple[str, bytes]]:
    """(name in the archive, content); the package keeps its name, so that a traceback reads as in the checkout."""
    yield "__main__.py", _MAIN.encode()
    yield "gdsdeploy_bootstrap.py", _bootstrap()
    yield "gdsdeploy/__init__.py", f'__version__ = "{__version__}"\n'.encode()
    for path in (path for pattern in PACKED for path in (_PACKAGE / "host").glob(pattern)):
        yield f"gdsdeploy/{path.relative_to(_PACKAGE).as_posix()}", path.read_bytes()
