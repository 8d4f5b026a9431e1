"""Installed packages, as the package manager reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple

from .document import Document, Ran
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class Package:
    """``status`` in dpkg's letters; ``ii`` is wanted and completely installed."""

    version: str
    architecture: str
    status: str


@dataclass(frozen=True)
class PackageFacts:
    """``installed`` holds packages of interest only, each once per architecture."""

    installed: Maybe[Mapping[str, Tuple[Package, ...]]]
    #: lines of ``dkms status``
    dkms: Maybe[Tuple[str, ...]]


def package_facts(document: Document) -> PackageFacts:
    shown = document.ran("dpkg-query")
    if isinstance(shown, Unknown):
        rpm = document.ran("rpm")
        shown = shown if isinstance(rpm, Unknown) else rpm
    dkms = document.ran("dkms")
    if not isinstance(dkms, Unknown) and dkms.status != 0:
        dkms = Unknown("dkms status: " + (dkms.stderr.strip() or f"exit status {dkms.status}"))
    return PackageFacts(
        installed=shown if isinstance(shown, Unknown) else _installed(shown),
        dkms=dkms if isinstance(dkms, Unknown) else tuple(dkms.stdout.splitlines()),
    )


def _installed(shown: Ran) -> Maybe[Mapping[str, Tuple[Package, ...]]]:
    if shown.status != 0:
        return Unknown("the package manager says: " + (shown.stderr.strip() or f"exit status {shown.status}"))
    found: Dict[str, List[Package]] = {}
    for line in shown.stdout.splitlines():
        words = line.split("\t")
        if len(words) == 4:
            found.setdefault(words[0], []).append(Package(words[1], words[2], words[3].strip()))
    return {name: tuple(items) for name, items in found.items()}
