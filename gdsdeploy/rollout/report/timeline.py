"""A rollout over time as one SVG drawing: hosts by state, then a row for each host or for those that failed.  Pure.

Every kind of step has a colour, a pattern and a name in its bar or title; failures have a cross.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from gdsdeploy.host.io.phrases import count, span
from gdsdeploy.model.rollout import FAILURES, Step
from gdsdeploy.report.svg import element
from gdsdeploy.rollout.report import flow, progress
from gdsdeploy.rollout.report.events import plain
from gdsdeploy.rollout.status import HostStatus, Status, StepAttempt, WaveStatus

#: User units: the names at the left, the time, the margin, a row and its bar, the head with the marks.
NAMES, LENGTH, MARGIN, ROW, BAR, HEAD, LEGEND = 158, 940, 10, 22, 15, 52, 26
WIDTH: Final = NAMES + LENGTH + 2 * MARGIN
#: Above so many hosts, waves share a row, and only hosts that failed have one.
HOSTS: Final = 60
#: Rows for failed hosts in a large fleet.
FAILED: Final = 40
#: Kind of work → its steps.  The name is the class, the pattern and the word.
KINDS: Final = {
    "check": (Step.PREFLIGHT,),
    "drain": (Step.DRAIN,),
    "change": (Step.ENROL, Step.SNAPSHOT, Step.APPLY, Step.MODULES, Step.AUDIT),
    "reboot": (Step.REBOOT, Step.BOOT, Step.POWER),
    "validate": (Step.VALIDATE, Step.SOAK),
    "return": (Step.RETURN,),
    "take back": (Step.UNDO, Step.UNDO_REBOOT, Step.UNDO_BOOT, Step.UNDO_VALIDATE),
}
KIND_OF: Final = {str(step): kind for kind, steps in KINDS.items() for step in steps}
#: Width of a character and of the space around a word in a bar.
_LETTER, _PAD = 6.1, 6.0
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class Segment:
    """Work of one kind without a failure in between."""

    kind: str
    works: tuple[StepAttempt, ...]
    #: as ``Status.lapse`` has it
    end: float

    @property
    def begin(self) -> float:
        return self.works[0].begin

    @property
    def open(self) -> bool:
        """Whether it was under way when the last event was written."""
        return self.works[-1].end is None

    @property
    def failed(self) -> bool:
        return self.works[-1].error is not None


def segments(host: HostStatus, now: float) -> list[Segment]:
    """The bars of ``host``: neighbouring steps of one kind share a bar, which a failure ends."""
    bars: list[Segment] = []
    for work in host.works:
        kind = KIND_OF.get(work.step, "check")
        joins = bool(bars) and bars[-1].kind == kind and not bars[-1].failed
        works = (*bars.pop().works, work) if joins else (work,)
        bars.append(Segment(kind, works, now if work.end is None else work.end))
    return bars


def draw(status: Status, title: str) -> Markup:
    """The drawing as one SVG element without outside references.  title: for screen readers."""
    scale = LENGTH / (status.lapse or 1.0)
    crowded = len(status.taking_part()) > HOSTS
    rows = _Rows(status, scale)
    body = Markup("").join([*rows.states(), *(rows.failures() if crowded else rows.hosts())])
    height = rows.bottom + MARGIN
    parts = [_patterns(), _legend(), *_pauses(status, scale, height), *_axis(status, scale, height)]
    parts += [body, *_marks(status, scale, height)]
    return element(
        "svg", *parts, class_="timeline", viewBox=f"0 0 {WIDTH} {height:g}", width=WIDTH, height=height, role="img",
        aria_label=plain(title),
    )  # fmt: skip


class _Rows:
    def __init__(self, status: Status, scale: float) -> None:
        self._status, self._scale = status, scale
        self.bottom: float = HEAD + LEGEND

    def hosts(self) -> Iterator[Markup]:
        for part in self._status.parts:
            yield from self._wave(part)
            for name in part.wave.hosts:
                yield from self._host(self._status.hosts[name])

    def states(self) -> Iterator[Markup]:
        """How many hosts are in each state."""
        hosts = self._status.taking_part()
        yield self._name(f"{count(len(hosts), 'host')} by state", "wave")
        yield flow.draw(flow.bands(self._status, hosts, KIND_OF), NAMES + MARGIN, self.bottom, LENGTH)
        self.bottom += flow.HEIGHT + 6

    def failures(self) -> Iterator[Markup]:
        """All waves in one row, then hosts that failed."""
        yield self._name(count(len(self._status.parts), "wave"), "wave")
        for part in self._status.parts:
            yield from self._span(part)
        self.bottom += ROW
        failed = self._status.failed()
        if not failed:
            return
        shown = f"{count(len(failed), 'host')} that failed"
        if len(failed) > FAILED:
            shown += f" (the first {FAILED} are drawn)"
        yield self._name(shown, "wave")
        self.bottom += ROW
        for host in failed[:FAILED]:
            yield from self._host(host)

    def _wave(self, part: WaveStatus) -> Iterator[Markup]:
        yield self._name(f"{part.wave.name} · {count(len(part.wave.hosts), 'host')}", "wave")
        yield from self._span(part)
        self.bottom += ROW

    def _span(self, part: WaveStatus) -> Iterator[Markup]:
        if part.opened is None:
            return
        closed = self._status.lapse if part.closed is None else part.closed
        hosts = count(len(part.wave.hosts), "host")
        words = f"{part.wave.name} ({hosts}): {part.state}, {span(closed - part.opened)}"
        yield element(
            "rect", element("title", plain(words)), class_="span", x=self._at(part.opened),
            y=self.bottom + ROW / 2 - 2, width=max(1.0, (closed - part.opened) * self._scale - 1), height=4,
        )  # fmt: skip

    def _host(self, host: HostStatus) -> Iterator[Markup]:
        failed = host.outcome in FAILURES
        mark = f" {progress.SYMBOLS[host.outcome]}" if failed else ""
        yield self._name(host.name + mark, "host failed" if failed else "host", host)
        bars = segments(host, self._status.lapse)
        if bars:
            path = f"M{self._at(bars[0].begin):.1f} {self.bottom + ROW / 2:g}H{self._at(bars[-1].end):.1f}"
            yield element("path", class_="wire", d=path)
        for bar in bars:
            yield self._segment(host, bar)
        self.bottom += ROW

    def _segment(self, host: HostStatus, bar: Segment) -> Markup:
        x, width = self._at(bar.begin), max(1.5, (bar.end - bar.begin) * self._scale)
        y = self.bottom + (ROW - BAR) / 2
        kind = bar.kind.replace(" ", "-")
        inside = [element("title", plain(_describe(host, bar))), *filled(kind, x, y, width, BAR)]
        text = bar.works[0].step if len(bar.works) == 1 else bar.kind
        if bar.failed:
            text = f"✗ {text}" if _fits(f"✗ {text}", width) else "✗"
        if bar.failed or _fits(text, width):
            inside.append(element("text", text, x=x + 3, y=y + BAR - 4))
        return element("g", *inside, class_=f"bar {kind}{' bad' if bar.failed else ''}{' open' if bar.open else ''}")

    def _name(self, words: str, kind: str, host: HostStatus | None = None) -> Markup:
        shown = words if len(words) <= 25 or kind == "wave" else words[:24] + "…"
        more = plain(f"{words}: {host.state}" + (f": {host.reason}" if host.reason else "")) if host else words
        return element(
            "text", element("title", more), plain(shown), class_=f"name {kind}", x=MARGIN, y=self.bottom + ROW / 2 + 4
        )

    def _at(self, lapse: float) -> float:
        return NAMES + MARGIN + lapse * self._scale


def ticks(begin: float, lapse: float) -> list[tuple[float, str]]:
    """(lapse, label) of at most eleven moments at round times of the clock, UTC; begin: seconds since the epoch."""
    step = next((seconds for seconds in _TICKS if lapse / seconds <= 10), math.ceil(lapse / 864000) * 86400)
    first = -(-begin // step) * step
    days = dt.datetime.fromtimestamp(begin, dt.UTC).date() != dt.datetime.fromtimestamp(begin + lapse, dt.UTC).date()
    labels: list[tuple[float, str]] = []
    day = ""
    for number in range(12):
        moment = first + number * step
        if moment > begin + lapse:
            break
        when = dt.datetime.fromtimestamp(moment, dt.UTC)
        label = when.strftime("%H:%M:%S" if step < 60 else "%H:%M")
        today = f"{when.day} {when:%b}"
        if days and today != day:
            day, label = today, f"{today} {label}" if step < 86400 else today
        labels.append((moment - begin, label))
    return labels


def _describe(host: HostStatus, bar: Segment) -> str:
    """Everything about a bar: the text of its title."""
    words = []
    for work in bar.works:
        lasted = "under way" if work.end is None else span(work.end - work.begin)
        again = f", attempt {work.attempt}" if work.attempt > 1 else ""
        words.append(f"{work.step} ({lasted}{again})")
    failure = bar.works[-1].error
    ends = f": failed: {failure.message}" if failure is not None else ""
    return f"{host.name}: {', '.join(words)}{ends}"


def _fits(text: str, width: float) -> bool:
    return len(text) * _LETTER + _PAD <= width


def _pauses(status: Status, scale: float, height: float) -> Iterator[Markup]:
    for begin, end in status.pauses:
        lasts = (status.lapse if end is None else end) - begin
        yield element(
            "rect", element("title", f"paused, {span(lasts)}"), class_="paused", x=NAMES + MARGIN + begin * scale,
            y=HEAD + LEGEND, width=max(1.0, lasts * scale), height=height - HEAD - LEGEND - MARGIN,
            fill="url(#t-paused)",
        )  # fmt: skip


def _axis(status: Status, scale: float, height: float) -> Iterator[Markup]:
    top = LEGEND + HEAD - 8
    yield element("text", "UTC", class_="axis", x=NAMES + MARGIN - 30, y=top)
    for lapse, label in ticks(status.began, status.lapse):
        x = NAMES + MARGIN + lapse * scale
        yield element("path", class_="tick", d=f"M{x:.1f} {top + 4}V{height - MARGIN:g}")
        # The last label would leave the drawing.
        yield element("text", label, class_="axis", text_anchor="end" if x > WIDTH - 40 else "middle", x=x, y=top)


def _marks(status: Status, scale: float, height: float) -> Iterator[Markup]:
    """What was decided for the whole rollout, as lines with a word; words that would meet go below each other."""
    placed = [(NAMES + MARGIN + lapse * scale, word) for lapse, word in status.marks]
    level, levels = 0, [0] if placed else []
    for (before, word), (x, _) in pairwise(placed):
        level = (level + 1) % 2 if x - before < len(word) * _LETTER + 12 else 0
        levels.append(level)
    for (x, word), at in zip(placed, levels, strict=True):
        top = LEGEND + 12 + 13 * at
        right = x + len(word) * _LETTER + 8 > WIDTH
        yield element("path", class_="mark", d=f"M{x:.1f} {top}V{height - MARGIN:g}")
        anchor, place = ("end", x - 4) if right else ("start", x + 4)
        yield element("text", word, class_="mark", text_anchor=anchor, x=place, y=top)


def filled(kind: str, x: float, y: float, width: float, height: float) -> tuple[Markup, Markup]:
    """A bar: its colour, and its pattern upon it."""
    place = {"x": x, "y": y, "width": width, "height": height, "rx": 2}
    return element("rect", class_="fill", **place), element("rect", class_="pattern", fill=f"url(#t-{kind})", **place)


def _legend() -> Markup:
    parts = []
    x = float(MARGIN)
    tiles = [(word, word.replace(" ", "-")) for word in (*KINDS, *flow.ENDS)]
    for word, kind in tiles:
        parts.append(element("g", *filled(kind, x, 4, 18, 12), class_=f"bar {kind}"))
        x += 23
        parts.append(element("text", word, class_="legend", x=x, y=14))
        x += len(word) * _LETTER + 16
    return Markup("").join(parts)


#: Lines that fill a tile of 8 × 8.
_TILES: Final = {
    "check": "M0 7H8", "drain": "M0 8L8 0", "change": "", "reboot": "M0 0L8 8M0 8L8 0", "validate": "M2 0V8M6 0V8",
    "return": "M0 2H8M0 6H8", "take-back": "M0 0L8 8", "done": "", "failed": "M0 4H8M4 0V8", "paused": "M0 8L8 0",
}  # fmt: skip


def _patterns() -> Markup:
    tiles = [
        element(
            "pattern", element("path", d=path), id=f"t-{kind}", class_=f"tile {kind}", width=8, height=8,
            patternUnits="userSpaceOnUse",
        )
        for kind, path in _TILES.items()
    ]  # fmt: skip
    return element("defs", *tiles)
