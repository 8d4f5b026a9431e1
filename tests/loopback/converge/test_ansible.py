"""Runs of Ansible: command line, environment and what its events say; and the playbooks against what a plan has."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import console, resources
from gdsdeploy.board import Board
from gdsdeploy.builds.assign import by_intent
from gdsdeploy.converge import ansible, plan_fleet
from gdsdeploy.converge.desired import RESOURCES, desired_states, variables
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import Busy, ConvergeFailed, HostUnfit, HostUnreachable, ModuleBuildFailed, NotProvisioned
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.model import Change
from gdsdeploy.image.root import ImageRoot
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.profile_parts import Signing
from gdsdeploy.report.model import build_words
from tests.patience import SURELY
from tests.roles.tasks import APPLY


def test_the_command_line_ends_with_our_limit() -> None:
    value = ansible.argv(
        "provision", Path("/s/inventory.yml"), limit=["gpu1", "gpu2"], extra=["--check", "--diff", "-vv"]
    )
    assert value == [
        sys.executable, "-P", "-m", "ansible", "playbook",
        "--inventory", "/s/inventory.yml", "--check", "--diff", "-vv", "--limit", "gpu1,gpu2",
        str(resources.playbook("provision")),
    ]  # fmt: skip


def environment(tmp_path: Path, inherited: dict[str, str] | None = None) -> dict[str, str]:
    """What ansible-playbook gets of an environment."""
    inherited = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **(inherited or {})}
    variables = ansible.environment(control_dir=Path("/s/cm"), program=Path("/s/host.pyz"), inherited=inherited)
    return {name: value for name, value in {**inherited, **variables}.items() if value is not None}


@pytest.mark.parametrize(
    "inherited",
    [
        {},
        {"ANSIBLE_HOST_KEY_CHECKING": "False"},
        {"ANSIBLE_SSH_HOST_KEY_CHECKING": "False"},
        {"ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no"},
        {"ANSIBLE_ROLES_PATH": "/elsewhere", "ANSIBLE_CONFIG": "/elsewhere/ansible.cfg"},
    ],
)
def test_host_keys_are_checked_and_stray_configuration_is_ignored(tmp_path: Path, inherited: dict[str, str]) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nhost_key_checking = false\n")
    result = subprocess.run(
        [Path(sys.executable).parent / "ansible-config", "dump", "--only-changed", "--type", "all"],
        env=environment(tmp_path, inherited), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    settings = dict(re.findall(r"^(\w+)\(.*\) = (.*)$", result.stdout, re.MULTILINE))
    assert settings["HOST_KEY_CHECKING"] == "True"
    assert settings["COLLECTIONS_PATHS"] == str([str(resources.collections())])
    assert "StrictHostKeyChecking=no" not in result.stdout
    assert "/elsewhere" not in result.stdout


def test_bytecode_of_a_package_that_became_a_module_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "gdsdeploy"
    for name in ("gone/__pycache__/model.pyc", "kept/__pycache__/model.pyc", "kept/model.py", "gone.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    resources.collections()
    assert sorted(str(path.relative_to(package)) for path in package.rglob("*")) == [
        "gone.py", "kept", "kept/__pycache__", "kept/__pycache__/model.pyc", "kept/model.py",
    ]  # fmt: skip


def test_what_a_user_may_set_is_kept(tmp_path: Path) -> None:
    value = environment(tmp_path, {"ANSIBLE_FORKS": "3", "ANSIBLE_SSH_PIPELINING": "False"})
    assert value["ANSIBLE_FORKS"] == "3"
    assert "ANSIBLE_SSH_PIPELINING" not in value
    assert value["GDSDEPLOY_HOST_PROGRAM"] == "/s/host.pyz"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--cheque"], "--cheque: neither gdsdeploy nor ansible-playbook has this flag; did you mean '--check'?"),
        (["--nonsense-altogether"], "--nonsense-altogether: neither gdsdeploy nor ansible-playbook has this flag"),
        (["--forks"], "ansible-playbook: argument -f/--forks: "),
        (["gpu1"], "gpu1: not a flag; --limit selects hosts"),
        (["--check", "other.yml"], "other.yml: not a flag; --limit selects hosts"),
        (["-i", "other/"], "--inventory: the fleet file says which hosts there are; --limit selects hosts"),
        (["-Diother/"], "--inventory: "),
        (["--inventory-f=other/"], "--inventory: "),
        (["--list-tasks"], "--list-tasks: it plays nothing; gdsdeploy plan shows what would be done"),
        (["--list-tags"], "--list-tags: it plays nothing"),
        (["--list-hosts"], "--list-hosts: it plays nothing"),
        (["--syntax"], "--syntax-check: it plays nothing"),
        (
            ["-vK"],
            "--ask-become-pass: it asks at a terminal, which Ansible doesn't have here; use --become-password-file",
        ),
        (["-k"], "--ask-pass: it asks at a terminal"),
        (["--vault-id", "lab@prompt"], "--ask-vault-password: it asks at a terminal"),
        (["-J"], "--ask-vault-password: it asks at a terminal"),
        (["--step"], "--step: it asks at a terminal"),
        (["--version"], "ansible-playbook: --version: it would do nothing else"),
    ],
)
def test_flags_that_are_not_passed_on_are_named(flags: list[str], words: str) -> None:
    with pytest.raises(ansible.FlagsRefused) as refused:
        ansible.flags(flags)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("words", "converges", "checks", "limit"),
    [
        ([], True, False, None), (["-v"], True, False, None), (["-vvv", "--forks", "4"], True, False, None),
        (["--fork=4", "-T", "9", "-f10"], True, False, None), (["--check"], False, True, None),
        (["-vCD"], False, True, None), (["--chec"], False, True, None), (["-D"], False, False, None),
        (["-e", "a=b"], False, False, None), (["--forks", "4", "-t", "x"], False, False, None),
        (["--start-at-task", "x"], False, False, None), (["-l", "gpu1"], True, False, "gpu1"),
        (["-vlgpu1"], True, False, "gpu1"), (["--lim", "gpu1,gpu2"], True, False, "gpu1,gpu2"),
        (["-elocal=-l"], False, False, None), (["-ulocal"], False, False, None),
    ],
)  # fmt: skip
def test_flags_are_read_as_ansible_reads_them(
    words: list[str], converges: bool, checks: bool, limit: str | None
) -> None:
    flags = ansible.flags(words)
    assert (flags.converges, flags.checks, flags.limit) == (converges, checks, limit)


@pytest.mark.parametrize("flags", [["-l", "gpu1"], ["--lim=gpu1"]])
def test_no_flag_plays_a_host_that_was_left_out(flags: list[str], tmp_path: Path) -> None:
    """What gdsdeploy has refused stays refused."""
    names = {name: {"ansible_connection": "local"} for name in ("gpu1", "gpu2", "gpu3")}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"children": {"hosts": {"hosts": names}}}}))
    command = ansible.argv("remove", tmp_path / "inventory.yml", limit=["gpu2", "gpu3"], extra=[*flags, "--list-hosts"])
    env = {k: v for k, v in {**os.environ, **environment(tmp_path, os.environ)}.items() if v is not None}
    listed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"gpu\d", listed)) == {"gpu2", "gpu3"}


def fake_playbook(tmp_path: Path, events: list[dict[str, object]], status: int) -> list[str]:
    """A program that prints events as the callback does: what is tested here is the reader of them."""
    script = tmp_path / "play.py"
    lines = [ansible.MARK + json.dumps(event) for event in events]
    script.write_text(f"import sys\nprint('human text')\nprint({chr(10).join(lines)!r})\nsys.exit({status})\n")
    return [sys.executable, str(script)]


WRITE = Change("write", "/etc/x", "", "sha256:1", "missing", resource="pins")


def result(status: str, role: str, task: str, changed: bool = False, **lines: object) -> dict[str, object]:
    return {"event": "result", "host": "gpu1", "role": role, "task": task, "status": status,
            "seconds": 1.0, "changed": changed, "said": json.dumps(lines)}  # fmt: skip


def test_changes_and_log_are_kept(tmp_path: Path) -> None:
    events = [
        {"event": "play", "name": "Prepare"},
        {"event": "long", "host": "gpu1", "role": "gds_repo", "task": "Pin the stack"},
        result("ok", "gds_repo", "Pin the stack", changed=True, changes=[WRITE.to_json(), {"kind": "x"}, 7]),
        result("ok", "gds_repo", "Ask apt"),
        {"event": "recap", "hosts": ["gpu1", "gpu2"]},
    ]
    lines: list[str] = []
    log = tmp_path / "log" / "run.log"
    outcome = ansible.play(fake_playbook(tmp_path, events, 0), {}, log=log, progress=lines.append)
    assert outcome.hosts["gpu1"].changed == ["gds_repo: Pin the stack"]
    assert outcome.hosts.keys() == {"gpu1"}
    assert outcome.hosts["gpu1"].changes == [WRITE], "what is no change is left out"
    assert log.read_text() == "human text\n"
    assert lines[0] == "▸ Prepare"
    assert "  gpu1: gds_repo: Pin the stack …" in lines


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (
            result("failed", "gds_modules", "Build", detail={"msg": "non-zero return code", "stderr": "a\nb"}),
            ConvergeFailed,
            "gpu1: gds_modules: Build: non-zero return code\n  | a\n  | b",
        ),
        (
            result(
                "failed",
                "gds_packages",
                "Install the locked versions",
                detail={"msg": "non-zero return code", "rc": 100, "cmd": ["apt-get", "install"], "stderr": "E: no"},
            ),
            ConvergeFailed,
            "gpu1: gds_packages: Install the locked versions: apt-get ended with status 100\n  | E: no",
        ),
        (
            result("unreachable", "gds_repo", "x", detail={"msg": "timed out"}),
            HostUnreachable,
            "gpu1: lost during gds_repo: timed out",
        ),
    ],
)
def test_failures_name_host_role_and_cause(
    tmp_path: Path, event: dict[str, object], error: type[Exception], words: str
) -> None:
    outcome = ansible.play(fake_playbook(tmp_path, [event], 2), {}, log=tmp_path / "l", progress=lambda _: None)
    failure = outcome.hosts["gpu1"].failure
    assert type(failure) is error
    assert str(failure) == words


TYPED: list[tuple[str, str, type[Exception], str]] = [
    ("gds_preflight", "refused", HostUnfit, "gpu1: it is so"),
    ("gds_repo", "refused", HostUnfit, "gpu1: it is so"),
    ("gds_cufile", "refused", ConvergeFailed, "gpu1: gds_cufile: Write it: it is so"),
    ("gds_modules", "modules", ModuleBuildFailed, "gpu1: it is so"),
    ("gds_kernel", "modules", ModuleBuildFailed, "gpu1: it is so"),
    ("gds_repo", "busy", Busy, "gpu1: it is so"),
    ("gds_modules", "not-delivered", NotProvisioned, "gpu1: it is so"),
    *(
        ("gds_driver", kind, ConvergeFailed, "gpu1: gds_driver: Write it: it is so")
        for kind in ("package-manager-locked", "half-installed", "no-space", "verify", "io", "failed", "of-tomorrow")
    ),
]


@pytest.mark.parametrize(("role", "kind", "error", "words"), TYPED)
def test_the_kind_of_an_error_decides(tmp_path: Path, role: str, kind: str, error: type[Exception], words: str) -> None:
    typed = {"kind": kind, "message": "it is so", "hint": "do this."}
    events = [
        result("failed", role, "Write it", detail={"gds_error": typed, "msg": "it is so (do this.)"}),
        result("failed", role, "What follows from it", detail={"msg": "later"}),
    ]
    outcome = ansible.play(fake_playbook(tmp_path, events, 2), {}, log=tmp_path / "l", progress=lambda _: None)
    value = outcome.hosts["gpu1"]
    assert type(value.failure) is error
    assert str(value.failure) == words
    assert getattr(value.failure, "hint", "") == f"do this\nWhole output: {tmp_path / 'l'}"
    assert value.kind == kind


def test_a_playbook_that_dies_without_a_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvergeFailed, match="status 4"):
        ansible.play(fake_playbook(tmp_path, [], 4), {}, log=tmp_path / "l", progress=lambda _: None)


#: gpu1 fails, and then the kernel ends Ansible, as for want of memory, while gpu2 and gpu3 are at work.
KILLED = """
- hosts: all
  gather_facts: false
  strategy: free
  tasks:
    - name: Begin
      ansible.builtin.command: "true"
    - name: Fail
      ansible.builtin.command: "false"
      when: inventory_hostname == "gpu1"
    - name: Wait for it
      ansible.builtin.command: sleep 2
    - name: Kill
      ansible.builtin.command: kill -{{ number }} {{ lookup("pipe", "ps -o ppid= $PPID") }}
      when: inventory_hostname == "gpu2"
    - name: Go on
      ansible.builtin.command: sleep 3
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_host_is_done_when_its_end_was_seen(killed: bool, tmp_path: Path) -> None:
    names = ("gpu1", "gpu2", "gpu3")
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": dict.fromkeys(names, here)}}))
    (tmp_path / "book.yml").write_text(KILLED)
    command = ansible.argv("remove", tmp_path / "inventory.yml", limit=names, extra=["-e", f"number={9 * killed}"])
    env = environment(tmp_path, os.environ)
    played = [*command[:-1], str(tmp_path / "book.yml")]
    outcome = ansible.play(played, env, log=tmp_path / "log", progress=lambda _: None)
    failures = {name: str(result.failure) for name, result in outcome.hosts.items() if result.failure}
    assert failures.pop("gpu1") == "gpu1: : Fail: false ended with status 1"
    words = "ansible-playbook ended with status -9 before it was through with this host"
    assert failures == ({name: f"{name}: {words}" for name in ("gpu2", "gpu3")} if killed else {})
    assert outcome.status == (-9 if killed else 2)


