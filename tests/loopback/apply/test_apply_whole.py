"""The host program as it is sent, with everything that it does, and what becomes of a run that is stopped or killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import record
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.gate.gate import Settings
from tests.loopback.apply import many_files
from tests.loopback.apply.throwaway import PROGRAM, SENT, System, ended, subjects

RELEASE = "0.0.0-no-such-kernel"
CUFILE = "// Rendered by gdsdeploy; changes here are overwritten.\n{}\n"


def resource(name: str, **desired: Any) -> dict[str, Any]:
    return {"resource": name, "desired": desired}


def document(*resources: Any) -> dict[str, Any]:
    return {"version": 1, "resources": list(resources)}


GATE = resource(
    "gate", settings=Settings().to_json(), before=["slurmd.service"], required_by=["k3s.service"], slurm=True
)
WHOLE = document(
    resource("program"),
    resource("expectation", expectation="{}"),
    resource("driver_options", kernel_release=RELEASE, modules=["nvidia"], rdma="peermem"),
    resource("imex", imex_nodes=["10.0.0.1", "fd00::2"]),
    resource("cufile", content=CUFILE),
    resource("peermem", rdma="peermem"),
    GATE,
)
OFF = document(resource("peermem", rdma="none"), resource("gate", enabled=False))


def test_applied_as_predicted_twice_and_taken_back(system: System) -> None:
    status, predicted = system.apply(WHOLE, "--check")
    assert (status, predicted["error"]) == (0, None)
    assert system.changed() == set()
    status, answer = system.apply(WHOLE)
    assert (status, answer["error"]) == (0, None)
    assert subjects(answer) == subjects(predicted)
    wants = "/etc/systemd/system/multi-user.target.wants"
    assert {f"{wants}/gds-gate.service", f"{wants}/gds-peermem.service", PROGRAM} <= system.changed()
    assert "/etc/systemd/system/k3s.service.requires/gds-gate.service" in system.changed()
    assert system.path("/etc/nvidia-imex/nodes_config.cfg").read_text() == "10.0.0.1\nfd00::2\n"
    assert system.path(PROGRAM).read_bytes() == system.path(SENT).read_bytes()
    assert subjects(system.apply(WHOLE, "--check")[1]) == []
    assert subjects(system.apply(WHOLE)[1]) == []
    status, predicted = system.remove("--check", program=PROGRAM)
    # The program removes itself while it runs.
    status, removed = system.remove(program=PROGRAM)
    assert (status, removed["error"]) == (0, None)
    assert set(subjects(removed)) == set(subjects(predicted))
    assert system.changed() == set()
    left = {path.name.partition("-")[0] for path in (system.folder / "run/gdsdeploy").iterdir()}
    assert left == {"apply.lock", "program"}, "a boot takes them away"
    assert subjects(system.remove()[1]) == []


def test_dismissed(system: System) -> None:
    system.apply(document(resource("driver_options", kernel_release=RELEASE), *WHOLE["resources"][4:]))
    predicted = system.apply(OFF, "--check")[1]
    status, answer = system.apply(OFF)
    assert (status, subjects(answer)) == (0, subjects(predicted))
    assert not [path for path in system.changed() if "/systemd/" in path]
    assert subjects(system.apply(OFF)[1]) == []


def test_a_unit_loses_the_links_that_it_no_longer_asks_for(system: System) -> None:
    system.apply(document(GATE))
    link = system.path("/etc/systemd/system/k3s.service.requires/gds-gate.service")
    assert link.is_symlink()
    fewer = {**GATE, "desired": {**GATE["desired"], "required_by": []}}
    assert system.apply(document(fewer))[0] == 0
    assert not os.path.lexists(link)
    assert subjects(system.apply(document(fewer), "--check")[1]) == []


def test_sent_in_memory_it_puts_itself_in_place(system: System) -> None:
    """As a controller sends it: through a descriptor of its own, without a file."""
    system.install("/usr/local/sbin/send.py", SEND)
    done = system.start("python3", "-I", "-S", "/usr/local/sbin/send.py", SENT)
    status, answer = ended(done, json.dumps(document(resource("program"))))
    assert (status, answer["error"]) == (0, None)
    assert system.path(PROGRAM).read_bytes() == system.path(SENT).read_bytes()


SEND = """\
import os, sys
fd = os.memfd_create("gdsdeploy")
with open(sys.argv[1], "rb") as file:
    os.write(fd, file.read())
os.set_inheritable(fd, True)
words = ["apply", "--json", "--desired", "-"]
os.execv(sys.executable, [sys.executable, "-I", f"/proc/self/fd/{fd}", *words])
"""


def test_removed_by_name(system: System) -> None:
    system.apply(WHOLE)
    status, removed = system.remove("cufile", "gate")
    assert status == 0
    assert {subject for _, subject in subjects(removed)} >= {"/etc/cufile.json", "gds-gate.service"}
    assert "/etc/modprobe.d/gdsdeploy.conf" in system.changed()
    assert subjects(system.remove("cufile", "gate")[1]) == []


def test_a_removal_is_refused_with_another_or_an_older_lock(system: System) -> None:
    own, other = "0" * 32, "1" * 32
    system.path("/etc/gdsdeploy/expectation.json").write_text(json.dumps({"fleet_id": own, "lock_serial": 5}))
    for fleet_id, serial, message in (
        (other, 9, f"a lock of the fleet {own}"),
        (own, 4, "serial 5, and this one is older: 4"),
        (own, 5, ""),
        (own, 0, ""),
    ):
        _, answer = system.remove("--check", "--fleet-id", fleet_id, "--lock-serial", str(serial))
        error = answer["error"] or {"kind": "", "message": ""}
        assert error["kind"] == ("refused" if message else ""), answer
        assert message in error["message"]


# -- Full and read-only file systems, signals, lost connections, and two runs at once.


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
    deadline = time.monotonic() + 300
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
    process.communicate(timeout=300)
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
    process.wait(300)
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


# -- SIGKILL at any moment: no file is half-written, the record knows every change, the next run completes the work.


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
