"""The locked packages that stay while others move.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.lock.resolve.offer import Option, Subject
from gdsdeploy.model.lock import Part, RefusedChoice, Target
from gdsdeploy.repo.packages import Key

#: Subject → the parts of a lock that may move with it.
PARTS: dict[Subject, frozenset[Part]] = {
    "driver": frozenset({"driver-source", "driver-modules", "driver-userland", "companion"}),
    "kernel": frozenset({"kernel-image", "kernel-headers", "driver-modules", "nvidia-fs-modules"}),
    "nvidia-fs": frozenset({"nvidia-fs-source"}),
    "libcufile": frozenset({"libcufile", "gds-tools"}),
    "doca": frozenset({"doca"}),
}
#: Parts whose packages decide their subject: naming one of them moves the subject.
_DECIDE: dict[Part, Subject] = {
    "driver-source": "driver", "driver-modules": "driver", "kernel-image": "kernel", "kernel-headers": "kernel",
    "nvidia-fs-modules": "kernel", "nvidia-fs-source": "nvidia-fs",
    "libcufile": "libcufile", "gds-tools": "libcufile", "doca": "doca",
}  # fmt: skip


def subject_of(part: Part) -> Subject | None:
    """The subject that a package of this part decides; None for one that only follows."""
    return _DECIDE.get(part)


@dataclass(frozen=True)
class Keep:
    """A locked target, and the subjects and packages of it that may move."""

    target: Target
    moving: frozenset[str] = frozenset()

    def _moves(self, subject: Subject) -> bool:
        subjects = {subject_of(p.part) for p in self.target.packages if p.package in self.moving}
        return subject in self.moving or subject in subjects

    def locked(self) -> frozenset[Key]:
        """The files that stay where nothing forces them to move."""
        loose = {part for subject, parts in PARTS.items() if self._moves(subject) for part in parts}
        return frozenset(
            (p.package, p.version, p.architecture)
            for p in self.target.packages
            if p.part not in loose and p.package not in self.moving
        )

    def hold(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """The options; subjects that don't move have only their locked option, if it is on offer."""
        locked = [[option for option in options if self.has(option)] for options in levels]
        return [
            mine if mine and not self._moves(mine[0].subject) else list(options)
            for mine, options in zip(locked, levels, strict=True)
        ]

    def prefer(self, levels: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """All options, locked ones first, for when :meth:`hold` has no solution."""
        return [sorted(options, key=lambda o: not self.has(o) or self._moves(o.subject)) for options in levels]

    def refused(self) -> list[RefusedChoice]:
        """The lock's reasons against newer versions of subjects that don't move."""
        subjects = [subject for subject in PARTS if not self._moves(subject)]
        return [r for r in self.target.refused if r.subject in subjects]

    def has(self, option: Option) -> bool:
        """Whether an option is what the lock has."""
        if not option.packages:
            # A package of the kernel brings nvidia-fs, or nothing does.
            return option.subject == "nvidia-fs" and not (self.target.nvidia_fs and self.target.nvidia_fs.source_tree)
        keys = {(p.package, p.version, p.architecture) for p in self.target.packages}
        # Without companions: a profile that asks for one more must not move the driver.
        return all(candidate.key in keys for candidate in option.packages.values())
