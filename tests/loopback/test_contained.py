"""A run of the tests that is killed leaves no process and no mount, and the next run removes its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import contained, groups

ROOT = Path(__file__).parents[2]
#: This project's settings and hooks, for a test module anywhere.
SETTINGS = ("-q", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest")
#: Something like a lab's host: a daemon of its own session, which has mounted a filesystem.
_TEST = """
import os, subprocess, time
from pathlib import Path

def test_hosts():
    folder = Path(os.environ["MARKS"])
    (folder / "mount").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder / "mount"], check=True)
    subprocess.Popen(["setsid", "sh", "-c", "exec sleep " + os.environ["SECONDS_OF_DAEMON"]])
    (folder / "run").write_text(os.environ["GDSDEPLOY_TESTS_RUN"])
    time.sleep(600)
"""


def listed(text: str) -> list[str]:
    """The processes with ``text`` in their arguments: their process ids."""
    done = subprocess.run(["pgrep", "--full", "--", text], capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.parametrize("victim", ["pytest", "unshare"])
def test_killed_run_leaves_nothing(tmp_path: Path, victim: str) -> None:
    # Outside the tree, which linters read meanwhile.
    test = tmp_path / "test_killed.py"
    test.write_text(_TEST)
    argv = [sys.executable, "-m", "tests.contained", sys.executable, "-m", "pytest", *SETTINGS, test]
    seconds = f"987.{os.getpid()}"
    daemon = f"^sleep {seconds}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"MARKS": str(tmp_path), "SECONDS_OF_DAEMON": seconds}
    run = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not ((tmp_path / "run").exists() and listed(daemon)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert listed(daemon)
        assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
        pytests = listed(f"^[^ ]+ -m pytest .*{test}")
        os.kill(int(pytests[0]) if victim == "pytest" else run.pid, signal.SIGKILL)
        assert run.wait(300) != 0
        deadline = time.monotonic() + 300
        while listed(daemon) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert listed(daemon) == []
        left = Path((tmp_path / "run").read_text())
        assert left.is_dir()
        test.write_text("def test_nothing(): pass\n")
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert not left.exists()
    finally:
        if run.poll() is None:
            run.kill()


def test_status_of_the_command_is_kept() -> None:
    argv = [sys.executable, "-m", "tests.contained", "sh", "-c", "exit 7"]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == 7


def test_command_of_a_background_job_can_be_interrupted() -> None:
    """A shell without job control ignores Ctrl-C in what it starts with &."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    line = f"{sys.executable} -m tests.contained {sys.executable} -c '{show}' & wait"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("shard", ["5/4", "0/4", "four"])
def test_shard_that_does_not_exist_is_one_error(shard: str) -> None:
    argv = [sys.executable, "-m", "pytest", "--machines", shard, "--collect-only", "-q"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert f"{shard!r} names no share" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_machine_group_is_in_one_shard_and_has_modules() -> None:
    shards = [groups.shard(number, 4) for number in range(1, 5)]
    assert sorted(name for shard in shards for name in shard) == sorted(groups.MACHINES)
    for name, group in groups.MACHINES.items():
        for pattern in group.modules:
            assert list((ROOT / "tests").glob(pattern)), f"{name}: {pattern}"


def test_the_audit_trail_of_a_run_ends_with_it() -> None:
    mark = Path(contained.TRAIL, f"test-{os.getpid()}")
    argv = [sys.executable, "-m", "tests.contained", "touch", str(mark)]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == 0
    assert not mark.exists()
