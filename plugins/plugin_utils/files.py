"""Files of the controller that options of resources name.

Each class stands for one resource.  ``options`` are the options that name files, as an argument specification;
``contents`` are the fields of the desired state that :meth:`Files.prepare` makes of them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

#: Refusal for the lack of what a builder's task of the same run may deliver; kind of an error, too.
NOT_DELIVERED = "not-delivered"
#: Stands for the checksum of an archive that the controller doesn't have yet.
NO_ARCHIVE = "none"
#: Path of the public key on a builder.
PUBLIC_KEY = "/var/lib/gdsdeploy/builder.pub"
#: Where the host program looks for a rollback's packages.
RESTORE = "/var/lib/gdsdeploy-restore.tar"
#: A public Ed25519 key, the only kind that is recorded.
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=\n-----END PUBLIC KEY-----\n")


class GdsError(Exception):
    """A failure; ``kind`` is for programs, ``message`` and ``hint`` for people."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


class Task(Protocol):
    """What the running task can do; all of it raises GdsError."""

    host: str
    checks: bool

    def read(self, path: str) -> bytes:
        """The content of a controller's file, found like a role's files."""

    def bring(self, source: str, place: str) -> str:
        """Copy a controller's file to the host (not in check mode); return its SHA-256."""

    def fetch(self, place: str, destination: str) -> None:
        """Copy a file of the host to the controller."""


