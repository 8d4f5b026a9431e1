"""Files that verbs write: a folder is checked before hosts are asked, and a reader meets the whole text or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gdsdeploy import atomic
from gdsdeploy.errors import GdsError


def require_folder(file: Path | None) -> None:
    """Raise GdsError if the folder of ``file`` is missing, or isn't this user's: better before the hosts are asked."""
    if file is not None and not file.absolute().parent.is_dir():
        raise GdsError(f"{file}: the folder {file.parent} does not exist", hint=f"Try: mkdir -p {file.parent}")
    if file is not None and not file.exists() and not os.access(file.absolute().parent, os.W_OK):
        raise GdsError(f"{file}: you may not write to the folder {file.parent}", hint=f"Try: ls -ld {file.parent}")


def write(
    file: Path, text: str | bytes | Iterable[str], *, mode: int | None = None, error: type[GdsError] = GdsError
) -> None:
    """Write a file, whole or in parts, with ``mode`` or as ``atomic.write`` chooses it; raises ``error``."""
    try:
        atomic.write(file, text, mode=mode)
    except OSError as caught:
        hint = f"Make {file.absolute().parent} writable, or free some space"
        raise error(f"{file}: cannot be written: {caught.strerror}", hint=hint) from None


def write_each(reports: Iterable[tuple[Path | None, Callable[[], str | Iterable[str]]]]) -> dict[Path, GdsError]:
    """Write the text of every report that has a file; returns the errors of the files that can't be written."""
    errors = {}
    for file, text in reports:
        if file is not None:
            try:
                write(file, text())
            except GdsError as error:
                errors[file] = error
    return errors
