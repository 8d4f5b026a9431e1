"""Installed packages, as the package manager reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from ..paths import DKMS_FRAGMENTS, DKMS_RECIPES, DKMS_SETTINGS
from .document import Document, Ran
from .unknown import Maybe, Unknown, when_known

#: No kernel's release is empty: gdsdeploy writes it where the modules are received.
_IDLE = re.compile(r"""^BUILD_EXCLUSIVE_KERNEL=["']\^\$["']""", re.MULTILINE)
_SIGNS = re.compile(r"""^[ \t]*(?:export[ \t]+)?try_sign_modules=["']?([A-Za-z_]+)""", re.MULTILINE)


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
    #: DKMS's ``try_sign_modules``: ``true``, ``false``, or its default ``not_in_chroot``
    dkms_signs: Maybe[str]
    #: modules that DKMS builds for no kernel, by their names there
    dkms_idle: Maybe[Tuple[str, ...]]


def package_facts(document: Document) -> PackageFacts:
    run = document.ran("dpkg-query")
    if isinstance(run, Unknown):
        rpm = document.ran("rpm")
        run = run if isinstance(rpm, Unknown) else rpm
    return PackageFacts(when_known(run, _installed), _dkms(document), _dkms_signs(document), _dkms_idle(document))


def _dkms(document: Document) -> Maybe[Tuple[str, ...]]:
    if document.has("dkms"):
        return document.dkms()
    # Older evidence has what the program said.
    run = document.ran("dkms")
    if not isinstance(run, Unknown) and run.status != 0:
        return Unknown("dkms status: " + (run.stderr.strip() or f"exit status {run.status}"))
    return when_known(run, lambda run: tuple(run.stdout.splitlines()))


def _dkms_signs(document: Document) -> Maybe[str]:
    """The last assignment counts: DKMS sources its settings, then the fragments by name."""
    names = document.names(DKMS_FRAGMENTS + "/*.conf")
    if isinstance(names, Unknown):
        return names
    value = "not_in_chroot"
    for path in (DKMS_SETTINGS, *(f"{DKMS_FRAGMENTS}/{name}" for name in sorted(names or ()))):
        text = document.text(path)
        if isinstance(text, Unknown):
            return text
        value = [value, *_SIGNS.findall(text or "")][-1]
    return value


def _dkms_idle(document: Document) -> Maybe[Tuple[str, ...]]:
    names = document.names(DKMS_RECIPES)
    if isinstance(names, Unknown):
        return names
    folder = DKMS_RECIPES.rpartition("/")[0]
    texts = {name[: -len(".conf")]: document.text(f"{folder}/{name}") for name in names or ()}
    return tuple(sorted(name for name, text in texts.items() if isinstance(text, str) and _IDLE.search(text)))


def _installed(run: Ran) -> Maybe[Mapping[str, Tuple[Package, ...]]]:
    if run.status != 0:
        return Unknown("the package manager says: " + (run.stderr.strip() or f"exit status {run.status}"))
    installed: Dict[str, Tuple[Package, ...]] = {}
    for words in (line.split("\t") for line in run.stdout.splitlines()):
        if len(words) == 4:
            name, version, architecture, status = words
            installed[name] = (*installed.get(name, ()), Package(version, architecture, status.strip()))
    return installed
