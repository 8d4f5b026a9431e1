"""What the host validates itself against: ``/etc/gdsdeploy/expectation.json``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, List, Sequence

from ..model import expectation
from ..model.schema import LINES
from ..paths import EXPECTATION
from .file_resource import FileResource
from .files import FOLDER, File
from .model import Change


@dataclass(frozen=True)
class Desired:
    """What the host checks itself by."""

    #: JSON text for ``/etc/gdsdeploy/expectation.json``.  Empty on machines that only build: nothing is written.
    expectation: str = field(default="", metadata=LINES)


class Expectation(FileResource[Desired]):
    """The expectation, if this host has one."""

    name = "expectation"
    desired_type = Desired
    removal_rank = 130
    reverts = (EXPECTATION,)

    def desired_files(self, desired: Desired) -> List[File]:
        if not desired.expectation:
            return []
        return [File("/etc/gdsdeploy", FOLDER, mode=0o755), File.of(EXPECTATION, desired.expectation)]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """What differs.  The expectation of an image, which names no host, serves each host that boots from it."""
        changes = super().changes(desired, observed, pending)
        return [change for change in changes if change.reason != "content" or change.before != _of_image(desired)]


def _of_image(desired: Desired) -> str:
    """The digest of this expectation without its host; empty for a text that isn't an expectation."""
    try:
        text = replace(expectation.from_json(desired.expectation), host="").to_json()
    except ValueError:
        return ""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
