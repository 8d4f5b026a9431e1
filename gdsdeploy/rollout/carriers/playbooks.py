"""The playbooks of a rendered folder, made from gdsdeploy's own, so that they always list the same roles."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from gdsdeploy.rollout.carriers.yamltext import dump

Play = dict[str, Any]

_HEAD = """\
---
# Rendered by `gdsdeploy rollout render` from its own playbook; every role has its name as a tag.
"""
#: Roles after a reboot wait for it.
_STAYS = "__gds_pull_reboot | default([]) | length == 0"


def with_tags(text: str) -> str:
    """A playbook with every role's name, without its collection, as its tag."""
    return _HEAD + "\n".join(_dump({**play, "roles": _tagged_roles(play)}) for play in yaml.safe_load(text))


def local(provision: str) -> str:
    """The playbook for ansible-pull: the roles of ``provision`` except the reboot, which would end the pull.

    It first checks the checkout.  Where a reboot is needed, it records that, and the rest waits.
    """
    parts = [_own_play("check")]
    for play in yaml.safe_load(provision):
        roles = _tagged_roles(play)
        names = [_short(role["role"]) for role in roles]
        settings = {key: value for key, value in play.items() if key not in ("strategy", "roles")}
        settings["connection"] = "local"
        if any(_short(role["role"]) == "gds_modules" and "receive" in str(role.get("when", "")) for role in roles):
            parts.append(_own_play("fetch"))
        if "gds_reboot" not in names:
            parts.append(_dump({**settings, "roles": roles}))
            continue
        at = names.index("gds_reboot")
        later = [{**role, "when": [*_list(role.get("when")), _STAYS]} for role in roles[at + 1 :]]
        parts.append(_dump({**settings, "roles": roles[:at]}))
        parts.append(_own_play("reboot"))
        parts.append(_dump({**settings, "name": "Continue where no reboot is needed", "roles": later}))
    return _HEAD + "\n".join(parts)


def _own_play(name: str) -> str:
    return (resources.files(__package__) / "plays" / f"{name}.yml").read_text(encoding="utf-8")


def _dump(play: Play) -> str:
    return dump([play], sort_keys=False, width=120)


def _tagged_roles(play: Mapping[str, Any]) -> list[Play]:
    roles = [role if isinstance(role, dict) else {"role": role} for role in play.get("roles", [])]
    return [{**role, "tags": [_short(role["role"])]} for role in roles]


def _short(role: str) -> str:
    """The name of a role without its collection."""
    return role.rpartition(".")[2]


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
