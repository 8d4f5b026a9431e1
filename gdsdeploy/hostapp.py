"""Pack :mod:`gdsdeploy.host` into the one file that runs on hosts; the same sources always give the same bytes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from gdsdeploy import atomic, knownbuilds

SHEBANG = b"#!/usr/bin/env python3\n"
#: Dates in the archive: the earliest that zip knows, so that they say nothing.
DATE = (1980, 1, 1, 0, 0, 0)
#: Compiled files are left out: they belong to one Python and hold dates.
SUFFIX = ".py"

_MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.exit("python3 is {}.{}; 3.8 or newer is needed".format(*sys.version_info[:2]))

from gdsdeploy.host.__main__ import main

sys.exit(main())
"""


def build(path: Path | None = None) -> bytes:
    """Return the zipapp, and write it to ``path`` (mode 0755) if one is given and its content differs.

    Works from a checkout and from an installed wheel alike.  Raises OSError when ``path`` cannot be written.
    """
    stream = io.BytesIO(SHEBANG)
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_files()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            # The system that packs is recorded otherwise.
            entry.create_system = 3
            archive.writestr(entry, data)
    program = stream.getvalue()
    if path is not None:
        _place(path, program)
    return program


def keep(folder: Path) -> Path:
    """The zipapp as a file in ``folder``, named by its content: runs of different versions do not disturb each other.

    Raises OSError when it cannot be written.
    """
    program = build()
    path = folder / f"gdsdeploy-host-{hashlib.sha256(program).hexdigest()[:16]}.pyz"
    folder.mkdir(parents=True, exist_ok=True)
    _place(path, program)
    return path


def _place(path: Path, program: bytes) -> None:
    if not (path.is_file() and path.read_bytes() == program):
        # Whoever runs the old one meanwhile keeps it whole.
        atomic.write(path, program, mode=0o755)


def _files() -> Iterator[tuple[str, bytes]]:
    """(name in the archive, content); the package keeps its name, so that a traceback reads as in the checkout."""
    yield "__main__.py", _MAIN.encode()
    yield "gdsdeploy/__init__.py", b""
    yield "gdsdeploy/host/kmod/building/known.json", knownbuilds.for_hosts()
    for name, file in _walk(resources.files("gdsdeploy") / "host", "gdsdeploy/host"):
        yield name, file.read_bytes()


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        name = f"{prefix}/{item.name}"
        if item.is_dir():
            yield from _walk(item, name)
        elif item.name.endswith(SUFFIX):
            yield name, item
