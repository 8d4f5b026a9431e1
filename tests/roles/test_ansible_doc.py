"""What ansible-doc shows of the installed collection: every module, with its fragments, and every role."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.playbook.task import Task

from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.model import Resource
from gdsdeploy.host.model import schema
from tests.roles.installing import BIN, ROOT, environment

MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
#: The command ``remove`` isn't a resource.
RESOURCES = [name for name in MODULES if name != "gds_remove"]
#: Names of JSON schema → those of Ansible.
TYPES = {"string": {"str", "path"}, "integer": {"int"}, "boolean": {"bool"}, "array": {"list"}, "object": {"dict"}}
#: Options for files of the controller, and what of the desired state is made from them.
FILES = {
    "modules": ({"archive"}, {"hand_over", "archive_sha256"}),
    "restore": ({"archive"}, {"archive_sha256"}),
    "signing": ({"shared"}, {"certificate_content"}),
}
#: What an argument specification takes from an option's documentation.
SPECIFIED = ("choices", "default", "elements", "required", "type")


def ansible_doc(installed: Path, *argv: str) -> str:
    """What it prints, without a warning."""
    env = environment(installed / "collections", installed)
    done = subprocess.run([BIN / "ansible-doc", *argv], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def documents(installed: Path, kind: str, names: list[str]) -> dict[str, Any]:
    """Name → documentation, read from ``ansible-doc --json``."""
    full_names = [f"gdsdeploy.gds.{name}" for name in names]
    answer = json.loads(ansible_doc(installed, "--type", kind, "--json", *full_names))
    return {name.removeprefix("gdsdeploy.gds."): document for name, document in answer.items()}


@pytest.fixture(scope="module")
def modules(installed: Path) -> dict[str, Any]:
    return documents(installed, "module", MODULES)


def resource(module: str) -> Resource[Any]:
    return registry.resource(module.removeprefix("gds_"))


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_a_module_fit_its_options(modules: Mapping[str, Any], module: str) -> None:
    tasks = yaml.safe_load(modules[module]["examples"])
    assert any(f"gdsdeploy.gds.{module}" in task for task in tasks)
    for task in tasks:
        names = [key for key in task if key not in Task.fattributes]
        assert [name.rpartition(".")[0] for name in names] == ["gdsdeploy.gds"], f"not one module of ours: {task}"
        options = modules[names[0].rpartition(".")[2]]["doc"].get("options", {})
        result = ArgumentSpecValidator(argument_spec(options)).validate(task[names[0]] or {})
        assert result.error_messages == []
        assert task["name"][0].isupper()


def argument_spec(options: Mapping[str, Any]) -> dict[str, Any]:
    """What Ansible checks a task's options by."""
    specification: dict[str, Any] = {}
    for name, option in options.items():
        specification[name] = {key: option[key] for key in SPECIFIED if key in option}
        if "suboptions" in option:
            specification[name]["options"] = argument_spec(option["suboptions"])
    return specification


@pytest.mark.parametrize("module", RESOURCES)
def test_the_options_of_a_module_are_the_desired_state_of_its_resource(modules: Mapping[str, Any], module: str) -> None:
    options, desired = modules[module]["doc"].get("options", {}), schema.schema(resource(module).desired_type)
    own, derived = FILES.get(module.removeprefix("gds_"), (set(), set()))
    assert options.keys() - {"state", "instance"} - own == desired["properties"].keys() - derived
    for option, value in desired["properties"].items():
        if option not in derived:
            compare(f"{module}.{option}", options[option], value, required=option in desired["required"])


def compare(place: str, option: Mapping[str, Any], value: Mapping[str, Any], *, required: bool) -> None:
    assert option["type"] in TYPES[value["type"]], place
    assert not required or option.get("required") or "default" in option, f"{place} is required"
    if value["type"] == "array" and value["items"]["type"] == "object":
        inner = value["items"]
        names = {"src" if (place, key) == ("gds_repositories.keys", "content") else key for key in inner["properties"]}
        assert option["suboptions"].keys() == names, place
    elif value["type"] == "array":
        assert option["elements"] in TYPES[value["items"]["type"]], place


def test_every_action_belongs_to_a_module() -> None:
    """There is no documentation of an action alone: ansible-doc shows that of its module."""
    runtime = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())
    routes = {name: route["action_plugin"] for name, route in runtime["plugin_routing"]["modules"].items()}
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py")}
    assert {route.rpartition(".")[2] for route in routes.values()} | (actions & set(MODULES)) == actions
    assert sorted([*routes, *(actions & set(MODULES))]) == MODULES
