"""``gdsdeploy watch``, on hosts that are really asked, and in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.run import as_root
from tests.commandline import Run, plain
from tests.cufile import libraries
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import Sshd

Make = Callable[..., LoopbackFleet]
RIGHT = {"profile": "right"}
JOB = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def server(sshd: Callable[..., Sshd]) -> Sshd:
    return sshd()


@pytest.fixture
def make_fleet(server: Sshd, tmp_path: Path) -> Make:
    return lambda **hosts: LoopbackFleet(tmp_path, server, hosts)


@pytest.fixture
def pid(server: Sshd) -> Iterator[int]:
    """A process of the hosts that has loaded libcufile, and no statistics."""
    library = libraries.library("1.20.0.107").path
    argv = as_root([*server.enter(), sys.executable, "-c", JOB, library])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_a_round_of_a_fleet_as_a_table_and_as_lines(make_fleet: Make, pid: int, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    code, text, _ = run("watch", fleet.path, "--once", "--every", "0.2")
    out = text.splitlines()
    assert code == 0
    assert out[0].startswith("2 of 2 hosts; ")
    rows = [line.split() for line in out if f" {pid} " in line]
    assert [row[0] for row in rows] == ["gpu1", "gpu2"]
    # It has no file open, so nothing moves, whatever its statistics.
    assert all(row[1:6] == ["-", "-", "-", "idle", str(pid)] for row in rows)
    code, text, _ = run("watch", "gpu2", "--fleet", fleet.path, "--once", "--every", "0.2", "--json")
    (line,) = text.splitlines()
    document: dict[str, Any] = json.loads(line)
    assert (code, document["host"]) == (0, "gpu2")
    (row,) = [row for row in document["processes"] if row["pid"] == pid]
    assert (row["libcufile"][0]["version"], row["path"], row["reason"]) == ("1.20.0.107", "idle", "")


def test_why_a_process_bounces(make_fleet: Make, pid: int, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, out, _ = run("explain", "gpu1", pid, "--fleet", fleet.path)
    assert code == 0
    assert out.startswith(f"process {pid} (python")
    assert "[process.not-counted]" in out
    assert "[process.no-nvidia-fs]" not in out, "that nvidia-fs isn't loaded comes in its place"
    code, out, _ = run("explain", "gpu1", pid, "--fleet", fleet.path, "--json")
    assert (code, json.loads(out)["reason"]) == (0, "statistics-off")
    code, _, err = run("explain", "gpu1", "1", "--fleet", fleet.path)
    assert (code, "gpu1: no process 1 was seen that has a GPU open or libcufile loaded" in plain(err)) == (1, True)


def test_hosts_that_do_not_answer(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gone={**RIGHT, "port": 1})
    code, out, err = run("watch", fleet.path, "--once", "--every", "0.2")
    assert (code, out.startswith("1 of 2 hosts; ")) == (20, True)
    assert "gone" not in out
    assert "error: gone" in err
    code, out, _ = run("watch", fleet.path, "--once", "--every", "0.2", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert code == 20
    assert [document["host"] for document in documents if "error" in document] == ["gone"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["gpu9"], 2, "has no host 'gpu9'"),
        (["gpu1", "--limit", "gpu1"], 2, "--limit does not go with HOST"),
        (["gpu1", "--every", "0"], 2, "0.2<=x<=3600"),
        (["nothing.yml"], 2, "--fleet does not go with FLEET"),
    ],
)
def test_what_cannot_be_used_is_said(make_fleet: Make, run: Run, words: list[str], status: int, message: str) -> None:
    code, _, err = run("watch", *words, "--fleet", make_fleet(gpu1=RIGHT).path)
    assert (code, message in plain(err).replace("\n", " ")) == (status, True), err


def test_a_terminal_shows_rounds_until_it_is_interrupted(make_fleet: Make, pid: int) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "gdsdeploy", "watch", str(fleet.path), "--every", "0.2"])
    output, end = b"", time.monotonic() + 300
    while output.count(b"statistics-off") < 4 and time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            output += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    while True:
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The last table stays, and the cursor is back.
    assert output.endswith((b"\n",))
    assert b"\x1b[?25h" in output
    last = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", output).decode().replace("\r", "").strip().splitlines()
    assert any(f" {pid} " in line for line in last[-8:])
