"""A secret in a file that only its owner may read; it's never an argument of a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gdsdeploy.errors import GdsError
from gdsdeploy.host.io.atomic import exposure
from gdsdeploy.host.rootdir import open_file

#: Bytes of a secret at most.
_SIZE: Final = 64 * 1024


def read_private(path: Path, name: str, error: type[GdsError]) -> str:
    """The text of ``path``, which the setting ``name`` calls and only its owner may read; raises ``error``."""
    try:
        with open_file(str(path)) as file:
            exposed = exposure(str(path), os.fstat(file.fileno()))
            text = file.read(_SIZE).decode()
    except (OSError, ValueError) as caught:
        reason = caught.strerror if isinstance(caught, OSError) else "it is no text"
        raise error(f"{name}: {path}: {reason}") from None
    if exposed:
        raise error(f"{name}: {path} {exposed[0]}", hint=f"Run: {exposed[1]}")
    return text


def read_secret(path: Path, name: str, error: type[GdsError]) -> str:
    """The one line of printable ASCII in ``path``, as :func:`read_private` reads it; raises ``error``."""
    secret = read_private(path, name, error).strip()
    if not secret or not secret.isprintable() or not secret.isascii():
        raise error(f"{name}: {path} holds no secret", hint="One line of printable ASCII")
    return secret
