"""Packages that left for the lock and that gdsdeploy hadn't installed: their record, and their way back.

A transaction that brings them back is simulated first.  It may move what the record has, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Collection, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ... import derived
from ...derived import Thing
from ...errors import ApplyError, CannotTellError, NotOfferedError
from ..host import ManagedHost
from ..model import Change, writing
from . import transaction
from .managers import HOLDS, INSTALLED, Installed, Manager, Package, host_manager, read_names

#: A line for each: NAME=VERSION, ``manual`` or ``automatic``, and where it applies ``held`` and ``moved``.
RECORD = "/var/lib/gdsdeploy/removed"
#: Why a package comes back.
REASON = "left"
#: Why a package doesn't return to its version.
_STAYS = "this version doesn't go with what stays on this host"
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9+._-]*(?::[a-z0-9-]+)?)=(\S+)((?: (?:manual|automatic|held|moved))*)")


class Left(NamedTuple):
    """A package in the version that it had.

    ``is_manual``: an administrator asked for it.  ``has_moved``: the lock has it, so it stayed, in another version.  A
    removal returns it to this one; a rollback only where a package that left needs that.
    """

    name: str
    version: str
    is_manual: bool = True
    is_held: bool = False
    has_moved: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.version}"

    @property
    def line(self) -> str:
        """As the record has it."""
        words = [str(self), "manual" if self.is_manual else "automatic"]
        return " ".join([*words, *(["held"] if self.is_held else []), *(["moved"] if self.has_moved else [])])


class Way(NamedTuple):
    """What comes back in one transaction, what that changes, and what can't come back, with the reason."""

    install: Tuple[Left, ...] = ()
    moves: Tuple[Change, ...] = ()
    lost: Tuple[Tuple[Left, str], ...] = ()


class Watch:
    """Around a transaction: writes down what left by it, and which of the lock's packages were there in what version.

    before: what was installed.  ours: what gdsdeploy had installed.  moving: the names in the transaction.
    """

    def __init__(
        self,
        host: ManagedHost,
        chosen: Manager,
        before: Mapping[str, Installed],
        ours: Collection[str],
        moving: Collection[str],
    ) -> None:
        self._host, self._chosen = host, chosen
        self._before = {name: package for name, package in before.items() if name not in ours}
        self._moving = moving
        self._lines = {one.name: one for one in read(host)}
        try:
            self._manual = chosen.manual(host)
        except CannotTellError:
            self._manual = set(before)

    def expect(self, leaving: Collection[str]) -> None:
        """Write down what is about to leave or move, so that a transaction that is cut off has a record, too."""
        going = [name for name in self._before if name in leaving]
        moved = [name for name in self._before if name in self._moving and len(self._before[name].versions) == 1]
        lines = {name: self._line(name, self._lines, name not in going) for name in [*moved, *going]}
        write(self._host, {**self._lines, **lines}.values())

    def _line(self, name: str, lines: Mapping[str, Left], has_moved: bool) -> Left:
        first, package = lines.get(name), self._before[name]
        if first is not None:
            return first._replace(has_moved=has_moved)
        is_held = package.is_held and name not in read_names(self._host, HOLDS)
        return Left(name, package.versions[-1], name in self._manual, is_held, has_moved)

    def record(self) -> None:
        """Call this after the transaction, whether or not it failed.  The first version of each stays on record."""
        present = self._chosen.present(self._host, configured=False)
        installed, ours = self._chosen.installed(self._host), read_names(self._host, INSTALLED)
        # What an administrator has installed again needs no line; what gdsdeploy has, goes again.
        lines = {name: one for name, one in self._lines.items() if one.has_moved or name in ours or name not in present}
        for name, package in self._before.items():
            moved = name in self._moving and len(package.versions) == 1 and name in installed
            if name not in present or (moved and installed[name].versions != package.versions):
                lines[name] = self._line(name, lines, name in present)
        write(self._host, lines.values())


