"""Public keys of the machines that build, on record on the controller from the first archive on.

Layout below the state folder: ``builders/<fleet file>/<name>.pub`` (PEM), where ``<fleet file>`` is a digest of its
path; ``<name>.pub.new`` is a key that a machine has shown instead of it and that was refused.  A run writes them where
a builder hands its first archive over; see ``plugins/action/gds_modules.py``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.errors import SigningKeyUnusable
from gdsdeploy.host.archive import provenance
from gdsdeploy.host.archive.provenance import Origin
from gdsdeploy.host.errors import PackError

_SUFFIX = ".pub"


@dataclass(frozen=True)
class BuilderKeys:
    """Of one fleet, in ``folder``."""

    folder: Path

    @classmethod
    def of(cls, fleet_path: Path) -> BuilderKeys:
        """The record of a fleet, whose folder is there afterwards.  Raises SigningKeyUnusable."""
        name = hashlib.sha256(str(fleet_path.resolve()).encode()).hexdigest()[:16]
        folder = paths.state() / "builders" / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            hint = "Set GDSDEPLOY_STATE_DIR to a folder that you can write to"
            raise SigningKeyUnusable(f"{folder}: cannot be made: {error.strerror}", hint=hint) from None
        return cls(folder)

    def path(self, name: str) -> Path:
        """Where the key of the machine ``name`` is, or would be."""
        return self.folder / f"{name}{_SUFFIX}"

    def origin(self, name: str) -> Origin | None:
        """The machine with its key; None where none is on record.  Raises SigningKeyUnusable."""
        pem = self._pem(self.path(name))
        return None if pem is None else Origin(name, pem)

    def refused(self, name: str) -> str | None:
        """The fingerprint of the key that the machine has shown instead; None: none."""
        pem = self._pem(self._new(name))
        return None if pem is None else fingerprint(pem)

    def accept(self, name: str) -> str:
        """Put the key on record that was refused, and return its fingerprint; raises SigningKeyUnusable without one."""
        key = self.refused(name)
        if key is None:
            words = f"{name} has shown no other key than the one on record"
            raise SigningKeyUnusable(words, hint="Provision it: it shows its key then")
        try:
            self._new(name).replace(self.path(name))
        except OSError as error:
            raise SigningKeyUnusable(f"{self.path(name)}: cannot be written: {error.strerror}") from None
        return key

    def fingerprints(self) -> dict[str, str]:
        """Machine → fingerprint, of all that are on record."""
        pems = {path.name.removesuffix(_SUFFIX): self._pem(path) for path in sorted(self.folder.glob(f"*{_SUFFIX}"))}
        return {name: fingerprint(pem) for name, pem in pems.items() if pem is not None}

    def _new(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}.new"

    def _pem(self, path: Path) -> str | None:
        try:
            pem = path.read_text(encoding="ascii", errors="replace")
            provenance.public_bytes(pem)
        except FileNotFoundError:
            return None
        except (OSError, PackError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            hint = "Remove the file: the machine shows its key when it hands modules over the next time"
            raise SigningKeyUnusable(f"{path}: {why}", hint=hint) from None
        return pem


def fingerprint(pem: str) -> str:
    """As people compare it: ``SHA256:`` and hexadecimal digits."""
    return f"SHA256:{provenance.key_id(pem)}"
