"""Kernel modules; the controller passes their archive from the builder to the receiving hosts.

The builder signs the archive.  The controller records the builder's public key at the first transfer, and receiving
hosts verify the archive with it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction, GdsError

#: Stands for the checksum of an archive that the controller doesn't have yet.
NOT_DELIVERED = "none"
#: Path of the public key on a builder.
PUBLIC_KEY = "/var/lib/gdsdeploy/builder.pub"
#: A public Ed25519 key, the only kind that is recorded.
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=\n-----END PUBLIC KEY-----\n")


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Bring ``archive`` and its builder's key to a receiving host, or fetch both from a builder."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """The desired state; copies the archive to a receiving host."""
        desired = {key: value for key, value in options.items() if key not in ("archive", "builder_key")}
        archive = options.get("archive", "")
        if options["source"] == "build":
            desired["builder"] = options.get("builder") or str(variables.get("inventory_hostname", ""))
            return {**desired, "hand_over": bool(archive)}
        if not archive:
            return desired
        digest = self._bring(archive, options, variables)
        if digest == NOT_DELIVERED:
            return {**desired, "archive_sha256": digest}
        if not options.get("builder_key"):
            message = "an archive of modules needs its builder's public key"
            raise GdsError("refused", message, "set builder_key, and set builder to the name in the signature")
        key = self.read(options["builder_key"]).decode("ascii", "replace")
        return {**desired, "archive_sha256": digest, "builder_key": key}

    def finish(self, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Fetch the archive from the builder, unless the builder's key has changed."""
        if options["source"] == "build" and options.get("archive"):
            if options.get("builder_key"):
                self._require_key(Path(options["builder_key"]), options, variables)
            self.play("fetch", {"src": _place(options), "dest": options["archive"], "flat": True}, variables)

    def _require_key(self, record: Path, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Record the builder's public key if there is none; raises GdsError if there is another one."""
        fetched_key = record.with_name(f".{record.name}.{os.getpid()}")
        self.play("fetch", {"src": PUBLIC_KEY, "dest": str(fetched_key), "flat": True}, variables)
        try:
            if not _PEM.fullmatch(fetched_key.read_bytes()):
                message = f"{options['builder']} has no Ed25519 public key in {PUBLIC_KEY}"
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
        message = f"{options['builder']} signs its modules with a key other than the recorded one: {record}"
        command = f"gdsdeploy kmod builders FLEET --accept {options['builder']}, then again"
        hint = f"if it was reinstalled, or gdsdeploy was removed there: {command}"
        raise GdsError("builder-key", message, hint)

    def _bring(self, archive: str, options: Mapping[str, Any], variables: dict[str, Any]) -> str:
        """Copy the archive to the host; return its checksum.  Raises GdsError if the controller doesn't have it."""
        if not Path(archive).is_file():
            message = f"the archive of modules for {options['kernel_release']} isn't on the controller ({archive})"
            if self._task.check_mode:
                return NOT_DELIVERED
            hint = "provision the host that builds it first: run provision without --limit, or with that host in it"
            raise GdsError("not-delivered", message, hint)
        return self.bring(archive, _place(options), variables)


def _place(options: Mapping[str, Any]) -> str:
    """The archive's path on a host."""
    return f"/var/lib/gdsdeploy/modules-{options['kernel_release']}.tar"
