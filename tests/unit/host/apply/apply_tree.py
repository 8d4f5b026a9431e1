"""Small systems in a folder, what is in them, and a resource of files with neutral names."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsdeploy.host.apply import engine, services
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.files import FOLDER, File
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Resource
from gdsdeploy.host.apply.services import Unit
from gdsdeploy.host.io.atomic import attributes_of
from gdsdeploy.host.process import Output

#: What gdsdeploy keeps for itself.
OWN = "/var/lib/gdsdeploy"


def tree(root: Path, without: Sequence[str] = (OWN,)) -> dict[str, tuple[Any, ...]]:
    """Path → kind, mode, owner, attributes and content of everything below ``root``."""
    entries: dict[str, tuple[Any, ...]] = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            place = Path(folder, name)
            path = "/" + place.relative_to(root).as_posix()
            if any(path == prefix or path.startswith(prefix + "/") for prefix in without):
                continue
            entry = place.lstat()
            what: Any = (
                str(place.readlink()) if place.is_symlink() else place.read_bytes() if place.is_file() else "folder"
            )
            mode = 0 if place.is_symlink() else stat.S_IMODE(entry.st_mode)
            attributes = {} if place.is_symlink() else attributes_of(str(place))
            entries[path] = (mode, entry.st_uid, entry.st_gid, tuple(sorted(attributes.items())), what)
    return entries


def differing(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Paths that differ between two trees."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@dataclass(frozen=True)
class DesiredFiles:
    """Files by path."""

    files: list[File] = field(default_factory=list)


class Some(FileResource[DesiredFiles]):
    """Whatever files a test wants; nothing finds it by its name."""

    name = ""
    desired_type = DesiredFiles
    reverts = ("/etc/some.d", "/etc/some.conf", "/etc/some.d/*", "/opt/deep/er/file")

    def desired_files(self, desired: DesiredFiles) -> list[File]:
        return desired.files


FILES = [
    File.of("/etc/some.conf", "some = 1\n"),
    File("/etc/some.d", FOLDER, mode=0o750),
    File.of("/etc/some.d/a", "a\n", 0o600),
    File.of("/opt/deep/er/file", "deep\n"),
]


def desired_resource(resource: Resource[Any], desired: Any, name: str = "some") -> engine.DesiredResource:
    return engine.DesiredResource(name, resource, desired)


def apply(root: Path, resource: Resource[Any], desired: Any) -> list[Any]:
    """The changes that were made."""
    return engine.run(ManagedHost(root=str(root)), [desired_resource(resource, desired)])[0].changes


def check(root: Path, resource: Resource[Any], desired: Any) -> engine.Result:
    """What would be made."""
    return engine.run(ManagedHost(check=True, root=str(root)), [desired_resource(resource, desired)])[0]


class Systemctl:
    """Stands for host/process.py: ``systemctl --root=… reenable|disable`` makes and removes links as systemd does."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str], _: float, **__: Any) -> Output:
        self.calls.append([word for word in argv if not word.startswith("--root=")])
        root = next((word.partition("=")[2] for word in argv if word.startswith("--root=")), "")
        if root:
            unit = argv[-1]
            state = Unit(True, services.observe(ManagedHost(root=root), unit).links)
            for link in state.links:
                Path(root + link).unlink()
            text = Path(root + services.path(unit)).read_text()
            for link in services.links(unit, text) if argv[-2] == "reenable" else []:
                Path(root + link).parent.mkdir(exist_ok=True)
                Path(root + link).symlink_to(services.path(unit))
        shown = [f"{unit}=" for unit in argv if unit in services.OWN and "show" in argv]
        return Output(0, "\n\n".join(shown), "")
