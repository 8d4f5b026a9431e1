"""Why a step of a rollout is refused on the host."""

from __future__ import annotations

import json
import sys
from typing import Any, Callable

from ..errors import REFUSED, HostError

#: Of arguments and documents that cannot be used.
UNUSABLE = 2


def answering(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Turn what is refused into the answer that the caller asked for, and its exit status."""

    def inner(arguments: Any) -> int:
        try:
            return run(arguments)
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            return _say(arguments, "io", name + (error.strerror or str(error)), "")
        except HostError as error:
            return _say(arguments, getattr(error, "kind", "host"), error.message, error.hint)

    return inner


def _say(arguments: Any, kind: str, message: str, hint: str) -> int:
    if arguments.json:
        print(json.dumps({"error": {"kind": kind, "message": message, "hint": hint}}, sort_keys=True))
    else:
        print("error: {}{}".format(message, f" ({hint})" if hint else ""), file=sys.stderr)
    return UNUSABLE if kind == "usage" else REFUSED
