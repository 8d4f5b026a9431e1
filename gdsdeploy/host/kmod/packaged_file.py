"""A module file that a locked package brings; programs that only read an expectation need no more of such modules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackagedFile:
    """A module file of a locked package."""

    #: Name of the module in the kernel.
    module: str
    #: Path below the kernel's folder of modules.
    file: str
    #: Checksum of the file.
    sha256: str
    #: Name of the package.
    package: str
    #: Version of the package.
    version: str

    @property
    def origin(self) -> str:
        """The package in words."""
        return f"{self.package} {self.version}"
