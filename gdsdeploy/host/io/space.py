"""What the filesystems have left that a rollout writes to."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

from ..errors import RolloutError
from ..rootdir import inside

FOLDERS = ("/", "/boot", "/lib/modules", "/var")
#: What is to be left over: a share of what is needed, and at least so many bytes.
MARGIN = 0.1
LEAST = 16 << 20


def free(root: str = "/") -> Dict[str, Dict[str, Any]]:
    """By folder ``{"bytes", "inodes", "mount"}`` that root can still use; folders on one filesystem share a mount."""
    return {folder: _free(inside(root, folder)) for folder in FOLDERS if os.path.isdir(inside(root, folder))}


def _free(path: str) -> Dict[str, Any]:
    status = os.statvfs(path)
    # f_bfree, because root writes here and may use the blocks that f_bavail leaves out.
    inodes = status.f_ffree if status.f_files else -1
    return {"bytes": status.f_bfree * status.f_frsize, "inodes": inodes, "mount": _mount(path)}


def _mount(path: str) -> str:
    """The topmost folder on the same filesystem."""
    place = os.path.realpath(path)
    device = os.stat(place).st_dev
    while place != "/" and os.stat(os.path.dirname(place)).st_dev == device:
        place = os.path.dirname(place)
    return place


def fits(need: Dict[str, Any], margin: float = MARGIN, root: str = "/") -> Dict[str, Any]:
    """Whether sizes fit: ``{"fits", "filesystems": [{"mount", "folders", "bytes", "inodes", "fits", "says"}]}``.

    need: folder of FOLDERS → bytes, or ``{"bytes", "inodes"}``; what goes to one filesystem is added up.  margin: what
    has to be left of that on top, as a share of it; at least LEAST bytes.  bytes and inodes of the answer are what is
    left afterwards; negative: what is missing.  Raises RolloutError for an invalid need.
    """
    left = free(root)
    sums: Dict[str, Any] = {}
    for folder, size in _needs(need):
        if folder not in left:
            raise RolloutError("usage", f"there is no {folder} on this host")
        entry = sums.setdefault(left[folder]["mount"], {"folders": [], "bytes": 0, "inodes": 0, "free": left[folder]})
        entry["folders"].append(folder)
        entry["bytes"] += size["bytes"]
        entry["inodes"] += size["inodes"]
    rows = [_row(mount, entry, margin) for mount, entry in sorted(sums.items())]
    return {"fits": all(row["fits"] for row in rows), "filesystems": rows}


def _row(mount: str, entry: Dict[str, Any], margin: float) -> Dict[str, Any]:
    free, need = entry["free"], entry["bytes"] + max(LEAST, int(entry["bytes"] * margin))
    limited = free["inodes"] >= 0
    inodes = free["inodes"] - entry["inodes"] if limited else -1
    fits = free["bytes"] >= need and (inodes >= 0 or not limited)
    present = f"{free['bytes'] / 1e6:.0f} MB and {free['inodes'] if limited else 'any number of'} inodes"
    needs = f"needs {need / 1e6:.0f} MB with its margin and {entry['inodes']} inodes"
    says = f"{mount} ({', '.join(entry['folders'])}) {needs}; it has {present}"
    row = {"mount": mount, "folders": entry["folders"], "bytes": free["bytes"] - entry["bytes"], "inodes": inodes}
    return {**row, "fits": fits, "says": says}


def _needs(need: Any) -> List[Tuple[str, Dict[str, int]]]:
    if not isinstance(need, dict) or not need:
        raise RolloutError("usage", "a need is a JSON object: folder → bytes", 'e.g. {"/boot": 90000000}')
    needs = []
    for folder, size in sorted(need.items()):
        value = size if isinstance(size, dict) else {"bytes": size}
        numbers = [value.get(name, 0) for name in ("bytes", "inodes")]
        valid = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers)
        if folder not in FOLDERS or set(value) - {"bytes", "inodes"} or not valid:
            words = f"folders are {', '.join(FOLDERS)}, sizes whole numbers"
            raise RolloutError("usage", f"{folder!r}: {size!r} cannot be a need; {words}")
        needs.append((folder, {"bytes": numbers[0], "inodes": numbers[1]}))
    return needs
