"""Hosts below a folder for the resources that are about kernels and their modules."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from gdsdeploy.host.apply import engine, registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change

KERNEL_COMES = Change("install", "linux-image-amd64", "", "1", "missing", resource="packages.kernel")


def desired_resource(name: str, desired: dict[str, Any]) -> engine.DesiredResource:
    return engine.read_resources({"version": 1, "resources": [{"resource": name, "desired": desired}]})[0]


def check(root: Path, name: str, desired: dict[str, Any]) -> engine.Result:
    return engine.run(ManagedHost(check=True, root=str(root)), [desired_resource(name, desired)])[0]


def apply(root: Path, name: str, desired: dict[str, Any]) -> engine.Result:
    return engine.run(ManagedHost(root=str(root)), [desired_resource(name, desired)])[0]


def predicted(root: Path, name: str, desired: dict[str, Any], *pending: Change) -> list[Change]:
    """What a check predicts after these changes of earlier resources."""
    resource, typed = registry.resource(name), desired_resource(name, desired).desired
    return resource.changes(typed, resource.observe(ManagedHost(check=True, root=str(root)), typed), pending)


def short(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(change.kind, change.subject, change.reason) for change in changes]


def tree_of(root: Path) -> dict[str, str]:
    """Every file with its digest, but for what the program itself keeps."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())
    entries = {str(path.relative_to(root)): path for path in files if path.name != "before.json"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in entries.items()}
