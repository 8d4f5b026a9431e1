"""The live region in a real pseudo-terminal, and what other places get instead: lines, and no control character."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gdsdeploy.converge import ansible
from tests import commandline
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import free_port
from tests.patience import SURELY

STILL = "  still at work: Provisioning gpu1 for "
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\x9b]")
BEAT = 0.4
#: A step of which one host is at work; it ends once a file is there, or by Ctrl-C, as a verb does.
PROGRAM = f"""
import sys, time
from pathlib import Path
from gdsdeploy import cli, console
console.BEAT = {BEAT}
console.configure(quiet="quiet" in sys.argv)
class Group:
    def main(self, **settings):
        with console.step("Provisioning gpu1"):
            console.board.begin("build1", "gds_modules: Build nvidia", ago=400.0)
            with console.step("Reading trixie"):
                console.say("a line above")
                time.sleep(3 * console.BEAT if "quiet" in sys.argv else 0)
                while not Path(sys.argv[1]).exists():
                    time.sleep(0.05)
            console.board.end("build1")
        console.data('{{"a": 1}}')
cli.group = Group()
cli.main()
"""


def environment(state: Path, more: Mapping[str, str]) -> dict[str, str]:
    """TERM of a usual terminal, without what a test's own environment says of colours."""
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**plain, "TERM": "xterm-256color", "GDSDEPLOY_STATE_DIR": str(state), "PYTHONPATH": str(Path.cwd()), **more}


def in_terminal(
    state: Path, *argv: str, text: str = "", times: int = 1, interrupt: bool = False, **more: str
) -> tuple[int, str]:
    """(exit status, everything that a terminal gets); the program ends once ``text`` is shown ``times``.

    interrupt: by Ctrl-C.
    """
    go = state / "go"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, str(go), *argv], environment(state, more))
    output, deadline, told = b"", time.monotonic() + SURELY, False
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        if not told and output.count(text.encode()) >= times:
            told = True
            if interrupt:
                os.write(terminal, b"\x03")
            else:
                go.touch()
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode().replace("\r\n", "\n")


def in_pipes(state: Path, *argv: str, beats: int, **more: str) -> tuple[str, str]:
    """Standard output, and standard error with so many heartbeats or some more."""
    go = state / "go"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(go), *argv], env=environment(state, more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr
        err = ""
        while err.count(STILL) < beats:
            line = process.stderr.readline()
            assert line, err
            err += line
        go.touch()
        err += process.stderr.read()
        assert process.stdout
        out = process.stdout.read()
    assert process.returncode == 0
    return out, err


def test_a_terminal_shows_who_is_at_work_and_is_left_clean(tmp_path: Path) -> None:
    shown = "build1: gds_modules: Build nvidia for 7 min"
    status, output = in_terminal(tmp_path, text=shown, times=3)
    assert status == 0
    assert output.count(shown) >= 3, "it is redrawn"
    assert "‣ Reading trixie for " in output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1, "the cursor is hidden, and shown again"
    after = output.rpartition("\x1b[?25h")[2]
    assert "at work" not in output, "no heartbeat beside it"
    end = ["  ✓ Provisioning gpu1 (N s)", '{"a": 1}']
    assert timeless(re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", after).split("\n")[:2]) == end
    assert timeless(screen(output)) == ["a line above", "  ✓ Reading trixie (N s)", *end]


def test_interruption_leaves_the_terminal_clean(tmp_path: Path) -> None:
    status, output = in_terminal(tmp_path, text="Build nvidia", interrupt=True)
    assert status == -signal.SIGINT
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1
    assert timeless(screen(output.replace("^C", ""))) == [
        "a line above",
        "  ✗ Reading trixie (N s)",
        "  ✗ Provisioning gpu1 (N s)",
        "error: interrupted",
        "hint: Run the same command again: it resumes after the finished work",
    ]


@pytest.mark.parametrize("more", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}, {"TERM": "dumb"}])
def test_pipes_get_heartbeats_on_standard_error_only(tmp_path: Path, more: dict[str, str]) -> None:
    begin = time.monotonic()
    out, err = in_pipes(tmp_path, beats=2, **more)
    most = (time.monotonic() - begin) / BEAT
    assert out == '{"a": 1}\n'
    assert not CONTROL.search(err)
    beats = [line for line in err.splitlines() if line.startswith(STILL)]
    assert 2 <= len(beats) <= most
    assert all("; build1: gds_modules: Build nvidia for 7 min" in line for line in beats)
    assert err.splitlines()[:2] == ["‣ Provisioning gpu1 …", "‣ Reading trixie …"]


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    status, output = in_terminal(tmp_path, text=STILL, TERM="dumb")
    assert status == 0
    assert not CONTROL.search(output)
    assert STILL in output


