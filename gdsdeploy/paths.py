"""Where files are on the controller: a cache that may be deleted, state that may not, and files that a file names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

#: Where a fleet is looked for when a command names none, unless FLEET_SETTING does.
DEFAULT_FLEET = Path("fleet.yml")
#: The variable that names the fleet file for commands that don't.
FLEET_SETTING = "GDSDEPLOY_FLEET"


def cache() -> Path:
    """$GDSDEPLOY_CACHE_DIR, or the user's cache folder: repository files, base images, built modules."""
    return Path(os.environ.get("GDSDEPLOY_CACHE_DIR") or platformdirs.user_cache_dir("gdsdeploy")).absolute()


def state() -> Path:
    """$GDSDEPLOY_STATE_DIR, or the user's state folder: labs, logs of runs."""
    return Path(os.environ.get("GDSDEPLOY_STATE_DIR") or platformdirs.user_state_dir("gdsdeploy")).absolute()


def fleet_digest(fleet: Path) -> str:
    """What the state folder calls the fleet file ``fleet``: hex digits of its path, the same through any link."""
    return hashlib.sha256(os.fsencode(fleet.resolve())).hexdigest()[:16]


def runs(fleet: Path) -> Path:
    """The folder of what runs of one fleet file leave: their logs, and the inventory of the last one."""
    return state() / "runs" / fleet_digest(fleet)


def default_fleet() -> Path:
    """The file that $GDSDEPLOY_FLEET names, else fleet.yml in the working folder, whether it is there or not."""
    return Path(os.environ.get(FLEET_SETTING) or DEFAULT_FLEET)


def fleet_file(fleet: Path) -> Path:
    """The fleet file itself where ``fleet`` is a link to it, as in a mounted ConfigMap; else ``fleet``."""
    return Path(os.path.realpath(fleet)) if os.path.islink(fleet) else fleet  # noqa: PTH114 - it raises nothing


def folder_of(fleet: Path) -> Path:
    """The folder that has a fleet file's lock, and where relative names in the file start, whatever link names it."""
    return fleet_file(fleet).parent


def locate(folder: Path, name: str) -> Path:
    """The file that a file in ``folder`` calls ``name``: absolute, from a home directory, or relative to the folder.

    If the user in ``~user`` doesn't exist, ``~user`` is taken as it is written.
    """
    return folder / os.path.expanduser(name)  # noqa: PTH111 - Path.expanduser raises RuntimeError for such a user


def is_outside(folder: Path, path: Path | str) -> bool:
    """Whether ``path``, every link on its way followed, is not in ``folder``."""
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) != real


def leads_out(folder: Path, path: Path | str) -> bool:
    """Whether ``path`` has its name in ``folder``, and a link leads out of it: the name hides which file is read."""
    above = Path(os.path.abspath(path)).parents  # noqa: PTH100 - Path.absolute leaves .. in a name
    # By what the names stand for: /proc/self/cwd may be the folder.
    return is_outside(folder, path) and not all(is_outside(folder, each) for each in above)
