"""What a lab remembers: JSON objects in files, each replaced at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gdsdeploy import atomic


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` at once by ``value`` as JSON."""
    atomic.write(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None when there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return value
