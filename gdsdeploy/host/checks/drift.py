"""Whether anything but provision can move the stack, and who has."""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from ..facts import HostFacts, UndecidedError, Unknown, known
from ..facts.drift import Choice, Move
from ..facts.packages import Package
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

#: Packages named in a finding; the rest is counted.
NAMED = 3


@check(
    "packages.drift",
    "nothing but provision moves the stack: it is where the lock has it, pinned and held",
    expects="every package of the lock pinned to its version and held",
    prevents="a driver that 'install cuda', an upgrade or unattended-upgrades drags in; not knowing who did",
)
def drift(facts: HostFacts, expectation: Expectation) -> Answer:
    installed = known(facts.packages.installed)
    if not expectation.packages:
        raise UndecidedError("the expectation names no packages")
    wanted = sorted(expectation.packages.items())
    moved = [
        _moved(name, version, _version(installed, name), facts.drift.moves)
        for name, version in wanted
        if _version(installed, name) != version
    ]
    if moved:
        hint = "Provision the host again: it brings the locked versions back, and their pins and holds"
        return failed(_some(moved), hint, moved)
    if not isinstance(facts.drift.choices, Unknown):
        loose = [line for name, version in wanted for line in _apt(name, version, facts.drift.choices, installed)]
    elif not isinstance(facts.drift.locked, Unknown):
        locked = facts.drift.locked
        loose = [f"{name} is not locked" for name, _ in wanted if name not in locked]
    else:
        raise UndecidedError(facts.drift.choices.reason)
    if loose:
        return failed(_some(loose), "Provision the host again: it writes the pins and sets the holds", loose)
    return passed(f"nothing would move {len(wanted)} packages")


def _apt(
    name: str, version: str, choices: Mapping[str, Choice], installed: Mapping[str, Tuple[Package, ...]]
) -> List[str]:
    choice = choices.get(name)
    if choice is None or not choice.candidate:
        return [f"{name}: apt has no candidate"]
    if choice.candidate != version:
        origin = f" from {choice.source}" if choice.source else ""
        return [f"{name} would become {choice.candidate}{origin}"]
    if not any(item.version == version and item.status.startswith("h") for item in installed[name]):
        return [f"{name} is not held"]
    return []


def _version(installed: Mapping[str, Tuple[Package, ...]], name: str) -> str:
    """What is unpacked; whether it is configured is for packages.locked-versions to say."""
    there = [item.version for item in installed.get(name, ()) if item.status[1:2] not in ("n", "c", "")]
    return there[0] if there else ""


def _moved(name: str, locked: str, now: str, moves: object) -> str:
    text = "{} moved from {} to {}".format(name, locked, now or "nothing")
    if isinstance(moves, Unknown):
        return f"{text}; {moves.reason}"
    last = _last(name, now, moves if isinstance(moves, tuple) else ())
    if last is None:
        return text + "; no log tells when"
    if last.command:
        by = f" by '{last.command}'" + (f" ({last.user})" if last.user else "")
    else:
        by = " by dpkg alone, or by a command that no log tells"
    return f"{text} on {last.at}{by}"


def _last(name: str, now: str, moves: Sequence[Move]) -> Optional[Move]:
    """The change that brought the version that is there now, or that took the package away."""
    fit = [item for item in moves if item.package == name and (item.after == now or not now)]
    return fit[-1] if fit else None


def _some(lines: List[str]) -> str:
    rest = len(lines) - NAMED
    return "; ".join(lines[:NAMED]) + (f"; and {rest} more" if rest > 0 else "")
