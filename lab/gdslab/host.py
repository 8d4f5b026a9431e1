"""A host of a lab: the base class of both kinds."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsdeploy import cancel, run
from gdsdeploy.errors import HostUnreachable, ProgramFailed
from gdslab import process, records, ssh
from gdslab.errors import LabUnavailable


@dataclass(frozen=True)
class HostRecord:
    """A host in the lab's record.

    kind: "vm" or "light".  port: of its sshd, on the controller's loopback.  base: its cached base system.
    """

    name: str
    kind: str
    port: int
    base: str


class LabHost(ABC):
    """A host of a lab; its ``directory`` holds all its files."""

    #: Whether the processes of this kind belong to root.
    runs_as_root = False
    #: Names of the programs that can be this host.
    programs: tuple[str, ...] = ()

    def __init__(self, record: HostRecord, directory: Path, ssh_config: Path) -> None:
        self.record = record
        self.name, self.kind, self.port = record.name, record.kind, record.port
        self.directory = directory
        self.ssh_config = ssh_config

    @property
    def stop_signal(self) -> int:
        """The first signal that ends the host's process."""
        return signal.SIGTERM

    @property
    @abstractmethod
    def runtime(self) -> str:
        """What runs the host: "kvm", "tcg", "systemd-nspawn" or "namespace"."""

    @abstractmethod
    def create(self, seed: bytes) -> None:
        """Make the host's missing files; ``seed``: a tar archive of its own files."""

    @abstractmethod
    def start(self) -> None:
        """Start the host unless it runs; it answers later."""

    @property
    def log(self) -> Path:
        """The output of the host's console."""
        return self.directory / "console.log"

    def process(self) -> process.Process | None:
        """The host's process, recorded or running; it may have ended."""
        value = records.read_json(self.directory / "process.json")
        recorded = process.Process(**value) if value else None
        if recorded and process.alive(recorded):
            return recorded
        return process.find(self.programs, self.directory) or recorded

    def running(self) -> bool:
        """Whether the host's process is alive."""
        current = self.process()
        return current is not None and process.alive(current)

    def stop(self) -> None:
        """End the host's process at once, as if the power failed."""
        current = self.process()
        if current:
            process.stop(current, as_root=self.runs_as_root, first=self.stop_signal)
            if process.alive(current):
                raise LabUnavailable(f"{self.name} (process {current.pid}) did not end, not even by SIGKILL")
        (self.directory / "process.json").unlink(missing_ok=True)

    def power_cycle(self) -> None:
        """Cut the power and restart the host; it writes nothing to disk first, as in a crash."""
        self.stop()
        self.start()

    def ssh(
        self,
        argv: Sequence[str],
        input: str | bytes | None = None,  # noqa: A002 - subprocess's word
        ok: Sequence[int] = (0,),
        timeout: float | None = None,
    ) -> run.Completed:
        """Run ``argv`` on the host as its user; errors as in :func:`gdslab.ssh.execute`."""
        return ssh.execute(self.ssh_config, self.name, argv, input=input, ok=ok, timeout=timeout)

    def wait_ssh(self, timeout: float = 300) -> None:
        """Return once the host accepts a login; ``timeout`` in seconds.

        Raises LabUnavailable with the end of its console when it ends, or accepts none in time.
        """
        deadline = time.monotonic() + timeout
        reason = "no answer"
        while time.monotonic() < deadline:
            if not self.running():
                raise LabUnavailable(f"{self.name} ended while starting{self._console()}", hint=f"See {self.log}")
            if not ssh.greets(self.port):
                cancel.current().wait(0.3)
                continue
            try:
                self.ssh(["true"], timeout=60)
            except (HostUnreachable, ProgramFailed) as error:
                reason = error.message
            else:
                return
        raise LabUnavailable(
            f"{self.name} did not answer within {timeout:.0f} s ({reason}){self._console()}", hint=f"See {self.log}"
        )

    def _console(self) -> str:
        """The last lines of the console, indented for an error message."""
        if not self.log.is_file():
            return ""
        lines = self.log.read_bytes()[-4000:].decode(errors="replace").splitlines()
        printable = [text for text in ("".join(c for c in line if c.isprintable()) for line in lines) if text.strip()]
        return "".join(f"\n  | {line}" for line in printable[-12:])

    def _record_process(self, pid: int) -> None:
        current = process.identify(pid)
        if current is None:
            raise LabUnavailable(f"{self.name} ended at once{self._console()}", hint=f"See {self.log}")
        records.write_json(self.directory / "process.json", asdict(current))

    def describe(self) -> dict[str, Any]:
        """The host as `lab list --json` shows it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "runtime": self.runtime,
            "address": "127.0.0.1",
            "port": self.port,
            "running": self.running(),
        }
