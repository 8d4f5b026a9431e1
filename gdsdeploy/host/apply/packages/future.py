"""Files of repositories as a check predicts them, in a folder of a look."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Iterator

from ...errors import CannotTellError
from ..files import FILE
from ..host import SCRATCH, ManagedHost


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Around everything that writes into a folder of a look: a full disk leaves unknown what would change."""
    try:
        yield
    except OSError as error:
        raise CannotTellError(f"temporary files can't be written below {SCRATCH}: {error.strerror}") from None


def scratch_sources(host: ManagedHost, path: str) -> str:
    """A file in a folder of a look, with the name of ``path`` and what a check predicts for it.

    ``path`` configures repositories; keys that come with it are named where they lie now.
    """
    predicted = host.prediction.files
    text = predicted[path].content.decode() if path in predicted else host.text(path)
    for name, file in predicted.items():
        if name != path and file.kind == FILE and name in text:
            key = os.path.join(host.scratch("keys"), os.path.basename(name))
            _write(key, file.content)
            text = re.sub(rf"{re.escape(name)}(?=\s|$)", key, text)
    place = os.path.join(host.scratch("sources"), os.path.basename(path))
    _write(place, text.encode())
    return place


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o644)
