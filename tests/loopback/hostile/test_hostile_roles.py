"""Hosts that answer Ansible what they like: each is that host's failure, and the honest host beside it is done."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gdsdeploy import run
from gdsdeploy.converge import ansible
from gdsdeploy.converge.inventory import dump
from gdsdeploy.errors import ConvergeFailed
from gdsdeploy.host.io.wording import line
from tests.patience import SURELY
from tests.unit.hostile_words import WORDS

HONEST = "honest"
PLAY = """
- hosts: all
  gather_facts: false
  strategy: ansible.builtin.free
  roles:
    - gdsdeploy.gds.gds_preflight
"""
#: Stands for a host's Python: whatever it is to run, it answers by its own name.
PYTHON = """\
#!{python} -IS
import pathlib, sys, time
me = pathlib.Path(sys.argv[0])
sys.stdin.buffer.read()
sys.stdout.buffer.write(b"\\x1egdsdeploy\\n")
sys.stdout.buffer.write(me.with_suffix(".answer").read_bytes())
sys.stdout.buffer.flush()
while me.name in ("endless", "drip"):
    sys.stdout.buffer.write(b"[]," * (1 if me.name == "drip" else 300_000))
    sys.stdout.buffer.flush()
    time.sleep(0.1 if me.name == "drip" else 0)
"""


def answer(*, error: object = None, **more: object) -> str:
    resource = {"name": "preflight", "changes": [], "refusals": [], "unknown": [], "report": {}, "diffs": [], **more}
    return json.dumps({"resources": [resource], "error": error, "notes": []})


def failing(message: object, **more: object) -> str:
    return answer(error={"kind": "failed", "message": message, "hint": ""}, **more)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


LIES: Mapping[str, str] = {
    "deep": '{"resources":' + "[" * 50_000,
    "deep-change": failing("x", changes=[nested(100)]),
    "deeper-change": failing("x", changes=[nested(900)]),
    "number": failing("x", changes=[10**3000]),
    "large": failing("x" * 9 * 2**20),
    "large-change": failing("x", changes=["x" * 3 * 2**20]),
    "types": '{"resources":7,"error":[]}',
    "message": failing({"a": [1]}),
    "half": failing("x\ud800y"),
    "empty": "",
    "list": "[]",
    "quotes": failing('"' * 1_900_000),
}


def play(folder: Path, hosts: Mapping[str, str], env: Mapping[str, str | None] = {}) -> ansible.Outcome:
    """What a real ansible-playbook makes of hosts that give these answers."""
    names = {}
    for name, text in {**hosts, HONEST: answer()}.items():
        place = folder / name
        place.write_text(PYTHON.format(python=sys.executable))
        place.chmod(0o755)
        place.with_suffix(".answer").write_text(text)
        names[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(place),
            "gds_preflight_os": "debian-13",
            "gds_preflight_manager": "apt",
        }
    (folder / "inventory.yml").write_text(dump({"all": {"hosts": names}}))
    (folder / "play.yml").write_text(PLAY)
    environment = {**ansible.environment(control_dir=folder, program=folder / HONEST), **env}
    command = [sys.executable, "-P", "-m", "ansible", "playbook", "-i", f"{folder}/inventory.yml", f"{folder}/play.yml"]
    return ansible.play(command, environment, log=folder / "log", progress=lambda _: None)


def test_each_liar_fails_and_the_others_are_done(tmp_path: Path) -> None:
    outcome = play(tmp_path, LIES)
    assert set(outcome.hosts) == {HONEST, *LIES}
    assert outcome.hosts[HONEST].failure is None
    for name in LIES:
        failure = outcome.hosts[name].failure
        assert isinstance(failure, ConvergeFailed), name
        assert failure.message.startswith(f"{name}: gds_preflight: ")
        assert len(failure.message) < 20_000, name
        failure.message.encode()


def test_its_words_are_data(tmp_path: Path) -> None:
    """In what fails, in what a change is, and in a report that roles read."""
    canary = tmp_path / "canary"
    words = [word.replace("CANARY", str(canary)) for word in WORDS if "\ud800" not in word]
    change = {"kind": "write", "before": "", "after": "", "reason": "missing", "disruption": "none", "resource": "x"}
    hosts = {
        f"liar-{number}": failing(word, changes=[{**change, "subject": word}], report={"reasons": [word], word: word})
        for number, word in enumerate(words)
    }
    outcome = play(tmp_path, hosts)
    for number, word in enumerate(words):
        result = outcome.hosts[f"liar-{number}"]
        assert result.failure is not None
        assert line(word).strip() in result.failure.message
        assert [change.subject for change in result.changes] == [line(word)]
    assert outcome.hosts[HONEST].failure is None
    assert not canary.exists()


def test_endless_output_ends_at_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible, "MEMORY", 2**30)
    outcome = play(tmp_path, {"endless": ""})
    assert outcome.hosts[HONEST].failure is None
    failure = str(outcome.hosts["endless"].failure)
    assert "too large for this machine's memory" in failure


def test_a_slow_drip_ends_at_the_time_of_a_task(tmp_path: Path) -> None:
    begin = time.monotonic()
    outcome = play(tmp_path, {"drip": ""}, {"ANSIBLE_TASK_TIMEOUT": "3"})
    assert time.monotonic() - begin < SURELY
    assert outcome.hosts[HONEST].failure is None
    assert "Timed out after 3" in str(outcome.hosts["drip"].failure)


def test_a_task_has_a_time() -> None:
    text = (Path(__file__).parents[3] / "playbooks/ansible.cfg").read_text()
    assert "\ntask_timeout = 14400\n" in text


def test_no_role_puts_a_hosts_words_into_a_command() -> None:
    """Answers are registered as ``__…``; what a task of Ansible's own is given becomes part of shell commands."""
    for path in (Path(__file__).parents[3] / "roles").glob("*/tasks/*.yml"):
        for task in yaml.safe_load(path.read_text()):
            for inner in (task, *task.get("block", ())):
                arguments = [value for key, value in inner.items() if key.startswith("ansible.builtin.")]
                assert "__gds" not in str(arguments), path


def test_what_is_fetched_has_a_size(tmp_path: Path) -> None:
    """Ansible fetches with sftp, a child of it, which takes what a host sends."""
    place, size = tmp_path / "fetched", 300 * 2**20
    child = f"import os; fd = os.open({str(place)!r}, os.O_CREAT | os.O_WRONLY); os.pwrite(fd, b'x', {size})"
    parent = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    lines: list[str] = []
    command = [sys.executable, "-c", parent]
    assert run.stream(command, doing="try it", line=lines.append, memory=size - 1) == 1
    assert "File too large" in lines[-1]
    assert place.stat().st_size == 0
    assert run.stream(command, doing="try it", line=lines.append, memory=size + 1) == 0
