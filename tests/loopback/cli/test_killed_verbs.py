"""Verbs that signals end at any moment: nothing of them stays, neither a program, a folder, nor a claim on a host."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import cancel, cli
from tests.loopback import loopback_sshd
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.verbs import verbs
from tests.patience import SURELY, wait_for

pytestmark = pytest.mark.usefixtures("no_signal_is_ignored")
#: How often each verb is killed: a release needs ten.
KILLS = int(os.environ.get("GDSDEPLOY_KILLS", "1"))
Make = Callable[..., LoopbackFleet]
#: The words of a verb that needs some; FLEET and DIR stand for names.
WORDS = {
    "init": ("gpu9", "-o", "DIR/new.yml"),
    "mirror": ("FLEET", "DIR/mirror"),
    "provision": ("FLEET", "--check"),
    "rollout start": ("FLEET", "--yes"),
    "rollout status": ("FLEET", "--watch"),
    "rollout rollback": ("FLEET", "--yes"),
    "inventory": ("FLEET", "-o", "DIR/inventory"),
    "diff": ("DIR/a.json", "DIR/b.json"),
    "support-bundle": ("FLEET", "-o", "DIR/bundle.tar.gz"),
    "remove": ("FLEET", "--limit", "gone", "--check"),
    "sudoers": ("--user", "root"),
    "cufile render": ("FLEET", "--limit", "gpu1"),
    "cufile check": ("DIR/cufile.json",),
    "explain": ("--fleet", "FLEET", "gpu1"),
    "watch": ("FLEET",),
    "kmod audit": ("DIR/nothing.ko",),
    "kmod keygen": ("DIR/key",),
    "kmod sign": ("DIR/nothing.ko",),
    "kmod unenrol": ("DIR/key.der",),
    "kmod preflight": ("FLEET",),
    "gdscheck parse": ("-",),
}
#: What changes this machine itself, or is a program of its own.
OTHERS = {"kmod build", "kmod enrol", "kmod unenrol", "rollout start", "rollout resume", "rollout rollback"}
VERBS = [verb for verb in verbs(cli.group) if verb not in OTHERS and not verb.startswith("lab")]


def environment(folder: Path) -> dict[str, str]:
    """That of a verb whose temporary folders are below one of its own, by which its programs are known."""
    names = {"TMPDIR": "tmp", "HOME": "home", "GDSDEPLOY_STATE_DIR": "state", "GDSDEPLOY_CACHE_DIR": "cache"}
    for name in names.values():
        (folder / name).mkdir(exist_ok=True)
    places = {variable: str(folder / name) for variable, name in names.items()}
    return {**os.environ, **places, "PYTHONPATH": str(Path.cwd()), "TERM": "xterm"}


def programs(folder: Path) -> dict[int, str]:
    """Those that a verb with this ``environment`` has started and that still run, and the verb itself."""
    mark, found = f"TMPDIR={folder / 'tmp'}".encode(), {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def is_ready(process: subprocess.Popen[Any]) -> bool:
    """Whether the process minds signals, or has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return True
    caught = int(status.partition("SigCgt:")[2].split()[0], 16) if "SigCgt:" in status else 0
    return bool(caught >> (signal.SIGTERM - 1) & 1) or process.poll() is not None


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as those of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    server = loopback_sshd.start(tmp_path_factory.mktemp("sshd"))
    gone = {"profile": "right", "address": "127.0.0.1", "port": loopback_sshd.free_port()}
    yield LoopbackFleet(folder, server, {"gpu1": {"profile": "right"}, "gone": gone})
    server.stop()