def test_quiet_says_nothing(tmp_path: Path) -> None:
    assert in_pipes(tmp_path, "quiet", beats=0) == ('{"a": 1}\n', "")
    assert in_terminal(tmp_path, "quiet") == (0, '{"a": 1}\n')


def timeless(lines: list[str]) -> list[str]:
    """The lines with N in place of seconds."""
    return [re.sub(r"\d+ s", "N s", line) for line in lines]


def screen(output: str) -> list[str]:
    """The lines that are left on a terminal: carriage return, cursor up, erase, and text."""
    lines, row, column = [""], 0, 0
    for text, final, number in re.findall(r"([^\x1b\r\n]+)|(?:\x1b\[([?0-9;]*[A-Za-z])|(\r|\n))", output):
        match final or number or "":
            case "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            case "\r":
                column = 0
            case "2K":
                lines[row] = ""
            case up if up.endswith("A"):
                row = max(0, row - int(up[:-1] or 1))
            case "":
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
    return [line.rstrip() for line in lines if line.strip()]


# -- An error is said once, and only what succeeded has a tick.


@pytest.mark.parametrize(
    "words",
    [
        *("plan --limit g*", "provision --limit g*", "remove --limit g*", "validate --limit gone", "topology"),
        *("watch --once --every 0.2", "lock --adopt gone,gpu1", "support-bundle -o bundle.tar.gz"),
        "rollout start --dry-run",
        *("init gone gpu1 --ssh-config ssh_config", "explain gone"),
    ],
)
def test_a_host_that_does_not_answer_is_explained_once(
    words: str, make_fleet: Callable[..., LoopbackFleet], own_folders: None, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    port = free_port()
    fleet = make_fleet(gpu1={"profile": "right"}, gone={"profile": "right", "port": port})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ansible, "play", lambda *_, **__: ansible.Outcome(0, {"gpu1": ansible.HostResult(ended=True)}))
    server = fleet.server
    (tmp_path / "ssh_config").write_text(
        f"Host gpu1 gone\n  HostName 127.0.0.1\n  User root\n  IdentityFile {server.identity}\n"
        f"  UserKnownHostsFile {server.known_hosts}\nHost gpu1\n  Port {server.port}\nHost gone\n  Port {port}\n"
    )
    if words.startswith("init"):
        fleet.path.unlink()
    status = commandline.run(*words.split())
    out, err = (commandline.plain(text) for text in capfd.readouterr())
    assert status or words.startswith("support-bundle"), err
    assert (out + err).count(f":{port}") == (not words.startswith("support-bundle")), out + err
    steps = [line.split()[:2] for line in err.splitlines() if line.startswith(("  ✓ ", "  ✗ "))]
    assert {mark for mark, title in steps if title not in ("gpu1", "gpu1:")} == {"✗"}, err
    assert err.count("error: ") <= 1, err


# -- Completion in a real bash, as a page shows it, and output that nothing reads.


COMPLETE = """
set -eu
eval "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_gdsdeploy_completion gdsdeploy
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"), [(["pl"], ["plan"]), (["plan", "--lim"], ["--limit"]), (["plan", "--limit", "gp"], ["gpu1"])]
)
def test_bash_completes(words: list[str], expected: list[str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
    (line,) = re.findall(r"^\| bash, in .* \| `(.+)` \|$", page, re.MULTILINE)
    (tmp_path / "fleet.yml").write_text(
        "version: 1\nrepositories: {debian: {suites: [trixie]}}\n"
        "profiles: {gds: {os: debian-13, repositories: [debian]}}\nhosts: {gpu1: gds, login: gds}\n"
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", line, "gdsdeploy", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == expected


def test_a_reader_that_ends_early_ends_the_program_as_sigpipe_does() -> None:
    command = [Path(sys.executable).parent / "gdsdeploy", "help"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
