"""How long work took on this machine, in ``durations.json`` of the state folder: what a live display calls usual."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

from gdsdeploy import atomic, paths

#: Seconds that work takes at least to be worth remembering; times of one kind of work, and kinds, that are remembered.
LEAST, TIMES, KINDS = 5.0, 5, 500
#: Bytes of the file.
LIMIT = 2**20


def load() -> dict[str, list[float]]:
    """Work → seconds that it took, the latest last; empty where nothing, or nothing that can be read, is recorded."""
    try:
        with (paths.state() / "durations.json").open("rb") as file:
            value = json.loads(file.read(LIMIT))
        return {str(what): [float(seconds) for seconds in times][-TIMES:] for what, times in value.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def usual(times: Sequence[float]) -> float | None:
    """The (upper) median in seconds; None: there is no earlier time."""
    return sorted(times)[len(times) // 2] if times else None


def record(work: Mapping[str, Sequence[float]]) -> None:
    """Add times to those of earlier runs.  Where they can't be written, later runs know less."""
    times = load()
    for what, seconds in work.items():
        # What was done last is at the end; what wasn't done for the longest time is forgotten first.
        times[what] = [*times.pop(what, []), *(round(each, 1) for each in seconds)][-TIMES:]
    latest = dict(list(times.items())[-KINDS:])
    with contextlib.suppress(OSError):
        paths.state().mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(paths.state() / "durations.json", json.dumps(latest, ensure_ascii=False), mode=0o600)