#: A host program that waits for the file ``go``, and a ``cat`` with what another build left, and then a build's units.
WAITS = """
import json, pathlib, sys, time
end = time.monotonic() + {surely}
while not pathlib.Path("{folder}/go").exists() and time.monotonic() < end:
    time.sleep(0.05)
print(json.dumps(dict(resources=[], notes=[], error=None)))
"""
CAT = """#!/bin/sh
[ "$*" = /run/gdsdeploy/build ] || exec /bin/cat "$@"
echo >>{folder}/looks
n=$(wc -l <{folder}/looks)
printf '%-63s\\n' "nvidia $([ $n -gt 2 ] && echo $n || echo 40) 64"
"""


def test_a_task_that_builds_shows_what_the_host_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Watched(Board):
        def tell(self, key: object, detail: Callable[[], str]) -> None:
            super().tell(key, detail)
            shown.extend(each.detail() for each in self.activities())
            if len(shown) > 1:
                (tmp_path / "go").touch()

    monkeypatch.setattr(console, "board", Watched())
    program = tmp_path / "host.pyz"
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr("__main__.py", WAITS.format(folder=tmp_path, surely=SURELY))
    (tmp_path / "cat").write_text(CAT.format(folder=tmp_path))
    (tmp_path / "cat").chmod(0o755)
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "gds_modules_source": "build"}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": {"build1": host}}}))
    task = {"name": "Build", APPLY: {"resource": "modules", "state": "absent"}}
    (tmp_path / "book.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    command = ansible.argv("remove", tmp_path / "inventory.yml", limit=["build1"], extra=[])
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env = {**environment(tmp_path, {**os.environ, **paths}), "GDSDEPLOY_HOST_PROGRAM": str(program)}
    lines: list[str] = []
    command[-1] = str(tmp_path / "book.yml")
    outcome = ansible.play(command, env, log=tmp_path / "log", progress=lines.append)
    assert outcome.hosts["build1"].failure is None, (tmp_path / "log").read_text()
    assert shown[:2] == ["compiling nvidia.ko, unit 3 of 64", "compiling nvidia.ko, unit 4 of 64"]
    assert lines == ["▸ all", "  build1: : Build …"], "a log has no line of its own about a unit"
    assert console.board.activities() == []


@pytest.mark.parametrize(
    "said",
    ["nvidia 1 2\nnvidia 2 2", "evil 1 2", "nvidia -1 2", "nvidia 1", "nvidia ١ 2", "nvidia 1234567 2", "\x1b[2J"],
)
def test_a_host_shows_nothing_else_as_its_build(said: str) -> None:
    assert build_words(said) == ""


def test_a_larger_inventory_has_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 10,000 hosts Ansible needs more than MEMORY."""
    monkeypatch.setattr(ansible, "MEMORY", 64 * 2**20)
    size = 200 * 2**20
    command = [sys.executable, "-c", f"bytearray({size})"]
    with pytest.raises(ConvergeFailed, match="MemoryError"):
        ansible.play(command, {}, log=tmp_path / "log", progress=lambda _: None)
    result = ansible.play(command, {}, log=tmp_path / "log", progress=lambda _: None, inventory=size // 16)
    assert result.status == 0


def test_a_host_cannot_write_events_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host says is in Ansible's output, too, at the beginning of a line even."""
    env = ansible.environment(control_dir=tmp_path, program=tmp_path / "p")
    word = str(env[ansible.EVENTS])
    assert word != ansible.environment(control_dir=tmp_path, program=tmp_path / "p")[ansible.EVENTS]
    monkeypatch.setenv(ansible.EVENTS, word)
    spec = importlib.util.spec_from_file_location("events", Path(ansible.__file__).parent / "callbacks/gds_events.py")
    assert spec is not None
    assert spec.loader is not None
    callback = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(callback)
    assert ansible.MARK + word == callback.MARK
    forged = result("failed", "gds_repo", "Pin the stack", detail={"msg": "of another host"})
    command = fake_playbook(tmp_path, [forged], 0)
    outcome = ansible.play(command, {ansible.EVENTS: word}, log=tmp_path / "l", progress=lambda _: None)
    assert outcome.hosts == {}
    assert "of another host" in (tmp_path / "l").read_text()


@pytest.mark.parametrize(
    "detail",
    [
        {"msg": "non-zero return code", "cmd": []},
        {"msg": "non-zero return code", "cmd": [[]], "rc": {}},
        {"msg": {"a": 1}, "stderr": ["x"]},
        {"msg": "\ud800", "stdout": "\udfff"},
        {"gds_error": {"kind": ["refused"], "message": None, "hint": "\ud800"}},
        {"gds_error": {"kind": "modules", "message": "\ud800", "hint": 7}},
    ],
)
def test_whatever_a_module_answers_is_that_hosts_failure(tmp_path: Path, detail: dict[str, object]) -> None:
    events = [result("failed", "gds_repo", "Pin the stack", detail=detail, changes=[7, {"kind": []}, "\ud800"])]
    outcome = ansible.play(fake_playbook(tmp_path, events, 2), {}, log=tmp_path / "l", progress=lambda _: None)
    failure = outcome.hosts["gpu1"].failure
    assert failure is not None
    assert failure.message.startswith("gpu1: ")
    f"{failure.message}{failure.hint}".encode()


# -- The playbooks, played on hosts that answer each resource: its tasks, in the plan's order, and few skipped ones.


ROOT = Path(__file__).parents[3]
LAB = ROOT / "tests" / "golden" / "lab"
#: Stands for a host's Python: it answers for the resource that it is sent, by the file beside it.
PYTHON = """\
#!{python} -IS
import json, pathlib, sys
sent = sys.stdin.buffer.read()
document, _ = json.JSONDecoder().raw_decode(sent[sent.rindex(b'{{"version"'):].decode("utf-8", "replace"))
resource = document["resources"][0]["resource"]
answer = json.loads(pathlib.Path(sys.argv[0]).with_suffix(".answers").read_text()).get(resource, {{}})
plain = {{"name": resource, "changes": [], "refusals": [], "unknown": [], "report": {{}}, "diffs": []}}
whole = {{"resources": [{{**plain, "changes": answer.get("changes", [])}}], "error": answer.get("error"), "notes": []}}
sys.stdout.write("\\x1egdsdeploy\\n" + json.dumps(whole))
"""
CHANGE = {"kind": "write", "subject": "/x", "before": "", "after": "", "reason": "missing", "disruption": "none"}
CHANGES = {"changes": [{**CHANGE, "resource": "x"}]}
FAILS = {"error": {"kind": "failed", "message": "it fails", "hint": ""}}
Answers = Mapping[str, Mapping[str, Any]]


def host(folder: Path, name: str, answers: Answers) -> dict[str, Any]:
    """Ansible's variables of a host that gives these answers."""
    place = folder / f"{name}.python"
    place.write_text(PYTHON.format(python=sys.executable))
    place.chmod(0o755)
    place.with_suffix(".answers").write_text(json.dumps(answers))
    return {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(place)}


def play(folder: Path, values: Mapping[str, Any], book: Path, *words: str) -> tuple[ansible.Outcome, str]:
    """What a run does, and what Ansible prints."""
    (folder / "inventory.yml").write_text(dump(values))
    (folder / "program").write_text("")
    environment = ansible.environment(control_dir=folder, program=folder / "program")
    command = [sys.executable, "-P", "-m", "ansible", "playbook", "-i", f"{folder}/inventory.yml", *words, str(book)]
    outcome = ansible.play(command, environment, log=folder / "log", progress=lambda _: None)
    return outcome, (folder / "log").read_text()


def task_names() -> dict[str, list[str]]:
    """ "role: task" → the resources that tasks of this name apply."""
    applied: dict[str, list[str]] = {}
    for file in (ROOT / "roles").glob("*/tasks/*.yml"):
        for task in yaml.safe_load(file.read_text()):
            for inner in (task, *task.get("block", ())):
                if APPLY in inner:
                    applied.setdefault(f"{file.parts[-3]}: {inner['name']}", []).append(inner[APPLY]["resource"])
    return applied


def of_profile(fleet: Fleet, **profile: Any) -> Fleet:
    return fleet.model_copy(update={"profiles": {"gds": fleet.profiles["gds"].model_copy(update=profile)}})


def test_each_machine_is_applied_what_its_plan_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(LAB, tmp_path / "fleet")
    fleet, lock = load_fleet(tmp_path / "fleet/fleet.yml"), lockfile.read(LAB / "gdsdeploy.lock")
    files = plan_fleet.write_run_files(tmp_path / "fleet")
    every = inventory(fleet, lock, files)
    groups = every["all"]["children"]
    answers = {one.name.partition(".")[0]: CHANGES for one in RESOURCES}
    groups["builders"]["hosts"]["build1"] |= host(tmp_path, "build1", answers)
    groups["hosts"]["hosts"].clear()
    machines = {"build1": Machine(fleet, lock, "build1", files)}
    signed, foreign = of_profile(fleet, signing=Signing()), of_profile(fleet, own_kernel=False)
    roots = {loads: Image(ImageRoot(tmp_path, has_loader=loads), (), "gpu1", fleet) for loads in (True, False)}
    kinds: Mapping[str, tuple[Fleet, Any, Image | None]] = {
        "receives": (fleet, "receive", None),
        "builds": (fleet, "build", None),
        "packaged": (fleet, "packaged", None),
        "foreign-kernel": (foreign, "receive", None),
        "signed": (signed, "receive", None),
        "signs": (signed, "build", None),
        "image": (fleet, "receive", roots[True]),
        "network-image": (fleet, "receive", roots[False]),
    }
    for name, (wish, mode, image) in kinds.items():
        supply = replace(by_intent(fleet, lock, "gpu1"), mode=mode)
        machines[name] = Machine(wish, lock, "gpu1", replace(files, supplies={"gpu1": supply}, image=image))
        # The gate's verdict is a command of Ansible's own; and there is no archive, nor a certificate.
        more = {"gds_gate_enabled": False, "gds_modules_archive": "", "gds_secureboot_shared": ""}
        groups["hosts"]["hosts"][name] = variables(machines[name]) | more | host(tmp_path, name, answers)

    # A check, because every host answers that it needs a reboot.
    outcome, log = play(tmp_path, every, resources.playbook("provision"), "--check")

    names = task_names()
    for name, machine in machines.items():
        assert outcome.hosts[name].failure is None
        assert [names[task][0] for task in outcome.hosts[name].changed] == list(desired_states(machine)), name
    # Ansible starts a process for each: of a host that receives, for the gate's verdict.
    skipped = dict(re.findall(r"^([\w-]+) +: ok=.* skipped=(\d+)", log, re.MULTILINE))
    assert skipped["receives"] == skipped["signed"] == "1", log


@pytest.mark.parametrize("strategy", ["linear", "free"])
def test_repositories_without_pins_are_removed_and_other_hosts_go_on(tmp_path: Path, strategy: str) -> None:
    kinds: Mapping[str, Answers] = {
        "honest": {},
        "no-repositories": {"repositories": FAILS},
        "no-pins": {"repositories": CHANGES, "pins": FAILS},
    }
    needs = {"gds_repo_manager": "apt", "gds_repo_indices": [], "gds_repo_pins": []}
    roles = [f"gdsdeploy.gds.{role}" for role in ("gds_repo", "gds_peermem")]
    book = tmp_path / "play.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "strategy": strategy, "roles": roles}]))
    hosts = {name: needs | host(tmp_path, name, {"peermem": CHANGES, **answers}) for name, answers in kinds.items()}
    outcome, _ = play(tmp_path, {"all": {"hosts": hosts}}, book)
    failed = {name for name, result in outcome.hosts.items() if result.failure is not None}
    assert failed == {"no-repositories", "no-pins"}
    removed = "gds_repo: Remove new repositories without pins"
    assert outcome.hosts["honest"].changed == ["gds_peermem: Load nvidia-peermem after the RDMA core, or block it"]
    assert outcome.hosts["no-repositories"].changed == []
    assert outcome.hosts["no-pins"].changed == ["gds_repo: Configure the repositories", removed]
