"""The plan's table of resources is what the tasks of the roles say: the same options, variables and order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.converge.desired import TABLE, Use
from gdsdeploy.host.apply import registry
from gdsdeploy.host.model import schema
from tests.roles.playbooks import role_of

ROOT = Path(__file__).parents[2]
PREFIX = "gdsdeploy.gds.gds_"
#: Resources that no plan has: what a removal and a rollback do.
OTHERS = {"remove", "restore"}
#: Options that stand for fields of another name, as plugins/action has them.
FILES = {"keys": {"keys"}, "shared": {"certificate_content"}, "archive": {"hand_over", "archive_sha256"}}


def tasks(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in listed:
        for key in ("block", "rescue", "always"):
            yield from tasks(task.get(key, []))
        yield task


def uses() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(role, resource, instance, options) of every task that applies a resource."""
    for file in sorted((ROOT / "roles").glob("*/tasks/*.yml")):
        for task in tasks(yaml.safe_load(file.read_text()) or []):
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
