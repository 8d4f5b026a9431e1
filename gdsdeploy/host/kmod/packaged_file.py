"""A module file that a locked package brings; programs that only read an expectation need no more of such modules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackagedFile:
    """A module file of a locked package; ``file`` is below /lib/modules/RELEASE, ``version`` the package's."""

    module: str
    file: str
    sha256: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        """The package in words."""
        return f"{self.package} {self.version}"
