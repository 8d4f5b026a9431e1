"""Module signing; the controller passes the certificate from the builder to the receiving hosts."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Read the certificate from ``shared``, or write it there."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Add the certificate for a machine that doesn't sign, if the controller has it."""
        desired = {key: value for key, value in options.items() if key != "shared"}
        shared = options.get("shared", "")
        if not options["signs"] and shared and Path(shared).exists():
            desired["certificate_content"] = base64.b64encode(self.read(shared)).decode("ascii")
        return desired

    def finish(self, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Fetch the certificate from the builder."""
        if options["signs"] and options.get("shared"):
            places = {"src": options["certificate"], "dest": options["shared"], "flat": True}
            self.play("fetch", places, variables)
