"""SIGKILL at any moment: no file is half-written, the record knows every change, the next run completes the work."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host.apply import record
from gdsdeploy.host.apply.host import ManagedHost
from tests.loopback.apply import many_files

KILLS = 30
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gdsdeploy-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def contents(root: Path) -> dict[str, str]:
    """Path → text of what isn't ours alone."""
    places = [place for place in (root / "etc").rglob("*") if place.is_file()]
    return {"/" + place.relative_to(root).as_posix(): place.read_text() for place in places}


def apply(root: Path, *last: str) -> subprocess.CompletedProcess[str]:
    """Let a run work up to one of its calls, or to its end."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, many_files.__file__, str(root), *last]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_killed_at_any_moment(root: Path) -> None:
    expected = {file.path: file.content.decode() for file in many_files.Many().desired_files(many_files.Desired())}
    before = {path: f"before {path}\n" for path in list(expected)[::3]}
    for folder in ("etc/many.d", "etc/more.d", "var/lib"):
        (root / folder).mkdir(parents=True)
    generator = random.Random(7)
    interrupted = 0
    calls = int(apply(root).stdout)
    for _ in range(KILLS):
        for path in expected:
            (root / path.lstrip("/")).unlink(missing_ok=True)
        shutil.rmtree(root / "var/lib/gdsdeploy", ignore_errors=True)
        for path, text in before.items():
            (root / path.lstrip("/")).write_text(text)
        ended = apply(root, str(generator.randint(1, calls)))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        written = {path: text for path, text in contents(root).items() if not path.endswith(".gdsdeploy-new")}
        assert all(text in (expected[path], before.get(path)) for path, text in written.items())
        place = root / record.PATH.lstrip("/")
        recorded = json.loads(place.read_text())["paths"] if place.exists() else {}
        changed = {path for path in expected if written.get(path) != before.get(path)}
        assert changed <= set(recorded)
        interrupted += 0 < len(changed) < len(expected)
        assert set(many_files.run(str(root))) == set(expected) - changed
        assert contents(root) == expected
        assert many_files.run(str(root), check=True) == []
        many_files.Many().revert(ManagedHost(root=str(root)))
        assert contents(root) == before
    # Otherwise this test would show nothing.
    assert interrupted >= KILLS // 2
