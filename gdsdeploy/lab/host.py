"""A host of a lab: what both kinds have in common."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsdeploy import run
from gdsdeploy.errors import HostUnreachable, LabUnavailable, ProgramFailed
from gdsdeploy.lab import files, process, ssh


@dataclass(frozen=True)
class Record:
    """What is remembered of a host.

    kind: "vm" or "light".  port: of its sshd, on the controller's loopback.  base: the cached system it was made from.
    """

    name: str
    kind: str
    port: int
    base: str


class Host(ABC):
    """A host of a lab; its ``directory`` holds all it consists of."""

    #: Whether the processes of this kind belong to root.
    runs_as_root = False
    #: Names of the programs that can be this host.
    programs: tuple[str, ...] = ()
    #: Seconds between being told to stop and being killed.
    grace = 10.0

    def __init__(self, record: Record, directory: Path, ssh_config: Path) -> None:
        self.record = record
        self.directory = directory
        self.ssh_config = ssh_config

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def kind(self) -> str:
        return self.record.kind

    @property
    def port(self) -> int:
        return self.record.port

    @property
    def stop_signal(self) -> int:
        """What the host's process understands as losing its power."""
        return signal.SIGTERM

    @property
    @abstractmethod
    def runtime(self) -> str:
        """What runs the host, as `lab list` shows it: "kvm", "tcg", "systemd-nspawn" or "namespace"."""

    @abstractmethod
    def create(self, seed: bytes) -> None:
        """Make what is missing of the host; ``seed``: the files that make it itself, as a tar archive."""

    @abstractmethod
    def start(self) -> None:
        """Start the host unless it runs; it will answer some time later."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """File with what the host printed on its console."""

    def process(self) -> process.Process | None:
        """The process that is this host, as recorded or found; it may have ended."""
        value = files.read_json(self.directory / "process.json")
        recorded = process.Process(**value) if value else None
        if recorded and process.alive(recorded):
            return recorded
        return process.find(self.programs, self.directory) or recorded

    def running(self) -> bool:
        """Whether the host's process is alive."""
        recorded = self.process()
        return recorded is not None and process.alive(recorded)

    def stop(self) -> None:
        """Take the power away: the process ends, whatever the host is doing."""
        recorded = self.process()
        if recorded:
            process.stop(recorded, as_root=self.runs_as_root, grace=self.grace, first=self.stop_signal)
            if process.alive(recorded):
                raise LabUnavailable(f"{self.name} (process {recorded.pid}) did not end, not even by SIGKILL")
        (self.directory / "process.json").unlink(missing_ok=True)

    def power_cycle(self) -> None:
        """Cut the power and give it back at once; nothing is written to disk first, as in a crash."""
        self.stop()
        self.start()

    def ssh(
        self,
        argv: Sequence[str],
        input: str | bytes | None = None,  # noqa: A002 - subprocess's word
        ok: Sequence[int] = (0,),
        timeout: float | None = None,
    ) -> run.Completed:
        """Run ``argv`` on the host as its user; errors as in :func:`gdsdeploy.lab.ssh.execute`."""
        return ssh.execute(self.ssh_config, self.name, argv, input=input, ok=ok, timeout=timeout)

    def wait_ssh(self, timeout: float = 300) -> None:
        """Return once the host answers a login; ``timeout`` in seconds.

        Raises LabUnavailable, with the end of the host's console, when it ends or does not answer in time.
        """
        deadline = time.monotonic() + timeout
        reason = "no answer"
        while time.monotonic() < deadline:
            if not self.running():
                raise LabUnavailable(f"{self.name} ended while starting{self._console()}", hint=f"See {self.log}.")
            if not ssh.greets(self.port):
                time.sleep(0.3)
                continue
            try:
                self.ssh(["true"], timeout=60)
            except (HostUnreachable, ProgramFailed) as error:
                reason = error.message
            else:
                return
        raise LabUnavailable(
            f"{self.name} did not answer within {timeout:.0f} s ({reason}){self._console()}", hint=f"See {self.log}."
        )

    def _console(self) -> str:
        """The last lines of the console, set off for an error message."""
        if not self.log.is_file():
            return ""
        lines = self.log.read_bytes()[-4000:].decode(errors="replace").splitlines()
        shown = [text for text in ("".join(c for c in line if c.isprintable()) for line in lines) if text.strip()]
        return "".join(f"\n  | {line}" for line in shown[-12:])

    def _record_process(self, pid: int) -> None:
        found = process.identify(pid)
        if found is None:
            raise LabUnavailable(f"{self.name} ended at once{self._console()}", hint=f"See {self.log}.")
        files.write_json(self.directory / "process.json", asdict(found))

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
