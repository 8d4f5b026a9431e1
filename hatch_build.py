"""Adds to the wheel its bill of materials, which PEP 770 wants in ``.dist-info/sboms``, and the pages of the docs."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):
    """Of the wheel only; an editable install is no artefact."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill outside of the tree; ``version`` says which kind of wheel is built."""
        self._folder = Path(tempfile.mkdtemp(prefix="gdsdeploy-build-"))
        if self.target_name != "wheel" or version != "standard":
            return
        spec = importlib.util.spec_from_file_location("sbom", Path(self.root, "gdsdeploy", "zipapp", "sbom.py"))
        assert spec is not None
        assert spec.loader is not None
        sbom = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sbom)
        file = self._folder / "gdsdeploy.cdx.json"
        file.write_bytes(sbom.of_wheel(self.metadata.version, self.metadata.core.dependencies))
        build_data["sbom_files"].append(str(file))
        for page in Path(self.root, "docs").rglob("*.md"):
            build_data["force_include"][str(page)] = f"gdsdeploy/_share/{page.relative_to(self.root)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Take the folder away again."""
        shutil.rmtree(self._folder, ignore_errors=True)