def read(host: ManagedHost) -> List[Left]:
    """The record of a host; raises CannotTellError."""
    return parse(host.text(RECORD))


def parse(text: str) -> List[Left]:
    """A record; lines that no version of gdsdeploy has written are left out."""
    matches = filter(None, map(_LINE.fullmatch, text.splitlines()))
    rows = ((match[1], match[2], match[3].split()) for match in matches)
    return [
        Left(name, version, "automatic" not in words, "held" in words, "moved" in words)
        for name, version, words in rows
    ]


def write(host: ManagedHost, lines: Iterable[Left]) -> None:
    """Write the record, sorted; without lines there is no file."""
    host.keep_lines(RECORD, sorted({one.line for one in lines}))


def find(
    host: ManagedHost, chosen: Manager, lines: Sequence[Left], purged: Sequence[str] = (), *, versions: bool = False
) -> Way:
    """How the packages that left come back, together where that goes.

    purged: what leaves before.  versions: whether those that moved return to their version, too.
    """
    installed = chosen.installed(host) if lines else {}
    absent = [one for one in lines if one.name not in installed or one.name in purged]
    moved = [one for one in lines if one not in absent and one.has_moved and not _is_back(one, installed)]
    if not absent and not (moved and versions):
        return Way()
    everything = [*absent, *moved]
    for candidates in (everything, absent) if versions else (absent, everything):
        way = _together(host, chosen, candidates, purged)
        if way is not None:
            rest = [one for one in everything if one not in candidates and versions]
            return way._replace(lost=(*way.lost, *((one, _STAYS) for one in rest)))
    return _one_by_one(host, chosen, everything if versions else absent, purged)


def _together(host: ManagedHost, chosen: Manager, lines: Sequence[Left], purged: Sequence[str]) -> Optional[Way]:
    """All of them but those that no repository offers; None where they don't go together."""
    lost: List[Tuple[Left, str]] = []
    while lines:
        try:
            return Way(tuple(lines), tuple(_moves(host, chosen, lines, purged)), tuple(lost))
        except NotOfferedError as error:
            lost += [(one, str(error)) for one in lines if one.name in error.names]
            rest = [one for one in lines if one.name not in error.names]
            if len(rest) == len(lines):
                return None
            lines = rest
        except CannotTellError:
            return None
    return Way((), (), tuple(lost))


def _one_by_one(host: ManagedHost, chosen: Manager, lines: Sequence[Left], purged: Sequence[str]) -> Way:
    """As many as go together."""
    way = Way()
    for one in lines:
        try:
            moves = _moves(host, chosen, [*way.install, one], purged)
            way = Way((*way.install, one), tuple(moves), way.lost)
        except CannotTellError as error:
            way = Way(way.install, way.moves, (*way.lost, (one, str(error))))
    return way


def _moves(host: ManagedHost, chosen: Manager, lines: Sequence[Left], purged: Sequence[str]) -> List[Change]:
    """What bringing them back changes; raises CannotTellError where others that stay would change or leave."""
    names = {one.name for one in lines}
    moves = chosen.simulate_return(host, _packages(lines), [name for name in purged if name not in names])
    # What leaves before is still there.
    moves = [
        replace(move, kind="install", before="") if move.subject in purged else move
        for move in moves
        if move.kind != "remove" or move.subject not in purged
    ]
    others = [move for move in moves if move.subject not in names and move.kind != "install"]
    if others:
        words = ", ".join(f"{move.kind} {move.subject}" for move in others)
        raise CannotTellError(f"with what stays on this host it would also {words}", kind="refused")
    return moves


