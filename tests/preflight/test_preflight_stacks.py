"""``gdsdeploy kmod preflight`` against the real archive's kernels: tables, records, what is refused, interruption.

The real driver and nvidia-fs of Debian 13 are tried before the rollout of tests/lab/test_rollout_story.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import paths
from gdsdeploy.fleetfile.load import load_fleet, own_blocks
from gdsdeploy.lock import compat, lockfile
from gdsdeploy.lock.resolve_fleet import resolve_fleet
from gdsdeploy.preflight import record
from gdsdeploy.repo.fetch import Fetcher
from tests import commandline

#: Debian 12's last kernel.  Between it and those of Debian 13, Linux changed a function that the driver 560.1.4 calls.
OLD = "6.1.0-50-amd64"


def preflight(capsys: pytest.CaptureFixture[str], fleet: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and messages."""
    status = commandline.run("kmod", "preflight", fleet, "--json", *words)
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else {}, commandline.plain(captured.err)


@pytest.fixture
def newest(fleet: Path) -> str:
    """The newest kernel of Debian 13, which another replaces at each point release."""
    with Fetcher() as fetcher:
        return resolve_fleet(load_fleet(fleet), fetcher).lock.targets["gds"].kernel.release


def brief(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(cell["kernel"], cell["driver"], cell["builds"], cell["loads"]) for cell in document["cells"]]


def test_a_table_of_kernels_and_drivers_and_what_is_kept_of_it(
    fleet: Path, newest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--kernel", f"{OLD},{newest}", "--driver", "560.1.3,560.1.4")
    status, document, messages = preflight(capsys, fleet, *words)
    assert status == 24
    assert "1 of 4 stacks don't build" in messages
    assert brief(document) == [
        (OLD, "560.1.3", "yes", "yes"),
        (OLD, "560.1.4", "yes", "yes"),
        (newest, "560.1.3", "yes", "yes"),
        (newest, "560.1.4", "no", "no"),
    ]
    broken = document["cells"][-1]
    assert "nv.c" in broken["error"]
    assert "pci_resize_resource" in broken["error"]
    assert f"kernel {newest}" in broken["error"]
    assert any("pci_resize_resource" in Path(log).read_text() for log in broken["logs"])
    assert [module["module"] for module in document["cells"][0]["modules"]] == ["nvidia", "nvidia_fs"]
    assert not list((paths.cache() / "preflight" / "work").iterdir())

    # All of it again, from the records; then without them.
    begun = time.monotonic()
    status, again, messages = preflight(capsys, fleet, *words)
    assert (status, brief(again)) == (24, brief(document))
    assert all(cell["kept"] for cell in again["cells"])
    assert "Trying" not in messages
    assert time.monotonic() - begun < 20

    status, anew, messages = preflight(capsys, fleet, "--kernel", OLD, "--driver", "560.1.4", "--again")
    assert (status, brief(anew)) == (0, [(OLD, "560.1.4", "yes", "yes")])
    assert not anew["cells"][0]["kept"]
    assert "Trying" in messages

    # What the rollout asks: this stack was tried; a rebuilt driver of its version was not.
    with Fetcher() as fetcher:
        pinned = fleet.with_name("pinned.yml")
        pinned.write_text(fleet.read_text().replace("driver:", f"kernel: '=={OLD}', driver:"))
        target = resolve_fleet(load_fleet(pinned), fetcher).lock.targets["gds"]
    stored = record.find(target)
    assert stored is not None
    assert stored.ok
    rebuilt = [p.model_copy(update={"sha256": "0" * 64}) if p.part == "driver-source" else p for p in target.packages]
    assert record.find(target.model_copy(update={"packages": tuple(rebuilt)})) is None

    # With a lock, what is not named stays as it is there.
    lockfile.write(lockfile.beside(fleet), lockfile.build({"gds": target}))
    status, locked, _ = preflight(capsys, fleet)
    assert (status, brief(locked), locked["cells"][0]["kept"]) == (0, [(OLD, "560.1.3", "yes", "yes")], True)


def test_a_lock_is_proven_without_the_stack_that_fails(
    fleet: Path, newest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest kernel breaks driver 560.1.4, and no rule of gdsdeploy says so."""
    fleet.write_text(fleet.read_text().replace("'560.1.3'", "'560.1.4', kernel: '6.1'"))
    assert commandline.run("lock", fleet, "--prove", "--allow-file-repositories", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    assert (document["proofs"]["gds"], compat.is_proven(target)) == (target.proof, True)
    assert [(each["kernel"], each["rule"]) for each in document["tried"]] == [(OLD, None)]

    fleet.write_text(fleet.read_text().replace("kernel: '6.1'", f"kernel: '=={newest}'"))
    assert commandline.run("lock", fleet, "--prove", "--allow-file-repositories", "--json") == 13
    (rule,) = own_blocks(fleet)
    assert "pci_resize_resource" in rule.source
    assert rule.id in commandline.plain(capsys.readouterr().err)
    begun = time.monotonic()
    assert commandline.run("lock", fleet, "--prove", "--allow-file-repositories") == 13
    assert time.monotonic() - begun < 30
    assert lockfile.read(lockfile.beside(fleet)).targets["gds"] == target


def test_versions_that_are_not_on_offer_are_refused_with_those_that_are(
    fleet: Path, newest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, messages = preflight(capsys, fleet, "--driver", "9.9")
    assert status == 13
    assert "the repositories have no driver 9.9" in messages
    assert "560.1.4-1, 560.1.3-1" in messages
    status, _, messages = preflight(capsys, fleet, "--kernel", "6.12.1+deb13-amd64")
    assert status == 13
    assert "no linux-headers-6.12.1+deb13-amd64" in messages
    assert newest in messages
    assert preflight(capsys, fleet, "--kernel", "no version")[0] == 1
    assert preflight(capsys, fleet, "--profile", "other")[0] == 10


def test_interrupted_it_leaves_neither_processes_nor_folders(fleet: Path) -> None:
    child, work = _start(fleet)
    os.killpg(child.pid, signal.SIGINT)
    _, messages = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGINT
    assert "interrupted" in messages
    assert not list(work.iterdir())
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(work) in line]
    assert not _processes_of(work.parent)


def test_killed_it_leaves_no_process(fleet: Path) -> None:
    child, work = _start(fleet)
    assert _processes_of(work.parent)
    child.kill()
    child.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while _processes_of(work.parent) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes_of(work.parent)


def _start(fleet: Path) -> tuple[subprocess.Popen[str], Path]:
    """A preflight that has begun to compile, and where it works."""
    argv = [sys.executable, "-m", "gdsdeploy", "kmod", "preflight", str(fleet), "--kernel", OLD]
    child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True)
    work = paths.cache() / "preflight" / "work"
    deadline = time.monotonic() + 120
    while not list(work.glob("run-*/build/modules/*.log")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return child, work


def _processes_of(folder: Path) -> list[str]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in words:
            processes.append(words)
    return processes
