"""Start programs that read and write through a real libcufile on the stand-in GPU: tests/cufile/job.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cufile import libraries, standin

REPOSITORY = Path(__file__).parents[2]
MEMORY = Path(__file__).with_name("memory.c").read_text(encoding="utf-8")
#: What the processes of a container have of their own.
CONTAINER = ("--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")


def config(level: int) -> str:
    return json.dumps({"profile": {"cufile_stats": level}, "logging": {"level": "ERROR"}})


class Running:
    """A program at work; ``pid`` is its process id outside, ``opened`` and ``registered`` are errors of cuFile."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        first = self._line()
        self.inside, self.opened, self.registered = first
        self.pid = self._outside(process.pid)

    def tell(self, *words: Any) -> Any:
        """Give a command; returns the program's answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with status {self.process.wait()}"
        return json.loads(line)

    def _outside(self, pid: int) -> int:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return self._outside(int(children[0])) if children else pid


@contextmanager
def job(
    version: str, folder: Path, text: str, *flags: str, library: Path | None = None, **variables: str
) -> Iterator[Running]:
    """A program with this version of libcufile and this configuration, in ``folder``, which is on a disk.

    flags: more of unshare(1), for namespaces of its own.
    """
    path = libraries.library(version).path
    (folder / "work").mkdir(exist_ok=True)
    request = {
        "library": str(library or path),
        "standin": str(standin.libcuda(path, MEMORY)),
        "work": str(folder / "work"),
        "data": str(folder),
        "config": text,
    }
    argv = ["unshare", "--mount", "--propagation", "private", *flags, sys.executable, "-m", "tests.cufile.job"]
    with subprocess.Popen(
        [*argv, json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables},
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
