"""``--root DIR`` of ``plan``, ``provision`` and ``remove``: the root of an image in place of hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gdsdeploy.cli import options
from gdsdeploy.converge.image import Image, open_image
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import words
from gdsdeploy.model.lock import Lock


@contextlib.contextmanager
def selected(
    fleet: Path,
    folder: Path | None,
    limit: str | None,
    *,
    changes: bool = True,
    fresh: bool = True,
    any_serial: bool = False,
) -> Iterator[tuple[Fleet, Lock, list[str], Image | None]]:
    """The fleet, its lock, the machines of ``limit``, and the image in ``folder`` that stands for the one of them.

    changes: whether the verb may change them.  fresh, any_serial: of fleet_and_lock.
    Ends with a usage error unless an image has one machine.
    """
    intent, lock = lockfile.fleet_and_lock(fleet, fresh=fresh, signed=changes, any_serial=any_serial)
    options.require(
        folder is None or limit is not None, "--root needs --limit HOST: the host whose state the image gets"
    )
    names = selection.select(limit, list(intent.everyone()), fleet)
    if folder is None:
        yield intent, lock, names, None
        return
    options.require(len(names) == 1, f"--root needs one host, and --limit names {len(names)}: {', '.join(names)}")
    with open_image(intent, lock, names[0], folder, changes=changes) as image:
        yield image.fleet, lock, names, image


def where(names: list[str], image: Image | None) -> str:
    """What a verb works on, in words."""
    return words(names) if image is None else f"{image.root.path} as {image.name}"


def left(image: Image | None, lock: Lock) -> str:
    """What isn't done in an image, as a paragraph; empty: nothing."""
    lines = [f"  - {entry.words}" for entry in image.left(lock)] if image is not None else []
    return "\n".join(["Left out of the image:", *lines]) if lines else ""
