"""Adds to the wheel the pages of the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):
    """Of the wheel only; an editable install is no artefact."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the pages; ``version`` says which kind of wheel is built."""
        if self.target_name != "wheel" or version != "standard":
            return
        for page in Path(self.root, "docs").rglob("*.md"):
            build_data["force_include"][str(page)] = f"gdsdeploy/_share/{page.relative_to(self.root)}"
