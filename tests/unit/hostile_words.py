"""Words and values that a host may put anywhere, and that would do something if they were more than data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

#: Each would run, fail, vanish or be obeyed where somebody evaluates it; CANARY is the path of a file.
WORDS = (
    "{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ lookup('pipe', 'touch CANARY') }}{% raw %}{# gone #}",
    "$(touch CANARY)`touch CANARY`; touch CANARY\n",
    "--rsh=touch CANARY",
    "%s%n%(x)s {0.__class__.__init__.__globals__} {}",
    "<script>alert(1)</script>&lt;]]>\"'><img src=x onerror=alert(1)>",
    "=cmd|'/C calc'!A0,+1,@SUM(1)\t",
    "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\x00",
    "'; DROP TABLE events; --",
    "[bold red]x[/] :skull:",
    "x\ud800y",
    "../../../../etc/shadow",
    "!!python/object/apply:os.system ['touch CANARY']",
)
#: Values of other types and sizes.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e300,
    10**19,
    [],
    {},
    [[]],
    {"error": []},
    "",
    "x" * 140_000,
    ["x"],
    {"a": 1},
)


def spoiled(value: Any, word: str, keys: bool = False) -> Any:
    """The same with every text another one.  keys: those of objects, too."""
    if isinstance(value, str):
        return word
    if isinstance(value, list):
        return [spoiled(child, word, keys) for child in value]
    if isinstance(value, dict):
        return {(word if keys else key): spoiled(child, word, keys) for key, child in value.items()}
    return value


def texts(value: Any) -> list[str]:
    """Every text and every key in a value."""
    if isinstance(value, dict):
        return [part for key, child in value.items() for part in (*texts(key), *texts(child))]
    if isinstance(value, list):
        return [part for child in value for part in texts(child)]
    return [value] if isinstance(value, str) else []


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value, as the keys that lead there."""
    yield place
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(child, (*place, key))


def with_value(whole: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``whole`` with another value at one place."""
    if not place:
        return copy.deepcopy(value)
    clone = dict(whole) if isinstance(whole, dict) else list(whole)
    clone[place[0]] = with_value(whole[place[0]], place[1:], value)
    return clone
