"""Signed rpm repositories: repomd.xml with its detached signature, and what it lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    """An rpm repository with nothing left open."""

    name: str
    #: the folder that holds ``repodata``
    uri: str
    #: on the controller
    keyring: Path
    fingerprints: tuple[str, ...]
    #: on the host, for dnf's ``gpgkey``
    host_keyring: str

    def __str__(self) -> str:
        return self.name
