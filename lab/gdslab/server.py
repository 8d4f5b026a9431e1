"""The web server of a lab's repositories: a process of this user on loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsdeploy import run
from gdslab import process, records
from gdslab.errors import LabUnavailable
from gdslab.kit import kits


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


#: Seconds until the server has to listen.
PATIENCE = 20.0


@dataclass(frozen=True)
class Server:
    """The server of the lab in ``directory``, on ``port``; it serves the kit in ``folder``."""

    directory: Path
    port: int
    folder: Path

    @classmethod
    def of(cls, directory: Path, record: Mapping[str, Any]) -> Server | None:
        """The server in a lab's record; None for a lab of Debian, which uses Debian's archive."""
        value = record.get("repositories")
        return cls(directory, value["port"], Path(value["kit"])) if value else None

    @property
    def kit(self) -> kits.Kit:
        """The repositories; raises LabUnavailable if they were deleted."""
        return kits.load(self.folder)

    @property
    def uri(self) -> str:
        """Address of the folder that holds the repositories."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> Path:
        """Copies of the repositories' public keys: no link may lead out of a fleet file's folder."""
        return self.directory / "repository-keys"

    @property
    def log(self) -> Path:
        """The server's requests and errors."""
        return self.directory / "repositories.log"

    @property
    def _record(self) -> Path:
        return self.directory / "repositories.json"

    @property
    def link(self) -> Path:
        """The kit's folder, as the lab's files name it."""
        return self.directory / "repositories"

    def process(self) -> process.Process | None:
        """The server's process, recorded or running; it may have ended."""
        value = records.read_json(self._record)
        recorded = process.Process(**value) if value else None
        if recorded and process.alive(recorded):
            return recorded
        programs = {"python", "python3", Path(sys.executable).name}
        return process.find(programs, self.directory) or recorded

    def running(self) -> bool:
        """Whether the server's process is alive."""
        current = self.process()
        return current is not None and process.alive(current)

    def start(self, in_use: bool) -> None:
        """Start the server unless it runs, and wait until it listens; in_use: whether its port has a listener.

        Raises LabUnavailable if it can't listen.
        """
        if self.running():
            return
        if in_use:
            raise LabUnavailable(
                f"another program uses port {self.port} on 127.0.0.1, which the lab's repositories need",
                hint="Stop that program, or make the lab again after `gdsdeploy lab down`",
            )
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(self.kit.folder)
        self.keys.mkdir(exist_ok=True)
        for key in (*self.kit.folder.glob("*.gpg"), *self.kit.folder.glob("RPM-GPG-KEY-*")):
            shutil.copyfile(key, self.keys / key.name)
        words = ["--bind", "127.0.0.1", "--protocol", "HTTP/1.1", "--directory", str(self.link), str(self.port)]
        pid = run.spawn(
            [sys.executable, "-I", "-S", "-m", "http.server", *words], doing="serve the repositories", log=self.log
        )
        current = process.identify(pid)
        if current:
            records.write_json(self._record, asdict(current))
        deadline = time.monotonic() + PATIENCE
        while current and process.alive(current) and time.monotonic() < deadline:
            if _listens(self.port):
                return
            time.sleep(0.05)
        raise LabUnavailable("the web server of the lab's repositories doesn't answer", hint=f"See {self.log}")

    def stop(self) -> None:
        """End the server's process."""
        current = self.process()
        if current:
            process.stop(current)
        self._record.unlink(missing_ok=True)

    def describe(self) -> dict[str, Any]:
        """The server as `lab list --json` shows it."""
        return {"uri": self.uri, "running": self.running()}
