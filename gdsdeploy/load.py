"""YAML → typed model, with every error at once and its place (file:line:column).

Values come from ``yaml.compose`` nodes through PyYAML's safe constructor; the same nodes give each
key its line and column, so that pydantic's error paths can be shown where the user wrote them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gdsdeploy import waivers
from gdsdeploy.errors import FleetInvalid, GdsError
from gdsdeploy.host import golden
from gdsdeploy.model.fleet import Fleet, references
from gdsdeploy.platform import known

M = TypeVar("M", bound=BaseModel)
#: (path of keys, what is wrong there)
Problem = tuple[tuple[str | int, ...], str]

#: More than this many problems would only scroll the first ones away.
MAX_PROBLEMS = 40


def load_fleet(path: Path, *, names_from: Path | None = None) -> Fleet:
    """Read a fleet file; raise FleetInvalid with every problem and its place.

    names_from: the folder that its relative names start at, where that is not its own.
    """
    fleet = load(path, Fleet, error=FleetInvalid, also=_problems)
    _read_golden(fleet, names_from or path.parent)
    return fleet


def _read_golden(fleet: Fleet, folder: Path) -> None:
    """Put the golden topologies that profiles name beside their names; one that is not there yet can be made."""
    for wanted in (profile.topology for profile in fleet.profiles.values()):
        if wanted.golden is None:
            continue
        file = folder / Path(wanted.golden).expanduser()
        try:
            wanted._document = golden.from_json(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as cause:
            wanted._document = f"{file}: cannot be read: {getattr(cause, 'strerror', None) or cause}"
        except golden.GoldenError as cause:
            wanted._document = f"{file}: {cause}"


def _problems(fleet: Fleet) -> list[Problem]:
    return [*references(fleet), *_unknown_systems(fleet), *waivers.problems(fleet)]


def _unknown_systems(fleet: Fleet) -> list[tuple[tuple[str, ...], str]]:
    systems = known()
    return [
        (("profiles", name, "os"), f"the operating system {profile.os!r} is not known; known are {', '.join(systems)}")
        for name, profile in fleet.profiles.items()
        if profile.os not in systems
    ]


def load(
    path: Path,
    model: type[M],
    *,
    error: type[GdsError],
    also: Callable[[M], Sequence[Problem]] | None = None,
) -> M:
    """Read the YAML file ``path`` into ``model``; raise ``error`` listing every problem with file:line:column.

    also: finds problems that need the whole model; returns (path of keys, message) pairs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file", hint="See examples/ for files to start from") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{path}: cannot be read: {cause}") from cause
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise error(f"{path}: the file is empty", hint="See examples/ for files to start from")
        repeated = _repeated_keys(root)
        loader = yaml.SafeLoader("")
        value = loader.construct_document(root)
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise error(f"{place}: not valid YAML: {cause.problem or cause.context}") from cause
    except yaml.YAMLError as cause:
        raise error(f"{path}: not valid YAML: {cause}") from cause
    problems = [(mark, f"the key {key!r} is given twice") for mark, key in repeated]
    try:
        parsed = model.model_validate(value)
    except ValidationError as cause:
        for item in cause.errors():
            location = [part for part in item["loc"] if _is_key(part)]
            problems.append(
                (_mark(root, location, key=item["type"] == "extra_forbidden"), _words(item, location, model))
            )
        raise _report(path, problems, error) from None
    for keys, message in also(parsed) if also else []:
        problems.append((_mark(root, keys), f"{'.'.join(map(str, keys))}: {message}"))
    if problems:
        raise _report(path, problems, error)
    return parsed


def _is_key(part: object) -> bool:
    """Names of union members and validators, which pydantic puts into a path, are not in the file."""
    return isinstance(part, int) or (isinstance(part, str) and "[" not in part and "(" not in part)


def _repeated_keys(node: yaml.Node) -> list[tuple[yaml.Mark, str]]:
    found: list[tuple[yaml.Mark, str]] = []
    stack = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in here.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        found.append((key.start_mark, key.value))
                    seen.add(key.value)
                stack.append(value)
        elif isinstance(here, yaml.SequenceNode):
            stack.extend(here.value)
    return found


def _mark(root: yaml.Node, location: Sequence[object], *, key: bool = False) -> yaml.Mark:
    """The place of the deepest part of ``location`` that the file has; of its key when ``key``."""
    node, mark = root, root.start_mark
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for k, v in node.value:
                if k.value == str(part):
                    node, mark = v, k.start_mark if key else v.start_mark
                    break
            else:
                return mark
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        else:
            return mark
    return mark


def _words(item: Any, location: Sequence[object], model: type[BaseModel]) -> str:
    where = ".".join(str(p) for p in location) or "the file"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _known_keys(model), n=1)
        return f"{where}: unknown key" + (f" (did you mean {near[0]!r}?)" if near else "")
    if item["type"] == "missing":
        return f"{where}: this key is required"
    given = item.get("input")
    shown = f" (found {given!r})" if isinstance(given, (str, int, float, bool)) else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"


def _known_keys(model: type[BaseModel]) -> list[str]:
    """Every key of the model and of those it holds."""
    schema = model.model_json_schema()
    keys = set(schema.get("properties", {}))
    for definition in schema.get("$defs", {}).values():
        keys |= set(definition.get("properties", {}))
    return sorted(keys)


def _report(path: Path, problems: list[tuple[yaml.Mark, str]], error: type[GdsError]) -> GdsError:
    lines: list[str] = []
    for mark, message in sorted(problems, key=lambda p: (p[0].line, p[0].column)):
        text = f"{path}:{mark.line + 1}:{mark.column + 1}: {message}"
        if text not in lines:
            lines.append(text)
    more = len(lines) - MAX_PROBLEMS
    shown = lines[:MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    return error("\n".join(shown))
