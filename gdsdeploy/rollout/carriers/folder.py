"""Writes a rendered folder, and leaves files alone that gdsdeploy didn't render."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gdsdeploy import atomic
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.rollout.carriers.layout import Carrier, Content, manifest

T = TypeVar("T")


@dataclass(frozen=True)
class WrittenFiles:
    """Paths below the folder."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: changed after an earlier rendering, and now rendered again
    restored: tuple[str, ...]


def write(
    folder: Path, carrier: Carrier, lock_digest: str, files: Mapping[str, Content], served: Mapping[str, Path]
) -> WrittenFiles:
    """Make ``folder`` hold ``files``, and below ``serve/`` what is ``served``, with their manifest.

    Other files stay (a key in ``env/``, git's own).  Raises FleetInvalid when gdsdeploy didn't render the folder, when
    it's of another carrier, or can't be written.
    """
    try:
        before = _before(folder, carrier)
        sums = {path: _sum(content) for path, content in sorted(files.items())}
        sums_served = {path: _sum(source) for path, source in sorted(served.items())}
        every = {**files, **_below_served(served)}
        digests = {**sums, **_below_served(sums_served)}
        changed, restored = _place(folder, every, digests, before)
        removed = _remove(folder, before.keys() - digests.keys())
        text = manifest(carrier, lock_digest, sums, sums_served)
        mark = folder / carrier_check.MANIFEST
        if not mark.exists() or mark.read_bytes() != text:
            atomic.write(mark, text, mode=0o644)
            changed.append(carrier_check.MANIFEST)
    except OSError as error:
        raise FleetInvalid(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="Make it writable, or make room"
        ) from None
    return WrittenFiles(tuple(changed), tuple(removed), tuple(restored))


def _below_served(files: Mapping[str, T]) -> dict[str, T]:
    return {f"{carrier_check.SERVED}/{path}": value for path, value in files.items()}


def _before(folder: Path, carrier: Carrier) -> dict[str, str]:
    """Path → digest of what was rendered before; a new folder gets its manifest at once, so that a retry continues."""
    mark = folder / carrier_check.MANIFEST
    if mark.is_file():
        value = carrier_check.parse(str(mark))
        if value is None:
            raise FleetInvalid(f"{mark}: it is no manifest of gdsdeploy", hint="Name an empty folder, or a new one")
        if value.get("for") != carrier:
            raise FleetInvalid(
                f"{folder}: it was rendered for {value.get('for')}, not for {carrier}", hint="Name another folder"
            )
        return {**value["files"], **_below_served(value.get("served") or {})}
    folder.mkdir(parents=True, exist_ok=True)
    # A new repository, or an empty clone, counts as an empty folder.
    if any(entry.name != ".git" for entry in folder.iterdir()):
        raise FleetInvalid(
            f"{folder}: it is not empty, and gdsdeploy did not render it", hint="Name an empty folder, or a new one"
        )
    atomic.write(mark, manifest(carrier, "", {}, {}), mode=0o644)
    return {}


def _place(
    folder: Path, files: Mapping[str, Content], digests: Mapping[str, str], before: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    changed, restored = [], []
    for path, content in sorted(files.items()):
        place = folder / path
        digest = carrier_check.sha256(str(place)) if place.exists() else None
        if digest == digests[path]:
            if place.stat().st_mode & 0o777 != 0o644:
                place.chmod(0o644)
            continue
        if digest is not None and path in before and digest != before[path]:
            restored.append(path)
        _write(place, content)
        changed.append(path)
    return changed, restored


def _write(place: Path, content: Content) -> None:
    """Replace the file without an fsync: after a crash, the manifest shows what is missing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    try:
        if isinstance(content, Path):
            shutil.copyfile(content, part)
        else:
            part.write_bytes(content)
        part.chmod(0o644)
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove(folder: Path, paths: set[str]) -> list[str]:
    """Remove files that are no longer rendered, with folders that this leaves empty."""
    removed = []
    for path in sorted(paths):
        place = folder / path
        if ".." in Path(path).parts or not place.is_file() or place.is_symlink():
            continue
        place.unlink()
        removed.append(path)
        for parent in place.parents:
            if parent == folder or any(parent.iterdir()):
                break
            parent.rmdir()
    return removed


def _sum(content: Content) -> str:
    return carrier_check.sha256(str(content)) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()
