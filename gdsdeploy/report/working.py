"""Work that is under way, as lines for a live display and as one line for a log.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gdsdeploy.host.io.wording import span
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.report.alike import on

#: Activities in one line.
FEW: Final = 3


@dataclass(frozen=True)
class Activity:
    """What is done, and on which host; without a host: a step of this program."""

    what: str
    host: str
    #: seconds of a clock that only advances
    since: float
    #: seconds; None: it isn't known
    usual: float | None = None
    #: whether its time says how long such work takes
    timed: bool = True


def lines(activities: Iterable[Activity], now: float, rows: int) -> list[str]:
    """The steps, then the hosts at work, the longest first; ``rows``: lines at most."""
    steps, hosts = _words(activities, now)
    text = [*(f"‣ {words}" for words in steps), *(f"    {words}" for words in hosts)]
    return text if len(text) <= rows else [*text[: max(1, rows - 1)], f"    and {len(text) - max(1, rows - 1)} more"]


def heartbeat(activities: Iterable[Activity], now: float) -> str:
    """``  still at work: …``; empty: nothing is under way."""
    steps, hosts = _words(activities, now)
    # The outermost step, and what goes on in it.
    words = [*steps[:1], *(hosts or steps[1:])]
    rest = len(words) - 1 - FEW
    more = [f"and {rest} more"] if rest > 0 else []
    return f"  still at work: {'; '.join([*words[: 1 + FEW], *more])}" if words else ""


def _words(activities: Iterable[Activity], now: float) -> tuple[list[str], list[str]]:
    ordered = sorted(activities, key=lambda each: each.since)
    steps = [_line(each.what, [each], now) for each in ordered if not each.host]
    return steps, list(_hosts([each for each in ordered if each.host], now))


def _hosts(ordered: list[Activity], now: float) -> Iterator[str]:
    of = {each.host: each for each in ordered}
    groups = grouped((each.host, each.what) for each in ordered)
    for what, hosts in sorted(groups.items(), key=lambda group: of[group[1][0]].since):
        yield _line(f"{on(hosts)}: {what}", [of[host] for host in hosts], now)


def _line(words: str, same: list[Activity], now: float) -> str:
    usual = next((each.usual for each in same if each.usual is not None), None)
    return f"{words} for {span(now - same[0].since)}" + ("" if usual is None else f" (usually {span(usual)})")
