"""Every role: specified, documented, short, playable alone, and fed what its specification takes."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gdsdeploy import resources
from gdsdeploy.converge import desired
from gdsdeploy.converge.desired import RESOURCES
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import registry
from gdsdeploy.lock import lockfile
from tests.roles.readme import IMPORT, ROLES, ROOT, example, readme, role_of, spec

LAB = ROOT / "tests" / "golden" / "lab"
RUN_FILES = RunFiles(Path("/fleet"), Path("/program"), Path("/modules"), {"gpu1": "{}"}, {"gpu1": "{}"})
#: Of a role, a module's own change logic not counted.
MAX_TASKS = 10


def role_name(path: Path) -> str:
    return path.name


def tasks(role: Path) -> Iterator[dict[str, Any]]:
    """Every task, those of blocks included."""
    for path in sorted(role.glob("tasks/*.yml")):
        yield from _flat(yaml.safe_load(path.read_text()))


def _flat(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in listed:
        if "block" not in task:
            yield task
        for part in ("block", "rescue", "always"):
            yield from _flat(task.get(part, []))


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_defaults_are_those_of_the_specification(role: Path) -> None:
    path = role / "defaults/main.yml"
    defaults = yaml.safe_load(path.read_text()) if path.is_file() else {}
    options = spec(role)["options"]
    assert {name: option["default"] for name, option in options.items() if not option.get("required")} == defaults


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_variables_carry_the_role_as_prefix_and_are_used(role: Path) -> None:
    text = "".join(path.read_text() for path in role.glob("tasks/*.yml"))
    for name in spec(role)["options"]:
        assert name.startswith(role.name + "_")
        assert name in text, f"{name} is not used"


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_the_readme_is_made_from_the_specification(role: Path) -> None:
    assert (role / "README.md").read_text() == readme(role), "run: python -m tests.roles.readme"


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_the_example_fits_the_specification(role: Path) -> None:
    result = ArgumentSpecValidator(spec(role)["options"]).validate(example(role))
    assert not result.error_messages


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_a_role_is_a_short_list_of_modules(role: Path) -> None:
    listed = list(tasks(role))
    assert 0 < len(listed) <= MAX_TASKS
    parts = {path.name for path in role.iterdir()}
    assert parts <= {"README.md", "defaults", "meta", "tasks"}, "what changes a host is written in the host program"
    for task in listed:
        (module,) = [key for key in task if "." in key]
        assert module.startswith(("gdsdeploy.gds.gds_", "ansible.builtin.")), task
        for value in _texts(task):
            assert value.count("\n") == 0, f"{role.name}: {value}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for element in value.values():
            yield from _texts(element)
    elif isinstance(value, list):
        for element in value:
            yield from _texts(element)


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_nothing_dangerous(role: Path) -> None:
    text = "".join(path.read_text() for path in role.rglob("*.yml"))
    for word in (
        "ignore_errors",
        "ansible.builtin.shell",
        "trusted",
        "--force",
        "allow_unauthenticated",
        "force: true",
    ):
        assert word not in text


def test_playbooks_only_import_roles_and_check_no_arguments_again() -> None:
    """Except for what ends a play or a role, Ansible starts a process for each task, also for one that it skips."""
    for path in (ROOT / "playbooks").glob("*.yml"):
        for play in yaml.safe_load(path.read_text()):
            assert set(play) <= {"name", "hosts", "gather_facts", "strategy", "tasks", "become", "serial"}, path
            for task in play["tasks"]:
                assert set(task) <= {"name", "when", "vars", "tags", IMPORT, "ansible.builtin.meta"}, task
                if "ansible.builtin.meta" in task:
                    assert task["ansible.builtin.meta"] == "end_host"
                    continue
                role = task[IMPORT]
                name = role["name"].removeprefix("gdsdeploy.gds.")
                assert (ROOT / "roles" / name / "tasks" / f"{role.get('tasks_from', 'main')}.yml").is_file()
                assert role["rolespec_validate"] is False, task
                if path.stem in ("provision", "remove"):
                    assert role_of(task) in task["tags"], task


@pytest.mark.parametrize("role", [role for role in ROLES if (role / "tasks/install.yml").is_file()], ids=role_name)
def test_a_role_alone_has_every_step(role: Path) -> None:
    """main.yml imports a file for each choice of the role's step, and so does a file with part of another."""
    imported = {task["ansible.builtin.import_tasks"] for task in tasks(role) if "ansible.builtin.import_tasks" in task}
    assert imported == {path.name for path in role.glob("tasks/*.yml")} - {"main.yml"}
    assert {f"{step}.yml" for step in spec(role)["options"][f"{role.name}_step"]["choices"]} <= imported


@pytest.mark.parametrize("playbook", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_playbook_syntax(playbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all: {children: {hosts: {hosts: {gpu1: {}}}, builders: {hosts: {build1: {}}}}}\n")
    config = {"ANSIBLE_CONFIG": str(ROOT / "playbooks" / "ansible.cfg")}
    config["ANSIBLE_COLLECTIONS_PATH"] = str(resources.collections())
    argv = [Path(sys.executable).parent / "ansible-playbook", "--syntax-check", "-i", inventory, playbook]
    env = {**config, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


# -- The plan's resources are what the tasks of the roles apply, in the same order, with options of the same names.


PREFIX = "gdsdeploy.gds.gds_"
#: Resources that no plan has: what a removal and a rollback do.
OTHERS = {"remove", "restore"}


def uses() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(role, resource, options) of every task that applies a resource."""
    for role in ROLES:
        for task in tasks(role):
            for key, options in task.items():
                if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in OTHERS:
                    options = dict(options or {})
                    name = ".".join(filter(None, (key.removeprefix(PREFIX), options.pop("instance", ""))))
                    yield role.name, name, options


def test_every_task_has_its_resource_and_every_resource_its_task() -> None:
    applied = {(role, name) for role, name, _ in uses() if role != "gds_packages"}
    assert applied == {(resource.role, resource.name) for resource in RESOURCES}
    machine = Machine(load_fleet(LAB / "fleet.yml"), lockfile.read(LAB / "gdsdeploy.lock"), "gpu1", RUN_FILES)
    given = desired.variables(machine)
    for role, name, options in uses():
        if role != "gds_packages" and options.get("state") != "absent":
            fields = {
                field.name for field in dataclasses.fields(registry.resource(name.partition(".")[0]).desired_type)
            }
            assert options.keys() - {"shared", "archive", "after_boot"} <= fields, name
            variables = {re.sub(r"^\{\{ (\w+) \}\}$", r"\1", value) for value in options.values()}
            assert {value for value in variables if value.isidentifier()} <= given.keys(), name


def test_the_roles_stand_in_the_order_of_the_resources() -> None:
    """A machine meets a role's tasks in the playbook's order; a role may stand there twice."""
    played = [
        role_of(task)
        for play in yaml.safe_load((ROOT / "playbooks" / "provision.yml").read_text())
        for task in play["tasks"]
    ]
    remaining = iter(played)
    previous = ""
    for resource in RESOURCES:
        if resource.role != previous:
            assert resource.role in remaining, f"{resource.name} is not where {resource.role} is played: {played}"
        previous = resource.role
