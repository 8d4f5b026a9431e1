"""Installed packages, as the package manager reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from .document import Document, Ran
from .unknown import Maybe, Unknown, when_known


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
    run = document.ran("dpkg-query")
    if isinstance(run, Unknown):
        rpm = document.ran("rpm")
        run = run if isinstance(rpm, Unknown) else rpm
    dkms = document.ran("dkms")
    if not isinstance(dkms, Unknown) and dkms.status != 0:
        dkms = Unknown("dkms status: " + (dkms.stderr.strip() or f"exit status {dkms.status}"))
    return PackageFacts(when_known(run, _installed), when_known(dkms, lambda run: tuple(run.stdout.splitlines())))


def _installed(run: Ran) -> Maybe[Mapping[str, Tuple[Package, ...]]]:
    if run.status != 0:
        return Unknown("the package manager says: " + (run.stderr.strip() or f"exit status {run.status}"))
    installed: Dict[str, Tuple[Package, ...]] = {}
    for words in (line.split("\t") for line in run.stdout.splitlines()):
        if len(words) == 4:
            name, version, architecture, status = words
            installed[name] = (*installed.get(name, ()), Package(version, architecture, status.strip()))
    return installed
