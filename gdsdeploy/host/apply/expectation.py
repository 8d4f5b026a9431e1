"""What the host validates itself against: ``/etc/gdsdeploy/expectation.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List

from ..model import expectation
from ..model.schema import LINES
from .file_resource import FileResource
from .files import FOLDER, File


@dataclass(frozen=True)
class Desired:
    """``content``: the text of the expectation; empty on machines that only build, which have none."""

    content: str = field(default="", metadata=LINES)


class Expectation(FileResource[Desired]):
    """The expectation, if this host has one."""

    name = "expectation"
    desired_type = Desired
    removal_rank = 130
    reverts = (expectation.PATH,)

    def desired_files(self, desired: Desired) -> List[File]:
        if not desired.content:
            return []
        return [File("/etc/gdsdeploy", FOLDER, mode=0o755), File.of(expectation.PATH, desired.content)]