@pytest.mark.parametrize("verb", VERBS)
def test_a_killed_verb_leaves_nothing(verb: str, fleet: LoopbackFleet, folder: Path) -> None:
    names = {"FLEET": str(fleet.path), "DIR": str(folder)}
    words = [names.get(word, word.replace("DIR/", f"{folder}/")) for word in WORDS.get(verb, ("FLEET",))]
    points = random.Random(verb)
    for _ in range(KILLS):
        number, twice = points.choice(cancel.SIGNALS), points.random() < 0.3
        pause = points.uniform(0, 0.8)
        process = subprocess.Popen(
            [sys.executable, "-m", "gdsdeploy", *verb.split(), *words],
            env=environment(folder), cwd=folder, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert wait_for(lambda process=process: is_ready(process))
        time.sleep(pause)
        for _ in range(1 + twice):
            process.send_signal(number)
        _, err = process.communicate(timeout=SURELY)
        assert "Traceback" not in err, f"{number.name} after {pause:.2f} s: {err}"
        assert process.returncode == -number or (process.returncode >= 0 and "interrupted" not in err), err
        assert programs(folder) == {}
        assert list((folder / "tmp").iterdir()) == []


#: Of a verb that plays what it is told in place of its own playbook.
PROGRAM = """
import sys
from pathlib import Path
from gdsdeploy import resources
from gdsdeploy.__main__ import main
book = Path(sys.argv.pop(1))
resources.playbook = lambda _: book
main()
"""
#: On the host, and in a program on this machine that minds no signal that one may ignore.
PLAYBOOK = """
- hosts: all
  gather_facts: false
  strategy: free
  tasks:
    - name: Begin
      ansible.builtin.command: "true"
    - name: Go on
      ansible.builtin.command: sh -c 'trap "" INT TERM HUP; touch MARK; while true; do sleep 0.1; done'
      delegate_to: "{{ 'localhost' if here else omit }}"
      vars: {ansible_connection: "{{ 'local' if here else 'ssh' }}"}
"""


@pytest.mark.parametrize("number", cancel.SIGNALS)
@pytest.mark.parametrize("here", [True, False])
def test_ansible_ends_with_the_verb(here: bool, number: signal.Signals, fleet: LoopbackFleet, folder: Path) -> None:
    mark, book = folder / "mark", folder / "book.yml"
    book.write_text(PLAYBOOK.replace("MARK", str(mark)))
    words = ["remove", fleet.path, "--limit", "gpu1", "-e", f'{{"here": {str(here).lower()}}}']
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, str(book), *map(str, words)], environment(folder))
    shown = b""

    def read() -> bool:
        """Take what is shown; False: that was all, for no program has the terminal any more."""
        nonlocal shown
        assert select.select([terminal], [], [], SURELY)[0], shown.decode()
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            return False
        return True

    assert wait_for(lambda: mark.exists() or not read())
    assert mark.exists(), shown.decode()
    sessions = fleet.sessions()
    os.kill(pid, number)
    while read():
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == -number
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") > 0, "the cursor is shown again"
    assert programs(folder) == {}
    assert list((folder / "tmp").iterdir()) == []
    assert fleet.sessions() > sessions, "the host is asked to let other runs change it"


#: Ways to wait for a program that minds no signal that one may ignore, as a verb does.
STUBBORN = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from gdsdeploy import cancel, cli, run
way, mark = sys.argv[1:]
cancel.HURRY = 1.0
argv = ["sh", "-c", "trap '' INT TERM HUP; touch $0; while :; do sleep 0.1; done", mark]
def clean_up():
    try:
        run.run(argv, doing="wait")
    finally:
        time.sleep(600)
def in_pool():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run.run, argv, doing="wait").result()
WAYS = {
    "stream": lambda: run.stream(argv, doing="wait", line=print),
    "run": lambda: run.run(argv, doing="wait"),
    "clean-up": clean_up,
    "pool": in_pool,
}
class Group:
    def main(self, **settings):
        WAYS[way]()
cli.group = Group()
cli.main()
"""


@pytest.mark.parametrize(
    ("way", "times"), [("run", 1), ("pool", 1), ("stream", 2), ("run", 2), ("clean-up", 2), ("pool", 2)]
)
def test_a_second_signal_waits_for_seconds_at_most(way: str, times: int, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, way, str(folder / "mark")], env=environment(folder), start_new_session=True,
    )  # fmt: skip
    assert wait_for((folder / "mark").exists)
    begin = time.monotonic()
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    assert process.wait(SURELY) == -signal.SIGTERM
    assert time.monotonic() - begin < SURELY
    assert programs(folder) == {}


#: Moments in which a signal comes, in a verb: where Python drops what is raised, or makes another error of it.
MOMENTS = {
    "a finaliser": """
class Gone:
    def __del__(self):
        signalled()
Gone()
time.sleep(600)
""",
    "a class of a module that is imported": """
import importlib
Path("module.py").write_text("import __main__\\nclass Name:\\n    x = __main__.Named()\\n__main__.read.append(1)\\n")
sys.path.insert(0, "")
class Named:
    def __set_name__(self, owner, name):
        signalled()
importlib.import_module("module")
time.sleep(600)
""",
    "the clean-up of a library, which raises another error": """
import io, zipfile
with zipfile.ZipFile(io.BytesIO(), "w") as archive:
    handle = archive.open("name", "w")
    signalled()
    time.sleep(600)
""",
}
MOMENT = """
import os, signal, sys, time
from pathlib import Path
from gdsdeploy import cli
read = []
def signalled():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
class Group:
    def main(self, **settings):
        exec(sys.argv[1], globals())
cli.group = Group()
cli.main()
"""


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_signal_at_an_unlucky_moment_ends_the_verb_as_ever(moment: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MOMENT, moment], env=environment(folder), cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=SURELY, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stderr.startswith("error: interrupted\n")
    assert "Traceback" not in done.stderr
