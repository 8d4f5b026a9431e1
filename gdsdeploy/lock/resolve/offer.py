"""What can be chosen of a stack: each subject's versions on offer, and those without a package that they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gdsdeploy.host.model import version_rules
from gdsdeploy.lock.compat import Verdict
from gdsdeploy.model.lock import Part, RefusedChoice
from gdsdeploy.repo.packages import Candidate

Subject = Literal["driver", "kernel", "nvidia-fs", "libcufile", "doca"]


@dataclass(frozen=True)
class Option:
    """One version of one subject."""

    subject: Subject
    #: e.g. ``kernel 6.12.94+deb13-amd64``
    label: str
    #: what the compatibility rules may ask about it
    facts: Mapping[str, str | None]
    #: the exact packages that it stands for
    packages: Mapping[Part, Candidate]
    #: of the package that the option is named after
    version: str = "0"
    #: what a pin may call it; bounds look at the first
    names: tuple[str, ...] = ("0",)
    #: for a kernel: as ``uname -r`` prints it
    release: str = ""
    #: for a driver: the companions of its version that the profile asks for
    companions: tuple[Candidate, ...] = ()
    #: for a kernel whose modules come from packages: label of a driver → its package, in each version; None: are built
    modules: Mapping[str, tuple[Candidate, ...]] | None = None

    @property
    def holder(self) -> Candidate:
        """The package that the option is named after; of a driver, the one that tells its maker and version."""
        return next(iter(self.packages.values()))

    def without(self, before: Iterable[Option]) -> Verdict | None:
        """The verdict against a kernel whose packages have no modules of the driver in ``before``; None: they have."""
        driver = next((option for option in before if option.subject == "driver"), None)
        if self.modules is None or driver is None or driver.label in self.modules:
            return None
        words = (
            f"For {self.label} the repositories have no modules of {driver.label}, but of {', '.join(self.modules)}."
        )
        return Verdict("packaged-modules", False, words)

    def members(self) -> Iterator[tuple[Part, Candidate]]:
        """Every package that it stands for, with what that is in the stack."""
        yield from self.packages.items()
        yield from (("companion", candidate) for candidate in self.companions)


@dataclass(frozen=True)
class Incomplete:
    """A version on offer without a package that it needs."""

    subject: Subject
    #: of the package on offer
    version: str
    refused: RefusedChoice
    #: what a pin may call it
    names: tuple[str, ...] = ()


@dataclass
class Options:
    """The options of all subjects, and versions that could have been one."""

    levels: list[list[Option]] = field(default_factory=list)
    incomplete: list[Incomplete] = field(default_factory=list)
    #: subjects without an option, in words
    missing: list[str] = field(default_factory=list)

    def add(
        self, subject: str, pin: str, versions: Iterable[Option | Incomplete], otherwise: str, instead: str = ""
    ) -> None:
        """Add the versions that the pin admits.

        otherwise: the problem if no version is complete.  instead: what else is on offer, for either problem.
        """
        expression = version_rules.parse(pin)
        offered: list[Option] = []
        for version in versions:
            if isinstance(version, Option):
                offered.append(version)
            elif expression.admits(*version.names):
                self.incomplete.append(version)
        admitted = [option for option in offered if expression.admits(*option.names)]
        self.levels.append(admitted)
        if not offered:
            self.missing.append(f"[{subject}] {otherwise}{instead}")
        elif not admitted:
            names = ", ".join(option.names[0] for option in offered[:12]) + (", …" if len(offered) > 12 else "")
            self.missing.append(f"[pin] the pin {subject}: {pin!r} admits nothing that is on offer: {names}{instead}")
