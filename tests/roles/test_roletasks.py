"""What the plan reads out of the roles is what Ansible makes of them; and no task that changes a host is forgotten."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import lockfile, planning, roletasks
from gdsdeploy.errors import GdsError
from gdsdeploy.inventory import BUILDERS, HOSTS, inventory
from gdsdeploy.load import load_fleet
from gdsdeploy.plan import COVERED
from gdsdeploy.roletasks import FILES, Task

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "golden" / "lab"
#: Modules that look, judge, or steer, and so change nothing.
HARMLESS = {
    "ansible.builtin.assert", "ansible.builtin.stat", "ansible.builtin.find", "ansible.builtin.slurp",
    "ansible.builtin.set_fact", "ansible.builtin.fail", "ansible.builtin.fetch", "ansible.builtin.include_vars",
    "ansible.builtin.meta", "ansible.builtin.debug",
}  # fmt: skip


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    """Machine → group and variables, of the lab's fleet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        fleet, lock = load_fleet(LAB / "fleet.yml"), lockfile.read(LAB / "gdsdeploy.lock")
        yield planning.variables(inventory(fleet, lock, planning.sources(fleet, lock, LAB)))


def every_task() -> list[Task]:
    """All tasks of provision, whatever their conditions, of hosts and builders of each package manager."""
    found: list[Task] = []
    for manager in managers():
        given = {
            "gds_repo_manager": manager,
            "gds_packages_manager": manager,
            "gds_repo_keys": [{"src": "a", "dest": "b"}],
        }
        for group in (HOSTS, BUILDERS):
            found += roletasks.tasks("provision", group, given)
    return found


def managers() -> list[str]:
    names = {path.stem for path in (ROOT / "roles" / "gds_packages" / "tasks").glob("*.yml")} - {"main"}
    assert "apt" in names
    return sorted(names)


def test_every_task_that_changes_a_host_has_its_place_in_the_plan() -> None:
    tasks = every_task()
    assert len({(task.role, task.name) for task in tasks}) > 40
    forgotten = {
        f"{task.role}: {task.name}"
        for task in tasks
        if task.module not in HARMLESS
        and task.source.get("changed_when") is not False
        and task.module not in FILES
        and roletasks.path_of(task) is None
        and (task.role, task.step) not in COVERED
    }
    assert forgotten == set(), "plan.py has to plan what these tasks change; then name them in COVERED"


def test_the_plan_covers_no_task_that_is_not_there() -> None:
    there = {(task.role, task.step) for task in every_task()}
    assert COVERED.keys() <= there


@pytest.mark.parametrize("name", ["gpu1", "build1"])
def test_every_file_task_can_be_judged_from_what_commands_that_only_look_say(
    name: str, variables: dict[str, tuple[str, dict[str, Any]]]
) -> None:
    group, values = variables[name]
    every = roletasks.tasks("provision", group, values)
    files = [task for task in every if task.module in FILES and (task.role, task.step) not in COVERED]
    assert len(files) > 3
    asked = roletasks.questions(files, every)
    told = {key: {"stdout": "", "stdout_lines": [], "rc": 0} for key in asked}
    told["__gds_modules_delivered"] = {"stat": {"exists": True}}
    if values["gds_modules_from"] == "receive":
        archive = Path(values["gds_modules_archive"])
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(b"modules")
    for task in files:
        roletasks.managed(task, told)


def test_files_are_what_ansible_writes(variables: dict[str, tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    """Every template and text of a host, written by the real modules and read by the plan: the same bytes."""
    group, values = variables["gpu1"]
    every = roletasks.tasks("provision", group, {**values, "gds_driver_options": {"NVreg_A": 1, "NVreg_B": "x=y"}})
    told = {"__gds_repo_entries": {"stdout": "", "stdout_lines": ["/etc/apt/sources.list:# none"], "rc": 0}}
    expected: dict[str, str] = {}
    written: list[dict[str, Any]] = []
    for task in every:
        if task.module not in FILES or (task.role, task.step) in COVERED or task.role == "gds_modules":
            continue
        item = roletasks.managed(task, told)
        if item is None or item.kind != "file":
            continue
        target = tmp_path / f"{len(written)}"
        expected[str(target)] = item.sha256
        arguments = {k: v for k, v in task.arguments.items() if k not in ("owner", "group", "backup")}
        context = {k: v for k, v in task.variables.items() if k.startswith(("gds_", "__gds_", "role_path"))}
        written.append({task.module: {**arguments, "dest": str(target)}, "vars": {**context, **told}})
    assert len(written) > 5
    play = tmp_path / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": written}]))
    plugins = ":".join(str(path) for path in (ROOT / "roles").glob("*/filter_plugins"))
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "ANSIBLE_FILTER_PLUGINS": plugins}
    argv = [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", "-c", "local",
            "-e", json.dumps({"ansible_python_interpreter": sys.executable}), play]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in expected} == expected


def test_a_family_without_tasks_is_an_error_of_ours() -> None:
    with pytest.raises(GdsError, match=r"gds_repo has no pacman\.yml: hosts of this family cannot be provisioned yet"):
        roletasks.tasks("provision", HOSTS, {"gds_repo_manager": "pacman"})
