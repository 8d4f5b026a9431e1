"""Kernel modules; their archive goes from the machine that builds to those that receive, by the controller.

The builder signs it, and the controller has the builder's public key on record, from the first time on; machines that
receive verify the archive with that key.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ApplyAction, GdsError

#: The checksum of an archive that has to be delivered first.
NOT_DELIVERED = "none"
#: Where a builder has its public key.
PUBLIC_KEY = "/var/lib/gdsdeploy/builder.pub"
#: An Ed25519 key, whose encoding has a fixed beginning; nothing else gets on record.
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=\n-----END PUBLIC KEY-----\n")


class ActionModule(ApplyAction):  # type: ignore[misc]
    """Brings ``archive`` and its builder's key to a machine that receives, and fetches both from one that builds."""

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Which archive is meant, and on a machine that receives: the archive itself."""
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
            message = "an archive of modules is received only with its builder's public key, and none is named"
            raise GdsError("refused", message, "set builder_key, and builder to the name that it was signed with")
        key = self.read(options["builder_key"]).decode("ascii", "replace")
        return {**desired, "archive_sha256": digest, "builder_key": key}

    def finish(self, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Fetch the archive from the machine that built it; nothing of a builder that has another key than before."""
        if options["source"] == "build" and options.get("archive"):
            if options.get("builder_key"):
                self._require_key(Path(options["builder_key"]), options, variables)
            self.play("fetch", {"src": _place(options), "dest": options["archive"], "flat": True}, variables)

    def _require_key(self, record: Path, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Put the builder's public key on record where none is; raises GdsError where another one is."""
        fetched_key = record.with_name(f".{record.name}.{os.getpid()}")
        self.play("fetch", {"src": PUBLIC_KEY, "dest": str(fetched_key), "flat": True}, variables)
        try:
            if not _PEM.fullmatch(fetched_key.read_bytes()):
                message = f"{options['builder']} has no Ed25519 public key in {PUBLIC_KEY}"
                raise GdsError("builder-key", message, "look at that machine, then provision it again")
            with contextlib.suppress(FileExistsError):
                # One of two runs that see a first key puts it on record.
                os.link(fetched_key, record)
            if record.read_bytes() == fetched_key.read_bytes():
                record.with_name(f"{record.name}.new").unlink(missing_ok=True)
                return
            fetched_key.replace(record.with_name(f"{record.name}.new"))
        finally:
            fetched_key.unlink(missing_ok=True)
        message = f"{options['builder']} signs its modules with another key than the one on record: {record}"
        command = f"gdsdeploy kmod builders FLEET --accept {options['builder']}, then again"
        hint = f"if it was installed anew, or gdsdeploy was removed there: {command}"
        raise GdsError("builder-key", message, hint)

    def _bring(self, archive: str, options: Mapping[str, Any], variables: dict[str, Any]) -> str:
        """The checksum of the archive, which is then on the host; raises GdsError where the controller has none."""
        if not Path(archive).is_file():
            message = f"the archive of modules for {options['kernel_release']} isn't on the controller ({archive})"
            if self._task.check_mode:
                return NOT_DELIVERED
            hint = "provision the host that builds it first: run provision without --limit, or with that host in it"
            raise GdsError("not-delivered", message, hint)
        return self.bring(archive, _place(options), variables)


def _place(options: Mapping[str, Any]) -> str:
    """Where a host has the archive."""
    return f"/var/lib/gdsdeploy/modules-{options['kernel_release']}.tar"
