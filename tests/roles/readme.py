"""Each role's README.md, made from its argument specification and its example: ``python -m tests.roles.readme``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted((ROOT / "roles").iterdir())
#: Roles whose units run the program that gds_host installs.
NEED_HOST = {"gds_gate", "gds_watch"}
_MARKUP = re.compile(r"\b[CVOM]\(([^)]*)\)")


def spec(role: Path) -> dict[str, Any]:
    """The entry point ``main`` of a role's argument specification."""
    value: dict[str, Any] = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    return value


def example(role: Path) -> dict[str, Any]:
    """Variables with which the role can be played alone."""
    path = role / "meta/example.yml"
    return yaml.safe_load(path.read_text()) if path.is_file() else {}


def readme(role: Path) -> str:
    """The text of README.md."""
    main = spec(role)
    lines = [
        f"# {role.name}",
        "",
        f"{main['short_description']}.",
        "",
        _text(main["description"]),
        "",
        "## Example",
        "",
    ]
    lines += ["```yaml", *_play(role), "```", "", "## Variables", ""]
    if main["options"]:
        lines += ["| Variable | Type | Default | Description |", "|---|---|---|---|"]
        lines += [row for name, option in main["options"].items() for row in _rows(name, option)]
    else:
        lines.append("None.")
    return "\n".join(lines) + "\n"


def _play(role: Path) -> Iterator[str]:
    yield from ("- name: An example", "  hosts: gpus", "  become: true", "  gather_facts: false", "  roles:")
    if role.name in NEED_HOST:
        yield "    - role: gdsdeploy.gds.gds_host"
    yield f"    - role: gdsdeploy.gds.{role.name}"
    path = role / "meta/example.yml"
    if path.is_file():
        yield "      vars:"
        yield from (f"        {line}" for line in path.read_text().splitlines() if line != "---")


def _rows(name: str, option: Mapping[str, Any]) -> Iterator[str]:
    kind = f"list of {option['elements']}" if option["type"] == "list" else option["type"]
    default = "**required**" if option.get("required") else f"`{json.dumps(option['default'])}`"
    text = _text(option["description"])
    if "choices" in option:
        text += f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}."
    yield f"| `{name}` | {kind} | {default} | {text} |"
    for inner, part in option.get("options", {}).items():
        yield from _rows(f"{name}[].{inner}", part)


def _text(value: str) -> str:
    return _MARKUP.sub(r"`\1`", value.strip())


if __name__ == "__main__":
    for each in ROLES:
        (each / "README.md").write_text(readme(each))


# -- Reading the tasks of a playbook.


IMPORT = "ansible.builtin.import_role"


def role_of(task: Mapping[str, Any]) -> str:
    """The role that a task imports, without its collection; empty: it imports none."""
    return str(task.get(IMPORT, {}).get("name", "")).rpartition(".")[2]