def bring_back(host: ManagedHost, chosen: Manager, lines: Sequence[Left], *, versions: bool = False) -> List[Change]:
    """Install ``lines`` again where that goes, and note what can't come back.

    versions: as for :func:`find`.  Raises ApplyError where a transaction that was found fails.
    """
    way = find(host, chosen, lines, versions=versions)
    for one, why in way.lost:
        command = f"{chosen.command} install {chosen.word(Package(one.name, one.version))}"
        did = "was there before" if one.has_moved else "left for the lock"
        host.notes.append(f"{one} {did} and can't come back: {why}; to try it: {command}")
    marks = _unmarked(host, chosen, lines)
    if way.install:
        _install(host, chosen, way)
    if lines:
        present = chosen.installed(host)
        back = [one for one in lines if one.name in present and (not one.has_moved or _is_back(one, present))]
        _restore_marks(host, chosen, back)
        # A line goes when the version, the mark and the hold are what it says.
        done = {one.name for one in back}
        write(host, [one for one in read(host) if one.name not in done])
    return [*changes(way), *marks]


def changes(way: Way) -> List[Change]:
    """What a way changes."""
    names = {one.name for one in way.install}
    return [replace(move, reason=REASON if move.subject in names else "dependency") for move in way.moves]


def _install(host: ManagedHost, chosen: Manager, way: Way) -> None:
    with writing(derived.PATH):
        derived.outdate([_marks(one) for one in way.install], host.root)
    try:
        chosen.bring_back(host, _packages(way.install))
    except ApplyError as error:
        hint = f"run this again; or delete {RECORD}, so that nothing comes back"
        raise ApplyError(f"what left for the lock doesn't come back: {error.message}", hint, error.kind) from None


def _restore_marks(host: ManagedHost, chosen: Manager, lines: Sequence[Left]) -> None:
    """Have packages that came back marked and held as they were; raises ApplyError."""
    due = [one for one in lines if derived.is_due(_marks(one), host.root)]
    automatic = [one.name for one in due if not one.is_manual]
    if automatic:
        chosen.mark_automatic(host, automatic)
    held = [one.name for one in due if one.is_held]
    if held and chosen.holds:
        chosen.hold(host, held)
    with writing(derived.PATH):
        derived.settle([_marks(one) for one in due], host.root, keep=False)


def _unmarked(host: ManagedHost, chosen: Manager, lines: Sequence[Left]) -> List[Change]:
    """The marks and holds that packages lack which came back in a removal that was interrupted."""
    present = chosen.installed(host) if lines else {}
    due = [one for one in lines if one.name in present and derived.is_due(_marks(one), host.root)]
    marks = [Change("mark", one.name, "manual", "automatic", "not-marked") for one in due if not one.is_manual]
    return marks + [Change("hold", one.name, "", "held", "not-held") for one in due if one.is_held and chosen.holds]


def _marks(one: Left) -> Thing:
    """The mark and the hold of a package: due from its return on.  One that others install again gets neither."""
    return Thing(f"marks of {one.name}")


def revert(host: ManagedHost, purged: Sequence[str]) -> List[Change]:
    """Bring back everything on record, after the lock's packages, pins and repositories went.

    With ``host.check`` only say it: what the record has.  Whether the host's own repositories offer it is known when
    the lock's are gone.  purged: what leaves before.
    """
    lines = read(host)
    if not lines:
        return []
    chosen = host_manager(host)
    if host.check:
        later = {name: package for name, package in chosen.installed(host).items() if name not in purged}
        moves = [
            transaction.move(chosen, package, later.get(package.package))
            for one, package in zip(lines, _packages(lines))
            if one.name not in later or (one.has_moved and not _is_back(one, later))
        ]
        return [*(replace(move, reason=REASON) for move in moves), *_unmarked(host, chosen, lines)]
    changes = bring_back(host, chosen, lines, versions=True)
    write(host, [one for one in read(host) if not one.has_moved])
    return changes


def _is_back(one: Left, installed: Mapping[str, Installed]) -> bool:
    return one.version in installed[one.name].versions


def _packages(lines: Iterable[Left]) -> List[Package]:
    return [Package(one.name, one.version) for one in lines]