class Files:
    """A resource without any."""

    options: ClassVar[dict[str, Any]] = {}
    contents: ClassVar[tuple[str, ...]] = ()

    def prepare(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The desired state for the resource's options."""
        return options

    def finish(self, task: Task, options: Mapping[str, Any]) -> None:
        """Called after the resource was applied without an error, not in check mode."""


class Keys(Files):
    """Keyrings of repositories."""

    options: ClassVar = {
        "keys": {
            "description": "Keys that no package of the operating system provides.",
            "type": "list",
            "elements": "dict",
            "options": {
                "src": {"description": "File on the controller.", "type": "path", "required": True},
                "dest": {"description": "File on the host.", "type": "path", "required": True},
            },
        }
    }
    contents = ("keys",)

    def prepare(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:
        """Send the content of each key to the host."""
        keys = [{"dest": key["dest"], "content": _text(task.read(key["src"]))} for key in options.get("keys", ())]
        return {**options, "keys": keys}


class Archive(Files):
    """Kernel modules: their archive goes from the builder to the receiving hosts.

    The builder signs the archive.  The controller records the builder's public key at the first transfer, and receiving
    hosts verify the archive with it.
    """

    options: ClassVar = {
        "archive": {
            "description": "Archive of audited modules on the controller, fetched from a builder and copied to a"
            " receiving host. If empty, nothing is fetched, and the host's archive stays.",
            "type": "path",
        },
        "builder_key": {
            "description": "File on the controller with the builder's public key; fetched from the builder if missing."
            " The task fails for a builder with another key. A receiving host verifies the archive with it.",
            "type": "path",
        },
    }
    contents = ("hand_over", "archive_sha256", "builder_key")

    def prepare(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:
        """Copy the archive to a receiving host."""
        desired = {key: value for key, value in options.items() if key not in self.options}
        archive = options.get("archive", "")
        if options["source"] == "build":
            return {**desired, "builder": options.get("builder") or task.host, "hand_over": bool(archive)}
        if not archive:
            return desired
        digest = self._bring(task, archive, options)
        if digest == NO_ARCHIVE:
            return {**desired, "archive_sha256": digest}
        if not options.get("builder_key"):
            message = "an archive of modules needs its builder's public key"
            raise GdsError("refused", message, "set builder_key, and set builder to the name in the signature")
        key = task.read(options["builder_key"]).decode("ascii", "replace")
        return {**desired, "archive_sha256": digest, "builder_key": key}

    def finish(self, task: Task, options: Mapping[str, Any]) -> None:
        """Fetch the archive from the builder, unless the builder's key has changed."""
        if options["source"] == "build" and options.get("archive"):
            if options.get("builder_key"):
                _require_key(task, Path(options["builder_key"]), options.get("builder") or task.host)
            task.fetch(_place(options), options["archive"])

    def _bring(self, task: Task, archive: str, options: Mapping[str, Any]) -> str:
        if Path(archive).is_file():
            return task.bring(archive, _place(options))
        message = f"the archive of modules for {options['kernel_release']} isn't on the controller ({archive})"
        if task.checks:
            return NO_ARCHIVE
        hint = "provision the host that builds it first: run provision without --limit, or with that host in it"
        raise GdsError(NOT_DELIVERED, message, hint)


def _place(options: Mapping[str, Any]) -> str:
    """The archive's path on a host."""
    return f"/var/lib/gdsdeploy/modules-{options['kernel_release']}.tar"


def _require_key(task: Task, record: Path, builder: str) -> None:
    """Record the builder's public key if there is none; raises GdsError if there is another one."""
    fetched_key = record.with_name(f".{record.name}.{os.getpid()}")
    task.fetch(PUBLIC_KEY, str(fetched_key))
    try:
        if not _PEM.fullmatch(fetched_key.read_bytes()):
            message = f"{builder} has no Ed25519 public key in {PUBLIC_KEY}"
            raise GdsError("builder-key", message, "check that machine, then provision it again")
        with contextlib.suppress(FileExistsError):
            # Of two parallel runs, one records the first key.
            os.link(fetched_key, record)
        if record.read_bytes() == fetched_key.read_bytes():
            record.with_name(f"{record.name}.new").unlink(missing_ok=True)
            return
        fetched_key.replace(record.with_name(f"{record.name}.new"))
    finally:
        fetched_key.unlink(missing_ok=True)
    message = f"{builder} signs its modules with a key other than the recorded one: {record}"
    command = f"gdsdeploy kmod builders FLEET --accept {builder}, then again"
    raise GdsError("builder-key", message, f"if it was reinstalled, or gdsdeploy was removed there: {command}")


class Certificate(Files):
    """Module signing: the certificate goes from the builder to the receiving hosts."""

    options: ClassVar = {
        "shared": {
            "description": "The certificate on the controller, fetched from the builder and copied to the others.",
            "type": "path",
        }
    }
    contents = ("certificate_content",)

    def prepare(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:
        """Add the certificate for a machine that doesn't sign, if the controller has it."""
        desired = {key: value for key, value in options.items() if key != "shared"}
        shared = options.get("shared", "")
        if not options.get("signs") and shared and Path(shared).exists():
            desired["certificate_content"] = _text(task.read(shared))
        return desired

    def finish(self, task: Task, options: Mapping[str, Any]) -> None:
        """Fetch the certificate from the builder."""
        if options.get("signs") and options.get("shared"):
            task.fetch(options["certificate"], options["shared"])


class Packages(Files):
    """A rollback's packages, from a repository on the controller."""

    options: ClassVar = {
        "archive": {
            "description": "Tar file on the controller with the earlier packages, for apt as a signed repository; empty"
            " for none.",
            "type": "path",
        },
        "keyring": {
            "description": "The key of that repository on the controller; empty for dnf.",
            "type": "path",
        },
    }
    contents = ("archive_sha256", "keyring")

    def prepare(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:
        """Bring the archive and the key to the host."""
        desired = {key: value for key, value in options.items() if key not in self.options}
        if options["step"] == "remove" or not options.get("archive"):
            return desired
        desired["archive_sha256"] = task.bring(options["archive"], RESTORE)
        if options.get("keyring"):
            desired["keyring"] = _text(task.read(options["keyring"]))
        return desired


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


#: Name of a resource → its files.
FILES: dict[str, Files] = {
    "repositories": Keys(),
    "modules": Archive(),
    "signing": Certificate(),
    "restore": Packages(),
}
