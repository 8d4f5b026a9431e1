"""Why a step of a rollout is refused on the host."""

from __future__ import annotations

import json
import sys
from typing import Any, Callable

from ..errors import REFUSED, HostError
from ..io.wording import quoted

#: Of arguments and documents that cannot be used.
UNUSABLE = 2


def answering(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Print an error as text or JSON, as the caller asked, and return its exit status."""

    def inner(arguments: Any) -> int:
        try:
            return run(arguments)
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            return _print(arguments, "io", name + (error.strerror or str(error)), "")
        except HostError as error:
            return _print(arguments, getattr(error, "kind", "host"), error.message, error.hint)

    return inner


def _print(arguments: Any, kind: str, message: str, hint: str) -> int:
    if arguments.json:
        print(json.dumps({"error": {"kind": kind, "message": message, "hint": hint}}, sort_keys=True))
    else:
        print(quoted(f"error: {message}{f' ({hint})' if hint else ''}"), file=sys.stderr)
    return UNUSABLE if kind == "usage" else REFUSED
