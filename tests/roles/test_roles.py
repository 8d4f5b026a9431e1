"""Every role: specified, documented, short, playable alone, and fed what its specification takes."""

from __future__ import annotations

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
from gdsdeploy.converge.desired import TABLE, Use
from gdsdeploy.host.apply import registry
from gdsdeploy.host.model import schema
from tests.roles.readme import IMPORT, ROLES, ROOT, example, readme, role_of, spec

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


# -- The plan's table of resources is what the tasks of the roles say: the same options, variables and order.


PREFIX = "gdsdeploy.gds.gds_"
#: Resources that no plan has: what a removal and a rollback do.
OTHERS = {"remove", "restore"}
#: Options that stand for fields of another name, as plugins/action has them.
FILES = {"keys": {"keys"}, "shared": {"certificate_content"}, "archive": {"hand_over", "archive_sha256"}}


def tasks_desired(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in listed:
        for key in ("block", "rescue", "always"):
            yield from tasks_desired(task.get(key, []))
        yield task


def uses() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(role, resource, instance, options) of every task that applies a resource."""
    for file in sorted((ROOT / "roles").glob("*/tasks/*.yml")):
        for task in tasks_desired(yaml.safe_load(file.read_text()) or []):
            for key, options in task.items():
                if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in OTHERS:
                    options = dict(options or {})
                    yield file.parts[-3], key.removeprefix(PREFIX), options.pop("instance", ""), options


def test_every_task_has_its_row_and_every_row_its_task() -> None:
    sources: dict[tuple[str, str, str], dict[str, str]] = {}
    for role, resource, instance, options in uses():
        if role == "gds_packages" or options.get("state") == "absent" or "after_boot" in options:
            continue  # used alone; what takes back what has just failed; what looks at a reboot that a plan only names
        sources[role, resource, instance] = {
            option: re.sub(r"^\{\{ (\w+) \}\}$", r"\1", str(value)) for option, value in options.items()
        }
    assert sources == {(use.role, use.resource, use.instance): dict(use.options) for use in TABLE}


@pytest.mark.parametrize("use", TABLE, ids=lambda use: use.name)
def test_a_row_gives_every_field_of_its_resource(use: Use) -> None:
    desired = schema.schema(registry.resource(use.resource).desired_type)
    fields = {field for option in use.options for field in FILES.get(option, {option})}
    assert fields <= desired["properties"].keys()
    assert set(desired["required"]) <= fields


def test_the_roles_stand_in_the_order_of_the_table() -> None:
    """A machine meets a role's tasks in the playbook's order; a role may stand there twice."""
    played = [
        role_of(task)
        for play in yaml.safe_load((ROOT / "playbooks" / "provision.yml").read_text())
        for task in play["tasks"]
    ]
    remaining = iter(played)
    previous = ""
    for use in TABLE:
        if use.role != previous:
            assert use.role in remaining, f"{use.name} is not where {use.role} is played: {played}"
        previous = use.role
