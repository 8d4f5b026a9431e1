"""The files that the roles would write on a machine, read out of the roles' own tasks.

There is no second list of managed files: the playbook says which roles a machine gets, their tasks say which files
they write with which mode, and the same templates are rendered with the same variables.  What a task would have
learned from the machine first (its registered results) is given by the caller.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import ChainableUndefined, Environment, StrictUndefined, TemplateError

from gdsdeploy import resources
from gdsdeploy.errors import GdsError

#: Modules whose effect on a machine is one file or folder with a content, a mode and an owner.
FILES = {"ansible.builtin.template", "ansible.builtin.copy", "ansible.builtin.file"}

_PRIVATE = re.compile(r"\b__gds_\w+")


class NotTold(Exception):
    """A value that only the machine can tell; the message names it."""


class Untold(ChainableUndefined, StrictUndefined):
    """A variable that nobody has given: its parts are unknown too, ``default`` takes its place, all else fails."""


@dataclass(frozen=True)
class Task:
    """One task of a role in the place where a machine meets it."""

    role: str
    #: e.g. ``Configure | Write cufile.json``
    name: str
    module: str
    arguments: Mapping[str, Any]
    #: the task as its file has it
    source: Mapping[str, Any]
    #: conditions of the task and of all that it stands in
    conditions: tuple[Any, ...]
    variables: Mapping[str, Any]

    @property
    def step(self) -> str:
        """The task without its heading."""
        return self.name.split(" | ")[-1]

    @property
    def fixed(self) -> bool:
        """Whether it is a command that only looks."""
        return self.module == "ansible.builtin.command" and self.source.get("changed_when") is False

    def mentions(self) -> set[str]:
        """Names of registered results, private by their prefix, that the task depends on."""
        text = repr((self.source, self.conditions))
        source = str(self.arguments.get("src", ""))
        if self.module == "ansible.builtin.template":
            text += _text(resources.templates() / Path(source).name)
        names: set[str] = set()
        waiting = set(_PRIVATE.findall(text))
        while waiting:
            name = waiting.pop()
            names.add(name)
            waiting |= set(_PRIVATE.findall(repr(self.variables.get(name, "")))) - names
        return names - self.variables.keys()

    def applies(self, told: Mapping[str, Any]) -> bool:
        """Whether the task is not skipped; raises NotTold."""
        return all(bool(_value(_condition(item), {**self.variables, **told})) for item in self.conditions)

    def argument(self, name: str, told: Mapping[str, Any]) -> Any:
        """An argument with its variables filled in, None where it is not given; raises NotTold."""
        given = self.arguments.get(name)
        return None if given is None else _value(given, {**self.variables, **told})


@dataclass(frozen=True)
class Managed:
    """A file or folder as a role would leave it."""

    path: str
    #: ``path``: whatever a command makes there
    kind: Literal["file", "folder", "path", "absent"]
    #: octal text such as ``0644``; empty: as it is
    mode: str
    #: of a file
    sha256: str
    role: str
    step: str


def tasks(playbook: str, group: str, variables: Mapping[str, Any]) -> list[Task]:
    """Every task that ``playbook`` has for a machine of ``group`` with these variables, conditions not yet judged."""
    found: list[Task] = []
    for play in _yaml(resources.playbook(playbook)):
        if group not in str(play["hosts"]).split(":"):
            continue
        for item in play["roles"]:
            conditions = (item["when"],) if "when" in item else ()
            found += _role(item["role"], {**variables, **item.get("vars", {})}, conditions)
    return found


def role_defaults(name: str) -> dict[str, Any]:
    """The defaults of a role."""
    return _optional(resources.roles() / name / "defaults" / "main.yml")


def questions(wanted: Iterable[Task], every: Iterable[Task]) -> dict[str, list[str]]:
    """Commands that only look and whose results ``wanted`` depend on: name of the result → arguments."""
    names = {name for task in wanted for name in task.mentions()}
    asked: dict[str, list[str]] = {}
    for task in every:
        name = task.source.get("register", "")
        if name not in names or not task.fixed:
            continue
        try:
            if task.applies({}):
                asked[name] = [str(word) for word in task.argument("argv", {})]
        except NotTold:
            continue
    return asked


def path_of(task: Task) -> str | None:
    """The path that a task leaves behind; None for any other task, or one whose path the machine decides."""
    if task.module == "ansible.builtin.command" and "creates" in task.arguments:
        return str(task.arguments["creates"])
    if task.module not in FILES:
        return None
    try:
        path = task.argument("dest", {}) or task.argument("path", {})
    except NotTold:
        return None
    return str(path) if path else None


def managed(task: Task, told: Mapping[str, Any]) -> Managed | None:
    """What a file task leaves behind; None if it is skipped.  Raises NotTold."""
    path = path_of(task)
    if path is None or not task.applies(told):
        return None
    if task.module not in FILES:
        return Managed(path, "path", "", "", task.role, task.step)
    mode = str(task.argument("mode", told) or "")
    if task.module == "ansible.builtin.file":
        state = task.argument("state", told) or "file"
        kind: Literal["folder", "absent"] = "absent" if state == "absent" else "folder"
        return Managed(path, kind, mode, "", task.role, task.step)
    return Managed(path, "file", mode, hashlib.sha256(_content(task, told)).hexdigest(), task.role, task.step)


def _content(task: Task, told: Mapping[str, Any]) -> bytes:
    context = {**task.variables, **told}
    if task.module == "ansible.builtin.template":
        source = resources.templates() / Path(str(task.argument("src", told))).name
        return _render(source.read_text(encoding="utf-8"), context).encode()
    if "content" in task.arguments:
        return str(task.argument("content", told)).encode()
    try:
        return Path(str(task.argument("src", told))).read_bytes()
    except OSError as error:
        raise NotTold(f"{error.filename}: {error.strerror}") from None


def _role(name: str, variables: Mapping[str, Any], conditions: tuple[Any, ...]) -> Iterator[Task]:
    folder = resources.roles() / name
    defaults, private = (_optional(folder / part / "main.yml") for part in ("defaults", "vars"))
    context = {**defaults, **variables, **private, "role_path": str(folder), "ansible_check_mode": False}
    yield from _file(folder, "main.yml", context, conditions)


def _file(folder: Path, name: str, context: Mapping[str, Any], conditions: tuple[Any, ...]) -> Iterator[Task]:
    try:
        listed = _yaml(folder / "tasks" / name) or []
    except FileNotFoundError:
        raise GdsError(
            f"the role {folder.name} has no {name}: hosts of this family cannot be provisioned yet",
            hint="Locking works for them; give --limit to leave their hosts out",
        ) from None
    for source in listed:
        yield from _task(folder, source, context, conditions)


def _task(
    folder: Path, source: Mapping[str, Any], context: Mapping[str, Any], conditions: tuple[Any, ...]
) -> Iterator[Task]:
    own = source.get("when")
    conditions = (*conditions, *(own if isinstance(own, list) else [] if own is None else [own]))
    context = {**context, **source.get("vars", {})}
    for inner in source.get("block", ()):
        yield from _task(folder, inner, context, conditions)
    if "block" in source:
        return
    module = next((key for key in source if "." in key), "")
    given = source.get(module)
    arguments = given if isinstance(given, dict) else {}
    if module in ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks"):
        yield from _file(folder, str(_value(arguments.get("file", given), context)), context, conditions)
    elif module in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
        yield from _role(arguments["name"], context, conditions)
    else:
        for item in _items(source, module, context):
            yield Task(folder.name, source.get("name", ""), module, arguments, source, conditions, {**context, **item})


def _items(source: Mapping[str, Any], module: str, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The loop of a file task, as variables for each round; other tasks stand once."""
    if "loop" not in source or module not in FILES:
        return [{}]
    try:
        return [{"item": item} for item in _value(source["loop"], context)]
    except NotTold:
        return [{}]


