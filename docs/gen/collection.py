"""The collection as it is released: ``python -m docs.gen.collection FOLDER`` copies the tree's parts there.

It adds what isn't written by hand: for each role the argument specification, the README and Galaxy's description.  They
are made of the desired states of the resources that the role applies, of ``meta/role.yml`` and of its defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from gdsdeploy.host.apply import registry
from gdsdeploy.host.model import schema
from plugins.plugin_utils.files import FILES, Files
from plugins.plugin_utils.options import ALL, RENAMED, arguments

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.parents[1] for path in (ROOT / "roles").glob("*/tasks/main.yml"))
MODULE = "gdsdeploy.gds.gds_apply"
#: Roles whose units run the program that gds_host installs.
NEED_HOST = {"gds_gate", "gds_watch"}
_PARTS = (
    *("LICENSE", "NOTICE", "README.md", "galaxy.yml"),
    *("changelogs", "gdsdeploy", "meta", "playbooks", "plugins", "roles"),
)
_HEAD = """\
# Roles of the collection

[collection.md](collection.md) says how to use them.
"""
_MARKUP = re.compile(r"\b[CVOM]\(([^)]*)\)|``([^`]*)``")
_FIELD = re.compile(r"(\w+): ")
_EMPTY: dict[str, Any] = {"list": [], "dict": {}, "bool": False, "int": 0}
_INFO = {
    "author": "gdsdeploy",
    "license": "Apache-2.0",
    "min_ansible_version": "2.19",
    "platforms": [{"name": "Debian", "versions": ["bookworm", "trixie"]}],
}


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Field of a dataclass → the text of its comment ``#:``."""
    found: dict[str, str] = {}
    for one in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        comment: list[str] = []
        for line in map(str.strip, inspect.getsource(one).splitlines()):
            if line.startswith("#:"):
                comment.append(line[2:].strip())
                continue
            field = _FIELD.match(line)
            if field and comment:
                found[field[1]] = " ".join(" ".join(comment).split())
            comment = []
    return found


def options(kind: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass as options of a role, with descriptions and defaults."""
    hints, texts = get_type_hints(kind), descriptions(kind)
    listed = arguments(schema.schema(kind))
    for field in dataclasses.fields(kind):
        option = listed[field.name]
        option["description"] = texts.get(field.name, "")
        if "required" not in option:
            made = field.default_factory
            option["default"] = field.default if made is dataclasses.MISSING else made()
        if "options" in option:
            option["options"] = options(next(part for part in (*get_args(hints[field.name]), hints[field.name])))
    return listed


def applied(role: Path) -> Iterator[tuple[str, list[str]]]:
    """Each resource that tasks of a role bring to a desired state, and the options that the task sets itself."""
    for file in sorted(role.glob("tasks/*.yml")):
        for task in flat(yaml.safe_load(file.read_text())):
            if MODULE in task:
                yield task[MODULE]["resource"].partition(".")[0], list(task[MODULE].get("desired", ()))


def flat(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every task, those of blocks included."""
    for task in listed:
        if "block" not in task:
            yield task
        for part in ("block", "rescue", "always"):
            yield from flat(task.get(part, []))


def spec(role: Path) -> dict[str, Any]:
    """The entry point ``main`` of a role's argument specification."""
    about = _yaml(role / "meta/role.yml")
    listed: dict[str, Any] = {name: dict(option) for name, option in about.get("options", {}).items()}
    given = {option for _, given in applied(role) for option in given}
    for resource, _ in applied(role):
        files = FILES.get(resource, Files())
        fields = options(registry.resource(resource).desired_type) if resource != "all" else ALL
        own = {key: value for key, value in fields.items() if key not in files.contents and key not in given}
        for option, value in {**own, **files.options}.items():
            before = listed.get(f"{role.name}_{option}", {})
            # Of several resources, the one that needs it decides.
            needed = value if "required" in value or not before.get("type") else before
            listed[f"{role.name}_{option}"] = {**needed, **about.get("options", {}).get(f"{role.name}_{option}", {})}
    for name, default in _yaml(role / "defaults/main.yml").items():
        listed[name] = {**listed[name], "default": _literal(default)}
    for name, option in listed.items():
        if about.get("options", {}).get(name, {}).get("required"):
            option.pop("default", None)
        if "default" in option or name in RENAMED:
            option.pop("required", None)
        if not option.get("required"):
            option.setdefault("default", _EMPTY.get(option["type"], ""))
    return {"short_description": about["summary"], "description": about["description"], "options": _ansible(listed)}


def _literal(default: Any) -> Any:
    """The default of a variable, without the expression that also reads the variable's old name."""
    old = re.fullmatch(r"\{\{ \w+ \| default\('(\w*)'\) \}\}", str(default))
    return old[1] if old else default


def _ansible(value: Any) -> Any:
    """With markup of ansible-doc."""
    if isinstance(value, Mapping):
        return {key: _ansible(inner) for key, inner in value.items()}
    return re.sub("``([^`]*)``", r"C(\1)", value) if isinstance(value, str) else value


def _yaml(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}


def example(role: Path) -> dict[str, Any]:
    """Variables with which the role can be played alone."""
    return dict(_yaml(role / "meta/role.yml").get("example", {}))


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


def page() -> str:
    """Markdown: all READMEs."""
    readmes = (re.sub("(?m)^(#+ )", r"#\1", readme(role)) for role in ROLES)
    return "\n".join((_HEAD, *readmes))


def _play(role: Path) -> Iterator[str]:
    yield from ("- name: An example", "  hosts: gpus", "  become: true", "  gather_facts: false", "  roles:")
    if role.name in NEED_HOST:
        yield "    - role: gdsdeploy.gds.gds_host"
    yield f"    - role: gdsdeploy.gds.{role.name}"
    if example(role):
        yield "      vars:"
        text = (role / "meta/role.yml").read_text().partition("\nexample:\n")[2]
        yield from (f"      {line}" for line in text.splitlines())


def _rows(name: str, option: Mapping[str, Any]) -> Iterator[str]:
    kind = f"list of {option['elements']}" if option["type"] == "list" else option["type"]
    default = "**required**" if option.get("required") else f"`{json.dumps(option.get('default', ''))}`"
    text = _text(option["description"])
    if "choices" in option:
        text += f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}."
    yield f"| `{name}` | {kind} | {default} | {text} |"
    for inner, part in option.get("options", {}).items():
        yield from _rows(f"{name}[].{inner}", part)


def _text(value: str) -> str:
    return _MARKUP.sub(lambda found: f"`{found[1] or found[2]}`", value.strip())


def build(folder: Path) -> None:
    """Write the collection to a folder that isn't there."""
    folder.mkdir(parents=True)
    for part in _PARTS:
        source, place = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", "_share"))
        elif source.is_file():
            shutil.copy(source, place)
    for role in ROLES:
        place, main = folder / "roles" / role.name, spec(role)
        info = {"galaxy_info": {**_INFO, "description": main["short_description"]}, "dependencies": []}
        (place / "README.md").write_text(readme(role))
        for name, value in (("argument_specs", {"argument_specs": {"main": main}}), ("main", info)):
            (place / f"meta/{name}.yml").write_text("---\n" + yaml.safe_dump(value, sort_keys=False, width=120))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
