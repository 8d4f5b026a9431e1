"""Reading the tasks of a playbook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IMPORT = "ansible.builtin.import_role"


def role_of(task: Mapping[str, Any]) -> str:
    """The role that a task imports, without its collection; empty: it imports none."""
    return str(task.get(IMPORT, {}).get("name", "")).rpartition(".")[2]
