"""Files with a secret: only their owner, this user or root, may read them."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Optional, Tuple


def exposure(path: str, state: os.stat_result) -> Optional[Tuple[str, str]]:
    """Why the file ``path``, which has this ``state``, keeps no secret and the command that mends it; None: it does."""
    mode = stat.S_IMODE(state.st_mode)
    if state.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {state.st_uid}", f"chown {os.geteuid()} {shlex.quote(path)}"
    if mode & 0o077:
        return f"can be read by others than its owner (mode {mode:04o})", f"chmod 0600 {shlex.quote(path)}"
    return None
