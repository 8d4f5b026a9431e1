"""Why I/O on a mount does not take the direct path: causes in order, each with its evidence, a fix and a reference.

Pure: facts in, an explanation out.  ``storage_paths`` feeds the check ``storage.path`` and fits cufile.json.
"""

from __future__ import annotations

from .cause import BROKEN, COMPAT, DIRECT, NVIDIA_FS, P2PDMA, Cause, Path
from .explanation import (
    Explanation,
    MountPath,
    NoSuchMountError,
    as_document,
    description,
    explain,
    proof_of,
    storage_paths,
)
from .path import path_of

__all__ = [
    "BROKEN",
    "COMPAT",
    "DIRECT",
    "NVIDIA_FS",
    "P2PDMA",
    "Cause",
    "Explanation",
    "MountPath",
    "NoSuchMountError",
    "Path",
    "as_document",
    "description",
    "explain",
    "path_of",
    "proof_of",
    "storage_paths",
]