def _condition(text: Any) -> Any:
    return text if not isinstance(text, str) else "{{ " + text.strip() + " }}"


def _value(given: Any, context: Mapping[str, Any]) -> Any:
    """A value with its variables filled in, of its own type where it is one expression; raises NotTold."""
    if isinstance(given, list):
        return [_value(item, context) for item in given]
    if not isinstance(given, str) or "{{" not in given:
        return given
    text = given.strip()
    inner = text[2:-2] if text.startswith("{{") and text.endswith("}}") else ""
    if inner and "{{" not in inner and "{%" not in inner:
        return _expression(inner, context)
    return _render(given, context)


def _expression(text: str, context: Mapping[str, Any]) -> Any:
    try:
        found = _environment().compile_expression(text, undefined_to_none=False)(**_Lazy(context).all_for(text))
    except TemplateError as error:
        raise NotTold(str(error)) from None
    if isinstance(found, Untold):
        raise NotTold(f"{text.strip()} is not known here")
    return found


def _render(text: str, context: Mapping[str, Any]) -> str:
    try:
        return _environment().from_string(text).render(**_Lazy(context).all_for(text))
    except TemplateError as error:
        raise NotTold(str(error)) from None


class _Lazy:
    """Variables whose values are expressions themselves, filled in where a text names them."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._context = context

    def all_for(self, text: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self._context.items():
            if name in text:
                try:
                    found[name] = _value(value, {k: v for k, v in self._context.items() if k != name})
                except NotTold:
                    continue
        return found


@cache
def _environment() -> Environment:
    """As Ansible's template module has it: the newline after a block goes, the one at the end of a file stays."""
    # Files on hosts are no HTML.
    made = Environment(undefined=Untold, trim_blocks=True, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    made.filters["dirname"] = os.path.dirname
    made.filters["difference"] = lambda some, others: [item for item in some if item not in others]
    made.filters["bool"] = lambda value: str(value).lower() in ("true", "yes", "on", "1")
    for file in sorted(resources.roles().glob("*/filter_plugins/*.py")):
        made.filters.update(_plugin(file))
    return made


def _plugin(file: Path) -> dict[str, Callable[..., Any]]:
    """The filters that a role brings along."""
    spec = importlib.util.spec_from_file_location(f"gdsdeploy_roles_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    filters: dict[str, Callable[..., Any]] = module.FilterModule().filters()
    return filters


def _optional(path: Path) -> dict[str, Any]:
    return (_yaml(path) or {}) if path.is_file() else {}


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _yaml(path: Path) -> Any:
    return yaml.load(_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - the safe one
