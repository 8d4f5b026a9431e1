"""Where the playbooks, roles and templates are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def share() -> Path:
    """Directory that holds playbooks/, roles/ and templates/."""
    installed = _PACKAGE / "_share"
    return installed if installed.is_dir() else _PACKAGE.parent


def playbook(name: str) -> Path:
    """Path of a playbook by its name without ending."""
    return share() / "playbooks" / f"{name}.yml"


def roles() -> Path:
    """The folder of roles."""
    return share() / "roles"


def templates() -> Path:
    """The folder of templates for files on hosts and for the HTML report."""
    return share() / "templates"
