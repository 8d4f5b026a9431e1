"""Keys that fleet files once had: the errors about them say what to use now."""

from __future__ import annotations

from collections.abc import Sequence

#: Last two keys of a place in the file → what to use now.
REMOVED: dict[tuple[str, ...], str] = {
    ("watch", "slurm"): "see a job's path with gdsdeploy watch --job ID",
}


def advice(keys: Sequence[str]) -> str | None:
    """What an error says about the key at the end of ``keys`` if it was removed; None: it wasn't."""
    instead = REMOVED.get(tuple(keys[-2:]))
    return f"this key was removed; leave it out, and {instead}" if instead else None
