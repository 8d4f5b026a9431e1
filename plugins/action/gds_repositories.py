"""Repositories, with their keys read on the controller."""

from __future__ import annotations

import base64
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Send the content of each key to the host."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Replace ``src`` by ``content``."""
        keys = [{"dest": key["dest"], "content": self._content(key["src"])} for key in options["keys"]]
        return {**options, "keys": keys}

    def _content(self, path: str) -> str:
        return base64.b64encode(self.read(path)).decode("ascii")
