"""Folders with the files of an imitated package, taken from Debian's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gdslab.kit.content import Content, Original


class Trees:
    """Folders with the files of packages, made below ``work`` of the content's files, which they share."""

    def __init__(self, work: Path, content: Content) -> None:
        self.work, self.content = work, content

    def new(self, name: str, texts: Mapping[str, str] | None = None) -> Path:
        """An empty folder for the package ``name``, with ``texts`` by path."""
        folder = self.work / name
        folder.mkdir(parents=True)
        for path, text in (texts or {}).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder

    def moved(
        self, name: str, source: Original, places: Mapping[str, str], texts: Mapping[str, str] | None = None
    ) -> Path:
        """A folder for the package ``name``: of Debian's package ``source``, each path of ``places`` at its value.

        A path is a file, a folder, or a pattern of files that go into the folder of its value.
        """
        folder = self.new(name, texts)
        self.add(folder, source, places)
        return folder

    def add(self, folder: Path, source: Original, places: Mapping[str, str]) -> None:
        """The same into ``folder``, which exists.  Raises FileNotFoundError for a path that ``source`` doesn't have."""
        origin = self.content.unpack(source).files
        for pattern, place in places.items():
            matches = sorted(origin.glob(pattern))
            if not matches:
                raise FileNotFoundError(f"Debian's {source.package} has no {pattern}")
            for match in matches:
                copy(match, folder / place / match.name if "*" in pattern else folder / place)


def copy(source: Path, target: Path) -> None:
    """Copy a file, link or folder; files of the same file system are shared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    else:
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def replace(path: Path, text: str) -> None:
    """Write ``path``, which may share its content with another."""
    path.unlink(missing_ok=True)
    path.write_text(text)
