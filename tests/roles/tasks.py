"""Tasks that apply a resource, and the tasks of playbooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IMPORT = "ansible.builtin.import_role"
APPLY = "gdsdeploy.gds.gds_apply"


def apply(resource: str, **desired: Any) -> dict[str, Any]:
    """A task that brings a resource to this desired state."""
    return {APPLY: {"resource": resource, "desired": desired}}


def remove(resource: str, **desired: Any) -> dict[str, Any]:
    """A task that takes back what a resource has changed."""
    return {APPLY: {"resource": resource, "state": "absent", "desired": desired}}


def role_of(task: Mapping[str, Any]) -> str:
    """The role that a task imports, without its collection; empty: it imports none."""
    return str(task.get(IMPORT, {}).get("name", "")).rpartition(".")[2]
