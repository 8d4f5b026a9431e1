"""Light hosts: systemd-nspawn machines on the controller's kernel and network."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.files import folders
from gdslab import guest, process, records
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost

#: Exists where systemd is process 1 (sd_booted(3)).
SYSTEMD_BOOTED = Path("/run/systemd/system")
#: nspawn's folders, one per machine; some versions don't remove them.
PROPAGATE = Path("/run/systemd/nspawn/propagate")
#: Seconds until a light host has to answer; then a plain namespace is tried.
PATIENCE = 60.0


def nspawn_argv(machine: str, name: str, root: Path, *, booted: bool) -> list[str]:
    """The systemd-nspawn command for host ``name``; booted: this machine's systemd gives the host a scope."""
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={root}",
        f"--machine={machine}",
        f"--hostname={name}",
        "--register=no",
        *(() if booted else ("--keep-unit",)),
        "--settings=no",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=read-only",
    ]


def namespace_argv(name: str, root: Path) -> list[str]:
    """The command for host ``name`` without systemd-nspawn."""
    script = guest.data("light/namespace.sh").as_posix()
    namespaces = ["--pid", "--fork", "--kill-child", "--uts", "--ipc", "--mount", "--propagation", "private"]
    return ["unshare", *namespaces, "sh", script, root.as_posix(), name]


def _contained(script: str) -> list[str]:
    """The command that runs a script of the lab's in a mount namespace of its own."""
    return ["unshare", "--mount", "--propagation", "private", "sh", guest.data(script).as_posix()]


class LightHost(LabHost):
    """A light host, run by nspawn, or in a plain namespace where nspawn can't run."""

    runs_as_root = True
    programs = ("systemd-nspawn", "unshare")

    @property
    def runtime(self) -> str:
        forced = os.environ.get("GDSDEPLOY_LAB_LIGHT")
        if forced and forced not in ("systemd-nspawn", "namespace"):
            raise LabUnavailable(f"GDSDEPLOY_LAB_LIGHT is {forced!r}; use systemd-nspawn or namespace")
        record = records.read_json(self.directory / "runtime.json")
        return str(record["runtime"]) if record else forced or "systemd-nspawn"

    @property
    def stop_signal(self) -> int:
        # unshare forwards no signal; its processes end with it.
        return signal.SIGKILL if self.runtime == "namespace" else signal.SIGTERM

    @property
    def machine(self) -> str:
        """The machine's name on the controller."""
        return f"gdsdeploy-{self.directory.parent.parent.name}-{self.name}"

    def create(self, seed: bytes) -> None:
        if (self.directory / "root").is_dir():
            return
        for special in ":,\\":
            if special in f"{self.directory}{self.record.base}":
                raise LabUnavailable(
                    f"{self.directory} can't hold a light host: overlayfs cannot take {special!r} in a path",
                    hint="Set GDSDEPLOY_STATE_DIR and GDSDEPLOY_CACHE_DIR to plain paths",
                )
        work = self.directory.with_name(f".{self.name}.part")
        folders.remove_tree(work, within=self.directory.parent)
        work.mkdir(parents=True)
        work.chmod(0o755)
        (work / "seed.tar").write_bytes(seed)
        self._make_root(work)
        work.rename(self.directory)

    def _make_root(self, work: Path) -> None:
        """An overlay over the base, or a copy of it where this file system has no overlay."""
        for name in ("root", "upper", "work"):
            (work / name).mkdir()
        layers = f"lowerdir={self.record.base},upperdir={work / 'upper'},workdir={work / 'work'}"
        trial = ["unshare", "--mount", "mount", "-t", "overlay", "-o", layers, "lab", str(work / "root")]
        if run.run(run.as_root(trial), doing="try an overlay", ok=range(256)).status == 0:
            # The host's / has the owner of the upper folder.
            run.run(run.as_root(["chown", "root:root", str(work / "upper")]), doing="make an overlay")
            return
        for name in ("work", "upper"):
            folders.remove_tree(work / name, within=work)
        copy = ["cp", "-a", "--reflink=auto", "-T", self.record.base, str(work / "root")]
        run.run(run.as_root(copy), doing=f"copy the base system for {self.name}")

    def start(self) -> None:
        if self.running():
            return
        if self.runtime == "namespace":
            self._start(namespace_argv(self.name, self.directory / "root"))
            return
        booted = SYSTEMD_BOOTED.is_dir()
        self._start(nspawn_argv(self.machine, self.name, self.directory / "root", booted=booted))

    def wait_ssh(self, timeout: float = PATIENCE) -> None:
        """As for any host; a systemd-nspawn machine that never answered restarts as a plain namespace."""
        try:
            super().wait_ssh(timeout)
        except LabUnavailable as error:
            if self.runtime == "namespace" or (self.directory / "runtime.json").exists():
                raise
            console.warn(
                f"{self.name} does not run under systemd-nspawn on this machine, so gdsdeploy uses a plain namespace, "
                f"without systemd. {error.message}"
            )
            self.stop()
            self._record_runtime("namespace")
            self.start()
            super().wait_ssh(timeout)
            return
        self._record_runtime(self.runtime)

    def stop(self) -> None:
        was_started = self.running() or (self.directory / "process.json").exists()
        super().stop()
        if was_started:
            doing = f"stop {self.name}"
            # Only root can see whether the folder exists.
            run.run(run.as_root(["rmdir", str(PROPAGATE / self.machine)]), doing=doing, ok=(0, 1))
            if not SYSTEMD_BOOTED.is_dir():
                run.run(run.as_root([*_contained("light/stop.sh"), self.machine]), doing=doing)

    def _record_runtime(self, runtime: str) -> None:
        if not (self.directory / "runtime.json").exists():
            records.write_json(self.directory / "runtime.json", {"runtime": runtime})

    def _start(self, argv: list[str]) -> None:
        group = "" if SYSTEMD_BOOTED.is_dir() else self.machine
        argv = [*_contained("light/start.sh"), str(self.directory), self.record.base, group, *argv]
        try:
            run.run(run.as_root(argv), doing=f"start {self.name}")
        except ProgramFailed as error:
            raise LabUnavailable(error.message, hint=f"See {self.log}") from error
        pid = self._read_pid()
        # If the machine ended at once, wait_ssh may run it in another way.
        current = process.identify(pid) or process.Process(pid, 0, process.boot_id())
        records.write_json(self.directory / "process.json", asdict(current))

    def _read_pid(self) -> int:
        path = self.directory / "pid"
        for _ in range(100):
            if path.is_file():
                return int(path.read_text())
            time.sleep(0.05)
        raise LabUnavailable(f"{self.name} was not started", hint=f"See {self.log}")
