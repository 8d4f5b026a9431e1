"""Replace a file at once: a reader meets the old content or the new one, never half of it, whatever happens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, content: str | bytes | Iterable[str], *, mode: int | None = None) -> None:
    """Replace the content of ``path``, text as UTF-8; on disk when this returns.

    content: whole, or in parts, of which each is written as it comes.
    mode: of the new file; None: that of the file which is replaced, or 0644.
    Raises OSError, and what the parts raise; then ``path`` is as it was and nothing is left beside it.
    """
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            parts = (content,) if isinstance(content, (str, bytes)) else content
            stream.writelines(part.encode() if isinstance(part, str) else part for part in parts)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
