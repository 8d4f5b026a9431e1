"""Time limits of reading under load."""

from __future__ import annotations

#: Seconds of reading under load: the default, and the most; and the limit of writing the file.
SECONDS, LONGEST, FILLING = 10.0, 60.0, 20.0
#: For making and removing that file, where a filesystem is slow with it.
_GRACE = 15.0


def longest(seconds: float) -> float:
    """Seconds that reading for ``seconds`` under load may take in all."""
    return seconds + FILLING + _GRACE
