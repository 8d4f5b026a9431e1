"""The playbooks of a rendered folder, made from gdsdeploy's own, so that they always list the same roles."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from gdsdeploy.rollout.carriers.yamltext import dump

Play = dict[str, Any]
Task = dict[str, Any]

IMPORT = "ansible.builtin.import_role"

_HEAD = """\
---
# Rendered by `gdsdeploy rollout render` from its own playbook; every role has its name as a tag.
"""
#: Roles after a reboot wait for it.
_STAYS = "__gds_pull_reboot | default([]) | length == 0"


def with_tags(text: str) -> str:
    """A playbook with every role's name, without its collection, as its tag."""
    return _HEAD + "\n".join(_dump({**play, "tasks": _tagged(play)}) for play in yaml.safe_load(text))


def local(provision: str) -> str:
    """The playbook for ansible-pull: the roles of ``provision`` except the reboot, which would end the pull.

    It first checks the checkout.  Where a reboot is needed, it records that, and the rest waits.
    """
    parts = [_own_play("check")]
    for play in yaml.safe_load(provision):
        tasks = _tagged(play)
        names = [role_of(task) for task in tasks]
        settings = {key: value for key, value in play.items() if key not in ("strategy", "tasks")}
        settings["connection"] = "local"
        if any(role_of(task) == "gds_modules" and "receive" in str(task.get("when", "")) for task in tasks):
            parts.append(_own_play("fetch"))
        if "gds_reboot" not in names:
            parts.append(_dump({**settings, "tasks": tasks}))
            continue
        at = names.index("gds_reboot")
        later = [{**task, "when": [*_list(task.get("when")), _STAYS]} for task in tasks[at + 1 :]]
        parts.append(_dump({**settings, "tasks": tasks[:at]}))
        parts.append(_own_play("reboot"))
        parts.append(_dump({**settings, "name": "Continue where no reboot is needed", "tasks": later}))
    return _HEAD + "\n".join(parts)


def _own_play(name: str) -> str:
    return (resources.files(__package__) / "plays" / f"{name}.yml").read_text(encoding="utf-8")


def _dump(play: Play) -> str:
    return dump([play], sort_keys=False, width=120)


def _tagged(play: Mapping[str, Any]) -> list[Task]:
    """The play's tasks; without a role, one has no tag, and a run of selected roles leaves it out."""
    return [{**task, "tags": [role_of(task)]} if role_of(task) else task for task in play["tasks"]]


def role_of(task: Mapping[str, Any]) -> str:
    """The role that a task imports, without its collection; empty: it imports none."""
    return str(task.get(IMPORT, {}).get("name", "")).rpartition(".")[2]


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
