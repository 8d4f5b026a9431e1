"""Why I/O on a mount does not take the direct path: causes in order, each with its evidence, a fix and a reference.

Pure: facts in, an explanation out.  ``path_of`` also feeds the check ``storage.path``.
"""

from __future__ import annotations

from .cause import BROKEN, COMPAT, DIRECT, NVIDIA_FS, P2PDMA, Cause, Path
from .explanation import Explanation, NoSuchMountError, as_document, explain
from .path import path_of

__all__ = [
    "BROKEN",
    "COMPAT",
    "DIRECT",
    "NVIDIA_FS",
    "P2PDMA",
    "Cause",
    "Explanation",
    "NoSuchMountError",
    "Path",
    "as_document",
    "explain",
    "path_of",
]
