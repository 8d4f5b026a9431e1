"""What stays as a lock has it while something else moves.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.lock.resolve.dependencies import Key
from gdsdeploy.lock.resolve.options import Option, Subject
from gdsdeploy.model.lock import Part, Refused, Target

#: What of a lock belongs to which of its subjects, and so may move with it.
PARTS: dict[Subject, frozenset[Part]] = {
    "driver": frozenset({"driver-source", "driver-userland", "companion"}),
    "kernel": frozenset({"kernel-image", "kernel-headers"}),
    "nvidia-fs": frozenset({"nvidia-fs-source"}),
    "libcufile": frozenset({"libcufile", "gds-tools"}),
    "doca": frozenset({"doca"}),
}
#: Parts whose packages decide their subject: naming one of them moves the subject.
_DECIDE: dict[Part, Subject] = {
    "driver-source": "driver", "kernel-image": "kernel", "kernel-headers": "kernel", "nvidia-fs-source": "nvidia-fs",
    "libcufile": "libcufile", "gds-tools": "libcufile", "doca": "doca",
}  # fmt: skip


def subject_of(part: Part) -> Subject | None:
    """The subject that a package of this part decides; None for one that only follows."""
    return _DECIDE.get(part)


@dataclass(frozen=True)
class Keep:
    """A locked target, and what of it may move: subjects, and names of packages."""

    target: Target
    moving: frozenset[str] = frozenset()

    def _moves(self, subject: Subject) -> bool:
        named = {subject_of(p.part) for p in self.target.packages if p.package in self.moving}
        return subject in self.moving or subject in named

    def locked(self) -> frozenset[Key]:
        """The files that stay where nothing forces them to move."""
        loose = {part for subject, parts in PARTS.items() if self._moves(subject) for part in parts}
        return frozenset(
            (p.package, p.version, p.architecture)
            for p in self.target.packages
            if p.part not in loose and p.package not in self.moving
        )

    def hold(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """The options with each subject that does not move cut down to what is locked, as far as that is on offer."""
        held: list[list[Option]] = []
        for options in levels:
            mine = [o for o in options if self.has(o)]
            held.append(mine if mine and not self._moves(mine[0].subject) else list(options))
        return held

    def prefer(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """All options, what is locked first: for when holding it has no solution."""
        return [sorted(options, key=lambda o: not self.has(o) or self._moves(o.subject)) for options in levels]

    def refused(self) -> list[Refused]:
        """Why newer ones were not taken of what does not move, as the lock says."""
        subjects = [subject for subject in PARTS if not self._moves(subject)]
        return [r for r in self.target.refused if r.subject in subjects]

    def has(self, option: Option) -> bool:
        """Whether an option is what the lock has."""
        there = {(p.package, p.version, p.architecture) for p in self.target.packages}
        if not option.packages:
            return option.subject == "nvidia-fs" and self.target.nvidia_fs is None
        # Not its companions: asking for one more of them does not let the driver move.
        return all((c.package, c.version, c.architecture) in there for c in option.packages.values())
