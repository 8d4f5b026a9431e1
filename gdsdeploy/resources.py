"""Where the collection and the templates are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

from gdsdeploy import paths

_PACKAGE = Path(__file__).resolve().parent
#: What the collection is made of, beside the package itself.
COLLECTION = ("galaxy.yml", "meta", "playbooks", "plugins", "roles")


def package() -> Path:
    """The folder of the package gdsdeploy."""
    return _PACKAGE


def share() -> Path:
    """Directory that holds playbooks/, plugins/, roles/ and templates/."""
    installed = _PACKAGE / "_share"
    return installed if installed.is_dir() else _PACKAGE.parent


def playbook(name: str) -> Path:
    """Path of a playbook by its name without ending."""
    return share() / "playbooks" / f"{name}.yml"


def templates() -> Path:
    """The folder of templates for cufile.json and for the HTML report."""
    return share() / "templates"


def collections() -> Path:
    """A folder for ANSIBLE_COLLECTIONS_PATH that has this gdsdeploy's own collection, by links in the cache.

    Its name depends on where gdsdeploy is, so that several of them, and several runs of each, can share the cache.
    """
    whose = hashlib.sha256(str(share()).encode()).hexdigest()[:16]
    folder = paths.cache() / "collections" / whose
    collection = folder / "ansible_collections" / "gdsdeploy" / "gds"
    collection.mkdir(parents=True, exist_ok=True)
    if share() == _PACKAGE.parent:
        _remove_bytecode()
    for target in (*(share() / name for name in COLLECTION), _PACKAGE):
        with contextlib.suppress(FileExistsError):
            (collection / target.name).symlink_to(target)
    return folder


def _remove_bytecode() -> None:
    """Remove folders of a checkout that have bytecode alone: Ansible would take one for the module of its name."""
    for bytecode in [*_PACKAGE.glob("**/__pycache__")]:
        # Another run may remove it, and this user may not be allowed to.
        with contextlib.suppress(OSError):
            if [*bytecode.parent.iterdir()] == [bytecode]:
                shutil.rmtree(bytecode.parent)
