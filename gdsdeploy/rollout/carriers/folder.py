"""Writing a rendered folder: only one that is ours, the same bytes for the same input, what is another's left alone."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import atomic
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.rollout.carriers.layout import Carrier, Content, manifest


@dataclass(frozen=True)
class Written:
    """Paths below the folder."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: changed by somebody since they were rendered, and now as rendered again
    restored: tuple[str, ...]


def write(
    folder: Path, carrier: Carrier, lock_digest: str, files: Mapping[str, Content], served: Mapping[str, Path]
) -> Written:
    """Make ``folder`` hold ``files``, and below ``serve/`` what is ``served``, with their manifest.

    Files that were never rendered stay (a key in ``env/``, git's own).  Raises FleetInvalid when the folder is not
    ours, is of another carrier, or cannot be written.
    """
    try:
        before = _before(folder, carrier)
        sums = {path: _sum(content) for path, content in sorted(files.items())}
        sums_served = {path: _sum(source) for path, source in sorted(served.items())}
        every = {**files, **{f"{carrier_check.SERVED}/{path}": source for path, source in served.items()}}
        wanted = {**sums, **{f"{carrier_check.SERVED}/{path}": value for path, value in sums_served.items()}}
        changed, restored = _place(folder, every, wanted, before)
        removed = _remove(folder, before.keys() - wanted.keys())
        text = manifest(carrier, lock_digest, sums, sums_served)
        mark = folder / carrier_check.MANIFEST
        if not mark.exists() or mark.read_bytes() != text:
            atomic.write(mark, text, mode=0o644)
            changed.append(carrier_check.MANIFEST)
    except OSError as error:
        raise FleetInvalid(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="Make it writable, or make room"
        ) from None
    return Written(tuple(changed), tuple(removed), tuple(restored))


def _before(folder: Path, carrier: Carrier) -> dict[str, str]:
    """Path → sum of what is there of ours; a new folder gets its mark at once, so that it can be gone on with."""
    mark = folder / carrier_check.MANIFEST
    if mark.is_file():
        return _known(mark, folder, carrier)
    folder.mkdir(parents=True, exist_ok=True)
    # A repository that was just made, or cloned empty, is as good as an empty folder.
    if any(item.name != ".git" for item in folder.iterdir()):
        raise FleetInvalid(
            f"{folder}: it is not empty, and gdsdeploy did not render it", hint="Name an empty folder, or a new one"
        )
    atomic.write(mark, manifest(carrier, "", {}, {}), mode=0o644)
    return {}


def _known(mark: Path, folder: Path, carrier: Carrier) -> dict[str, str]:
    value = carrier_check.parsed(str(mark))
    if value is None:
        raise FleetInvalid(f"{mark}: it is no manifest of gdsdeploy", hint="Name an empty folder, or a new one")
    if value.get("for") != carrier:
        raise FleetInvalid(
            f"{folder}: it was rendered for {value.get('for')}, not for {carrier}", hint="Name another folder"
        )
    served = value.get("served") or {}
    return {**value["files"], **{f"{carrier_check.SERVED}/{path}": digest for path, digest in served.items()}}


def _place(
    folder: Path, files: Mapping[str, Content], wanted: Mapping[str, str], before: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    changed, restored = [], []
    for path, content in sorted(files.items()):
        place = folder / path
        found = _found(place)
        if found == wanted[path]:
            if place.stat().st_mode & 0o777 != 0o644:
                place.chmod(0o644)
            continue
        if found is not None and path in before and found != before[path]:
            restored.append(path)
        _write(place, content)
        changed.append(path)
    return changed, restored


def _write(place: Path, content: Content) -> None:
    """In one step, but not at once on disk: the manifest, which is, notices what a crash has lost."""
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
    """Remove what was rendered before and is not any more, with the folders that this leaves empty."""
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


def _found(path: Path) -> str | None:
    try:
        return carrier_check.sha256(str(path))
    except FileNotFoundError:
        return None


def _sum(content: Content) -> str:
    if isinstance(content, Path):
        return carrier_check.sha256(str(content))
    return hashlib.sha256(content).hexdigest()
