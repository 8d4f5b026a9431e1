"""Full and read-only file systems, signals, lost connections, and two runs at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.loopback.apply.test_apply_whole import GATE, RELEASE, document, resource
from tests.loopback.apply.throwaway import SENT, System, ended, subjects

OPTIONS = resource("driver_options", kernel_release=RELEASE, modules=["nvidia"])
#: Of files of the two folders, the second can't be written.
FULL = """
mkdir -p "$0/merged/etc/modules-load.d"
mount -t tmpfs -o size=4k tmpfs "$0/merged/etc/modules-load.d"
head -c 8192 /dev/zero > "$0/merged/etc/modules-load.d/full" || true
"""
READ_ONLY = """
mkdir -p "$0/merged/etc/modules-load.d"
mount -t tmpfs -o ro tmpfs "$0/merged/etc/modules-load.d"
"""
STATE_FULL = FULL.replace("etc/modules-load.d", "var/lib/gdsdeploy")


@pytest.mark.parametrize(
    ("before", "kind", "path"),
    [
        (FULL, "no-space", "/etc/modules-load.d/gdsdeploy.conf: no space left"),
        (READ_ONLY, "io", "/etc/modules-load.d/gdsdeploy.conf: Read-only file system"),
        (STATE_FULL, "no-space", "/var/lib/gdsdeploy/before.json: no space left"),
    ],
)
def test_a_file_system_that_takes_nothing(system: System, before: str, kind: str, path: str) -> None:
    status, answer = system.apply(document(OPTIONS), before=before)
    assert (status, answer["error"]["kind"]) == (1, kind)
    assert path in answer["error"]["message"]
    # What the resource had written already is gone again; only the record may be there.
    assert system.changed() <= {"/var/lib/gdsdeploy/before.json"}
    status, answer = system.apply(document(OPTIONS))
    assert (status, len(subjects(answer))) == (0, 2)


#: Stands for systemctl: says that it was called, and waits.
WAITS = '#!/bin/sh\ntouch /run/called\nwhile [ ! -e /run/go ]; do sleep 0.05; done\nexec /usr/bin/systemctl "$@"\n'


@pytest.fixture
def waiting(system: System) -> System:
    system.install("/usr/local/sbin/systemctl", WAITS)
    return system


def begun(system: System, *words: str, **named: Any) -> subprocess.Popen[str]:
    """An apply that has written the gate's files and is enabling its unit."""
    process = system.start(
        *[
            "env",
            "PATH=/usr/local/sbin:/usr/bin:/bin",
            "python3",
            "-I",
            "-S",
            SENT,
            "apply",
            "--json",
            "--desired",
            "-",
        ],
        *words,
        **named,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(document(GATE)))
    process.stdin.close()
    process.stdin = None
    deadline = time.monotonic() + 30
    while not system.path("/run/called").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_it_leaves_the_resource_as_it_was(waiting: System, number: int, status: int) -> None:
    process = begun(waiting)
    assert waiting.path("/etc/systemd/system/gds-gate.service").exists()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert waiting.changed() == {"/var/lib/gdsdeploy/before.json"}
    waiting.path("/run/go").touch()
    assert waiting.apply(document(GATE))[0] == 0


def test_a_lost_connection_does_not_stop_it(waiting: System) -> None:
    """SIGHUP, and nobody who reads any more: the work is done, and the next run finds nothing to do."""
    reader, writer = os.pipe()
    process = begun(waiting, stdout=writer, stderr=writer)
    os.close(writer)
    os.close(reader)
    process.send_signal(signal.SIGHUP)
    waiting.path("/run/go").touch()
    process.wait(30)
    assert process.returncode != -signal.SIGHUP
    assert subjects(waiting.apply(document(GATE), "--check")[1]) == []


def test_two_at_once(waiting: System) -> None:
    process = waiting.beside = begun(waiting, "--who", "alice@controller")
    status, answer = waiting.apply(document(OPTIONS), "--who", "bob")
    assert (status, answer["error"]["kind"]) == (52, "busy")
    assert answer["error"]["message"].startswith("alice@controller is changing this host since ")
    status, answer = waiting.remove()
    assert (status, answer["error"]["kind"]) == (52, "busy")
    # A look is always possible.
    assert waiting.apply(document(OPTIONS), "--check")[0] == 0
    waiting.path("/run/go").touch()
    assert ended(process)[0] == 0
    waiting.beside = None
    assert waiting.apply(document(OPTIONS), "--who", "bob")[0] == 0


def test_a_run_of_several_calls(system: System) -> None:
    assert system.apply(document(OPTIONS), "--run", "r1", "--who", "alice")[0] == 0
    status, answer = system.apply(document(OPTIONS))
    assert (status, answer["error"]["kind"]) == (52, "busy")
    assert answer["error"]["message"].startswith("alice is changing this host since ")
    assert system.apply(document(GATE), "--run", "r1")[0] == 0
    assert system.apply(None, "--release", "r2")[1]["released"] is False
    assert system.apply(document(OPTIONS))[0] == 52
    assert system.apply(None, "--release", "r1")[1]["released"] is True
    assert system.apply(document(OPTIONS))[0] == 0


def test_a_killed_run_frees_the_host(waiting: System) -> None:
    process = begun(waiting)
    process.kill()
    process.communicate()
    waiting.path("/run/go").touch()
    status, answer = waiting.apply(document(GATE))
    assert (status, answer["error"]) == (0, None)
    assert "enable" in [kind for kind, _ in subjects(answer)]
