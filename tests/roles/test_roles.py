"""Every role: specified, documented in its defaults, with the same headings, and fed what its specification takes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted((ROOT / "roles").iterdir())
HEADINGS = ["Preflight", "Install", "Configure", "Activate", "Verify"]


def role_name(path: Path) -> str:
    return path.name


def spec(role: Path) -> dict[str, dict[str, object]]:
    options: dict[str, dict[str, object]] = yaml.safe_load((role / "meta/argument_specs.yml").read_text())[
        "argument_specs"
    ]["main"]["options"]
    return options


def flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every task, those of blocks included."""
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from flat(task.get(part, []))


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_specification_equals_defaults(role: Path) -> None:
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text()) or {}
    assert {name: option["default"] for name, option in spec(role).items()} == defaults


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_variables_carry_the_role_as_prefix(role: Path) -> None:
    assert all(name.startswith(role.name + "_") for name in spec(role))


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_every_task_stands_under_one_of_the_five_headings(role: Path) -> None:
    for path in sorted(role.glob("tasks/*.yml")):
        for task in flat(yaml.safe_load(path.read_text())):
            assert task["name"].split(" | ")[0] in HEADINGS, f"{path}: {task['name']}"


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_every_variable_of_a_role_is_used_by_it(role: Path) -> None:
    text = "".join(p.read_text() for p in role.glob("[thv]*/*.yml"))
    for template in re.findall(r"templates/([\w.-]+\.j2)", text):
        text += (ROOT / "templates" / template).read_text()
    unused = [name for name in spec(role) if name not in text]
    assert not unused


def test_playbooks_have_no_tasks_of_their_own() -> None:
    for path in (ROOT / "playbooks").glob("*.yml"):
        for play in yaml.safe_load(path.read_text()):
            assert set(play) <= {"name", "hosts", "gather_facts", "strategy", "roles", "become", "serial"}, path


@pytest.mark.parametrize("playbook", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda p: p.stem)
def test_playbook_syntax(playbook: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all: {children: {hosts: {hosts: {gpu1: {}}}, builders: {hosts: {build1: {}}}}}\n")
    config = {"ANSIBLE_CONFIG": str(ROOT / "playbooks" / "ansible.cfg")}
    argv = [Path(sys.executable).parent / "ansible-playbook", "--syntax-check", "-i", inventory, playbook]
    env = {**config, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_nothing_dangerous(role: Path) -> None:
    text = "".join(p.read_text() for p in role.rglob("*.yml"))
    # These two force nothing upon a host: files that its administrator has changed stay as they are.
    text = text.replace("--force-confdef", "").replace("--force-confold", "")
    for word in (
        "ignore_errors",
        "ansible.builtin.shell",
        "trusted",
        "--force",
        "allow_unauthenticated",
        "force: true",
    ):
        assert word not in text
