"""Every role: specified, documented, short, playable alone, and fed what its specification takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from docs.gen.collection import ROLES, ROOT, example, flat, spec
from gdsdeploy.converge.desired import RESOURCES
from gdsdeploy.converge.machine import Machine
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from plugins.plugin_utils.files import FILES, Files
from plugins.plugin_utils.options import RENAMED
from tests.pins.rendering import LAB, RUN_FILES
from tests.roles.tasks import APPLY, IMPORT, role_of

#: Of a role, a module's own change logic not counted.
MAX_TASKS = 10


def role_name(path: Path) -> str:
    return path.name


def tasks(role: Path) -> Iterator[dict[str, Any]]:
    """Every task, those of blocks included."""
    for path in sorted(role.glob("tasks/*.yml")):
        yield from flat(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_variables_carry_the_role_as_prefix_and_are_described(role: Path) -> None:
    options = spec(role)["options"]
    defaults = role / "defaults/main.yml"
    for name, option in options.items():
        assert name.startswith(role.name + "_")
        assert option["type"], name
        assert option["description"].endswith("."), name
    assert not defaults.is_file() or yaml.safe_load(defaults.read_text()).keys() <= options.keys()


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_a_variable_of_the_role_alone_is_used(role: Path) -> None:
    """The others are the resources' options."""
    text = "".join(path.read_text() for path in role.glob("tasks/*.yml"))
    options = yaml.safe_load((role / "meta/role.yml").read_text()).get("options", {})
    for name, option in options.items():
        assert "type" not in option or name in text or role.name == "gds_remove", f"{name} is not used"


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_the_example_fits_the_specification(role: Path) -> None:
    result = ArgumentSpecValidator(spec(role)["options"]).validate(example(role))
    assert not result.error_messages


@pytest.mark.parametrize("role", ROLES, ids=role_name)
def test_a_role_is_a_short_list_of_modules(role: Path) -> None:
    listed = list(tasks(role))
    assert 0 < len(listed) <= MAX_TASKS
    parts = {path.name for path in role.iterdir()}
    assert parts <= {"defaults", "meta", "tasks"}, "what changes a host is written in the host program"
    for task in listed:
        (module,) = [key for key in task if "." in key]
        assert module.startswith((APPLY, "ansible.builtin.")), task
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


# -- The plan's resources are what the tasks of the roles apply, in the same order, and their options are variables.


def test_every_task_has_its_resource_and_every_resource_its_task() -> None:
    applied = {
        (role.name, task[APPLY]["resource"])
        for role in ROLES
        for task in tasks(role)
        if APPLY in task and role.name not in ("gds_packages", "gds_remove", "gds_restore")
    }
    assert applied == {(resource.role, resource.name) for resource in RESOURCES}


def test_files_of_the_controller_stand_for_the_same_fields_on_both_sides() -> None:
    machine = Machine(load_fleet(LAB / "fleet.yml"), lockfile.read(LAB / "gdsdeploy.lock"), "gpu1", RUN_FILES)
    for resource in RESOURCES:
        files = FILES.get(resource.name, Files())
        assert set(files.options) == set(resource.files(machine)), resource.name
        assert set(files.contents) == set(resource.contents) - {"after_boot"}, resource.name


def test_an_old_name_is_the_name_of_no_option() -> None:
    names = {name for role in ROLES for name in spec(role)["options"]}
    assert RENAMED.keys() <= names
    assert not names & set(RENAMED.values())


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
