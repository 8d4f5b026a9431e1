"""Where gdsdeploy keeps things on the controller: a cache that may be deleted, and state that may not."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache() -> Path:
    """$GDSDEPLOY_CACHE_DIR, or the user's cache folder: repository files, base images, built modules."""
    return Path(os.environ.get("GDSDEPLOY_CACHE_DIR") or platformdirs.user_cache_dir("gdsdeploy")).absolute()


def state() -> Path:
    """$GDSDEPLOY_STATE_DIR, or the user's state folder: labs, logs of runs."""
    return Path(os.environ.get("GDSDEPLOY_STATE_DIR") or platformdirs.user_state_dir("gdsdeploy")).absolute()
