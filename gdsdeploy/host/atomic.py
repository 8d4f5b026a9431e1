"""Replace a file at once: a reader meets the old content or the new one, and so does a boot after a power cut."""

from __future__ import annotations

import os


def write(path: str, text: str) -> None:
    """Replace ``path``, readable for all; its folder is made.  Raises OSError; then the file is as it was."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def remove(path: str) -> None:
    """Remove a file if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
