"""Number of hosts in each kind of work over time, as stacked bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final

from markupsafe import Markup

from gdsdeploy.model.rollout import FAILURES
from gdsdeploy.report.svg import element
from gdsdeploy.rollout.status import HostStatus, Status

#: User units of the drawing, and the moments at which hosts are counted.
HEIGHT: Final = 120
MOMENTS: Final = 188
#: Ends of hosts, below what is under way.
ENDS: Final = ("done", "failed")
#: From the bottom up: done grows, and what is under way lies on it.
ORDER: Final = ("done", "failed", "return", "validate", "reboot", "change", "drain", "check", "take back")

#: Kind → hosts at each moment; and the number of all of them.
Bands = tuple[Mapping[str, Sequence[int]], int]


def bands(status: Status, hosts: Sequence[HostStatus], kind_of: Mapping[str, str]) -> Bands:
    """Count ``hosts`` at MOMENTS equal distances; each is counted once at most.  kind_of: step → kind."""
    lapse = status.lapse or 1.0
    steps = {kind: [0] * (MOMENTS + 1) for kind in ORDER}

    def moment(time: float) -> int:
        return min(MOMENTS - 1, max(0, int(time / lapse * MOMENTS)))

    for host in hosts:
        # Between two steps a host still belongs to the earlier one; a host that soaks counts as done.
        over = lapse if host.ended is None else host.ended
        kinds = [(moment(work.begin), kind_of.get(work.step, "check")) for work in host.works if work.begin < over]
        if host.outcome and host.ended is not None:
            kinds.append((moment(host.ended), "failed" if host.outcome in FAILURES else "done"))
        for (begin, kind), (end, _) in pairwise([*kinds, (MOMENTS, "")]):
            steps[kind][begin] += 1
            steps[kind][end] -= 1
    return {kind: list(accumulate(changes))[:MOMENTS] for kind, changes in steps.items()}, len(hosts)


def draw(stacked: Bands, x: float, y: float, length: float) -> Markup:
    """The bands, full height being all hosts."""
    counts, total = stacked
    below = [0] * MOMENTS
    parts = [element("rect", class_="room", x=x, y=y, width=length, height=HEIGHT)]
    for kind in ORDER:
        numbers = counts[kind]
        if any(numbers):
            above = [one + other for one, other in zip(below, numbers, strict=True)]
            parts.append(_band(kind, below, above, (x, y, length, max(1, total))))
            below = above
    return element("g", *parts, class_="flow")


def _band(kind: str, low: Sequence[int], high: Sequence[int], where: tuple[float, float, float, int]) -> Markup:
    """One band as steps, with gaps where it has no hosts."""
    x, y, length, total = where
    wide = length / MOMENTS
    paths = []
    for (bottom, top), run in groupby(range(MOMENTS), lambda at: (low[at], high[at])):
        if top > bottom:
            moments = list(run)
            left, right = (x + at * wide for at in (moments[0], moments[-1] + 1))
            upper, lower = (y + HEIGHT * (1 - number / total) for number in (top, bottom))
            paths.append(f"M{left:.1f} {upper:.1f}H{right:.1f}V{lower:.1f}H{left:.1f}Z")
    name = kind.replace(" ", "-")
    most = max(one - other for one, other in zip(high, low, strict=True))
    return element(
        "g",
        element("title", f"{kind}: at most {most} of {total} hosts at a time"),
        element("path", class_="fill flat", d="".join(paths)),
        element("path", class_="pattern", d="".join(paths), fill=f"url(#t-{name})"),
        class_=f"bar {name}",
    )
