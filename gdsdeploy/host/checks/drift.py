"""Whether anything but provision can change the stack's packages, and which command has."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from ..facts import HostFacts, Maybe, UndecidedError, Unknown, require
from ..facts.drift import Choice, Move
from ..facts.packages import Package
from ..io.phrases import first_few
from ..model.expectation import Expectation
from .packages import locked_packages
from .registry import Answer, check, failed, passed

#: Packages named in a finding; the rest is counted.
NAMED = 3


@check(
    "packages.drift",
    "only provision changes the stack: its packages have the locked versions, pinned and held",
    expects="every package of the lock pinned to its version and held",
    prevents="a driver that 'install cuda', an upgrade or unattended-upgrades installs, with no trace of the command",
    of_provision=True,
)
def drift(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = require(facts.packages.installed), locked_packages(expectation)
    versions = {name: _version(installed.get(name, ()), version) for name, version in locked.items()}
    moved = [
        _describe_move(name, version, versions[name], facts.drift.moves)
        for name, version in locked.items()
        if versions[name] != version
    ]
    if moved:
        hint = "Provision the host again: it restores the locked versions, and their pins and holds"
        return failed(first_few(moved, NAMED, "; "), hint, moved)
    choices, versionlocks = facts.drift.choices, facts.drift.locked
    if not isinstance(choices, Unknown):
        lines = [_apt(name, version, choices.get(name), installed.get(name, ())) for name, version in locked.items()]
        loose = list(filter(None, lines))
    elif not isinstance(versionlocks, Unknown):
        loose = [f"{name} is not locked" for name in locked if name not in versionlocks]
    else:
        raise UndecidedError(choices.reason)
    if loose:
        return failed(
            first_few(loose, NAMED, "; "), "Provision the host again: it writes the pins and sets the holds", loose
        )
    return passed(f"nothing would move {len(locked)} packages")


def _apt(name: str, version: str, choice: Optional[Choice], packages: Sequence[Package]) -> str:
    """What is wrong with apt's choice; empty: nothing."""
    if choice is None or not choice.candidate:
        return f"{name}: apt has no candidate"
    if choice.candidate != version:
        origin = f" from {choice.source}" if choice.source else ""
        return f"{name} would become {choice.candidate}{origin}"
    if not any(package.version == version and package.status.startswith("h") for package in packages):
        return f"{name} is not held"
    return ""


def _version(packages: Sequence[Package], locked: str) -> str:
    """The unpacked version, or the locked one of several: rpm keeps older kernels.

    packages.locked-versions checks whether it is configured.
    """
    versions = [package.version for package in packages if package.status[1:2] not in ("n", "c", "")]
    return locked if locked in versions else next(iter(versions), "")


def _describe_move(name: str, locked: str, installed: str, moves: Maybe[Tuple[Move, ...]]) -> str:
    text = "{} moved from {} to {}".format(name, locked, installed or "nothing")
    if isinstance(moves, Unknown):
        return f"{text}; {moves.reason}"
    # The change that installed this version, or that removed the package.
    fitting = [move for move in moves if move.package == name and (move.after == installed or not installed)]
    if not fitting:
        return text + "; no log has the change"
    last = fitting[-1]
    user = f" ({last.user})" if last.user else ""
    command = f"by '{last.command}'{user}" if last.command else "by dpkg alone, or by a command that no log has"
    return f"{text} on {last.at} {command}"
