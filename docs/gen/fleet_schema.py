"""The JSON Schema of fleet files and its page."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from docs.gen import table_row
from gdsdeploy.model import fleet
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.text import SECRET

Schema = dict[str, Any]

HEAD = """\
# The JSON Schema of the fleet file

This page and the schema, [fleet.schema.json](fleet.schema.json), are made from the types that read `fleet.yml`. In a
checkout, `python -m docs.gen fleet.schema.json` prints the schema.

## In an editor

An editor with [yaml-language-server](https://github.com/redhat-developer/yaml-language-server) completes keys and
marks mistakes. Examples are VS Code with its YAML extension, Neovim and Emacs. Put `fleet.schema.json` beside the fleet
file, and make this its first line:

```yaml
# yaml-language-server: $schema=fleet.schema.json
version: 1
```

## What it doesn't check

The schema knows keys, types and the form of values. `gdsdeploy lock` also knows what belongs together: names of
profiles, repositories and builders, waivers of checks that exist, keys that exclude each other. So a file that fits the
schema may still be refused, with file:line:column. [The fleet file](fleet.md) explains the keys.

"""
#: The pattern of a version pin, a duration and a rate.
_PIN = {"type": "string", "pattern": fleet._PIN.pattern}
_DURATION = {"type": "string", "pattern": r"^[0-9]+[smhd]$"}
_RATE = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(kB|MB|GB|KiB|MiB|GiB)/s$"}
_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"}
#: Model and key → a shorter form that the fleet file may have instead; readers turn it into the long one.
SHORT: dict[str, Schema] = {
    "Profile.kernel": _PIN,
    "Profile.driver": _PIN,
    "Profile.rdma": {"const": "auto"},
    "Profile.boot": {"enum": ["none", "auto"]},
    "Profile.gate": {"type": "boolean"},
    "Profile.watch": {"type": "boolean"},
    "Profile.gpus": {"type": "integer", "minimum": 0},
    "Profile.nics": {"type": "integer", "minimum": 0},
    "Profile.nvme": {"type": "integer", "minimum": 0},
    "Boot.arguments.*": {"type": "integer"},
    "Boot.module_options.*.*": {"type": "integer"},
    "FleetHost.imex": _NAME,
    "Fleet.builders.*": _NAME,
    "Fleet.hosts.*": _NAME,
    "Repository.max_age": _DURATION,
    "Canary.soak": _DURATION,
    "Batches.soak": _DURATION,
    "Console.timeout": _DURATION,
    "Drain.timeout": _DURATION,
    "Rollout.reboot_timeout": _DURATION,
}
#: Model and key → what the fleet file has instead of what the type holds.
INSTEAD: dict[str, Schema] = {
    "Load.read": _RATE,
    "Profile.nvidia_fs": _PIN,
    "Profile.libcufile": _PIN,
    "Driver.version": _PIN,
    "KernelPin.version": _PIN,
}

#: Keys of an entry that say nothing about its form.
_BESIDE: tuple[str, ...] = ("default", "description")
_TABLE = Path(__file__).parents[1] / "fleet.md"


def schema() -> Schema:
    """The schema, with descriptions and short forms."""
    value = Fleet.model_json_schema()
    models = {name: value["$defs"][name] for name in value["$defs"]} | {"Fleet": value}
    for name, model in models.items():
        _describe(name, model)
        for key, entry in model.get("properties", {}).items():
            _clean(entry)
            model["properties"][key] = _with_forms(f"{name}.{key}", entry)
        model.pop("title", None)
        model.pop("description", None)
    for model in value["$defs"].values():
        model.pop("title", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "The fleet file of gdsdeploy"}
    return {**head, **value}


def text() -> str:
    """The file fleet.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """Markdown: how to use the schema, and a table of all keys for each group of them."""
    value = schema()
    parts = [HEAD]
    for name in sorted(_WHERE, key=lambda name: _WHERE[name].replace("NAME", "")):
        model = value if name == "Fleet" else value["$defs"][name]
        title = _WHERE[name] or "The top level"
        rows = [_row(key, entry, model) for key, entry in model["properties"].items()]
        parts.append(f"## {title}\n\n| key | value | default |\n| --- | --- | --- |\n{''.join(rows)}\n")
    return "".join(parts).rstrip("\n") + "\n"


#: Model → its heading: where its keys are.
_WHERE = {
    "Fleet": "",
    "Adapters": "`profiles.NAME.nics`",
    "Batches": "`rollout.batches`",
    "Boot": "`profiles.NAME.boot`",
    "Canary": "`rollout.canary`",
    "Console": "`rollout.console`",
    "Drain": "`rollout.drain`",
    "Driver": "`profiles.NAME.driver`",
    "Failures": "`rollout.failures`",
    "Fit": "`profiles.NAME.fit`",
    "FleetHost": "`hosts.NAME` and `builders.NAME`",
    "FleetWaiver": "`waivers`",
    "Gate": "`profiles.NAME.gate`",
    "ImexNode": "`hosts.NAME.imex`",
    "InventorySource": "`inventory`",
    "KernelPin": "`profiles.NAME.kernel`",
    "Load": "`profiles.NAME.storage.load`",
    "Mirror": "`mirror`",
    "Models": "`profiles.NAME.gpus` and `profiles.NAME.nvme`",
    "Mount": "`profiles.NAME.storage`",
    "Notify": "`rollout.notify`",
    "Profile": "`profiles.NAME`",
    "Repository": "`repositories.NAME`",
    "Rollout": "`rollout`",
    "Signing": "`profiles.NAME.signing`",
    "Ssh": "`ssh`",
    "TopologySettings": "`profiles.NAME.topology`",
    "Watch": "`profiles.NAME.watch`",
}


def _with_forms(path: str, entry: Schema) -> Schema:
    """The entry with its short forms, also those of the values of a mapping."""
    if path in INSTEAD:
        return {key: entry[key] for key in _BESIDE if key in entry} | INSTEAD[path]
    if path in SHORT:
        beside = {key: entry.pop(key) for key in _BESIDE if key in entry}
        return {**beside, "anyOf": [SHORT[path], *entry.pop("anyOf", [entry])]}
    for key in ("additionalProperties", "patternProperties"):
        if isinstance(below := entry.get(key), dict) and any(name.startswith(f"{path}.*") for name in SHORT):
            if key == "patternProperties":
                entry[key] = {pattern: _with_forms(f"{path}.*", value) for pattern, value in below.items()}
            else:
                entry[key] = _with_forms(f"{path}.*", below)
    return entry


def _clean(entry: Any) -> None:
    """Without the titles that pydantic makes of names, and without what other programs don't know."""
    if isinstance(entry, dict):
        if isinstance(entry.get("title"), str):
            del entry["title"]
        for mark in SECRET:
            entry.pop(mark, None)
        if "ge" in entry:
            entry["minimum"] = entry.pop("ge")
        if "le" in entry:
            entry["maximum"] = entry.pop("le")
        if "patternProperties" in entry:
            entry["additionalProperties"] = False
        for value in entry.values():
            _clean(value)
    elif isinstance(entry, list):
        for value in entry:
            _clean(value)


def _describe(name: str, model: Schema) -> None:
    """Descriptions of the keys: what docs/fleet.md says, or else the comments beside the fields."""
    words = {**dict(_comments(_class(name))), **_meanings(name)}
    for key, entry in model.get("properties", {}).items():
        entry.pop("description", None)
        if key in words:
            entry["description"] = words[key]


def _meanings(name: str) -> dict[str, str]:
    """Key → meaning, from the first table of docs/fleet.md: of a profile, or of the top level."""
    meanings: dict[str, str] = {}
    pattern = r"(?:…|profiles\.<name>)\.(\w+)" if name == "Profile" else r"(\w+)(?:\.<name>)?"
    for keys, meaning in re.findall(r"(?m)^\| (`[^|]*`) \| (.*?) \|", _TABLE.read_text(encoding="utf-8")):
        for key in re.findall(r"`([^`]+)`", keys) if name in ("Profile", "Fleet") else ():
            if match := re.fullmatch(pattern, key):
                text = re.sub(r",? see \[below\]\([^)]*\)", "", meaning).replace("\\|", "|")
                meanings.setdefault(match[1], _plain(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)))
    return meanings


def _class(name: str) -> type[BaseModel]:
    """The model of that name, which the fleet file's module or one of those that it imports has."""
    model = getattr(fleet, name, None)
    for module in ("rollout_settings", "profile_parts"):
        model = model or getattr(importlib.import_module(f"gdsdeploy.model.{module}"), name, None)
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def _comments(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """(key, comment above it) of the fields of a model and of its bases."""
    for base in model.__mro__:
        source = getattr(sys.modules[base.__module__], "__file__", None)
        if source and issubclass(base, BaseModel) and "gdsdeploy" in base.__module__:
            yield from _comments_of(Path(source), base.__name__)


def _comments_of(source: Path, name: str) -> Iterator[tuple[str, str]]:
    inside, comment = False, []
    with source.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            line = token.line.rstrip()
            if token.type == tokenize.COMMENT and token.string.startswith("#:") and inside:
                comment.append(token.string[2:].strip())
            elif match := re.match(r"class (\w+)", line):
                inside, comment = match[1] == name, []
            elif token.type == tokenize.NAME and (match := re.match(r"    (\w+): ", line)) and inside:
                if comment and token.start[1] == 4:
                    yield match[1], _plain(" ".join(comment))
                comment = []
            elif token.type == tokenize.NAME and inside and line.startswith("    ") and token.start[1] == 4:
                comment = []


def _plain(comment: str) -> str:
    """A comment without the marks of reStructuredText."""
    words = re.sub(r"[;:,] (without it )?see .*$", "", comment).replace("``", "`").rstrip(".")
    words = words.replace("None:", "without it:")
    return words if words.startswith("ssh_config") else words[0].upper() + words[1:]


def _row(key: str, entry: Schema, model: Schema) -> str:
    default = "required" if key in model.get("required", []) else _default(entry)
    return table_row(f"`{key}`", _kind(entry), default)


def _default(entry: Schema) -> str:
    value = entry.get("default")
    if value is None or isinstance(value, dict) or value == []:
        return "–"
    shown = ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
    return f"`{shown}`"


def _kind(entry: Schema) -> str:
    """What a value may be, in a few words."""
    if "$ref" in entry:
        return "mapping: " + _WHERE[entry["$ref"].rpartition("/")[2]]
    if "anyOf" in entry:
        kinds = dict.fromkeys(_kind(part) for part in entry["anyOf"] if part.get("type") != "null")
        return ", or ".join(kinds)
    if "enum" in entry or "const" in entry:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in entry.get("enum", [entry.get("const")]))
    if entry.get("type") == "array":
        return f"list of: {_kind(entry.get('items', {}))}"
    if entry.get("type") == "object":
        patterns: Schema = entry.get("patternProperties", {})
        below: Any = entry.get("additionalProperties") or next(iter(patterns.values()), {})
        return "mapping of names to: " + (_kind(below) if isinstance(below, dict) and below else "anything")
    return _scalar(entry)


def _scalar(entry: Schema) -> str:
    named = [(_PIN, "a version pin"), (_DURATION, "a duration such as `30m`"), (_RATE, "a rate such as `5 GB/s`")]
    for form, words in named:
        if entry.get("pattern") == form["pattern"]:
            return words
    kinds = {"string": "text", "integer": "whole number", "boolean": "`true` or `false`"}
    kind = kinds.get(entry.get("type", ""), "anything")
    if entry.get("format") == "date":
        return "a day such as `2026-12-31`"
    low, high = entry.get("minimum"), entry.get("maximum")
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    return f"{kind}, at least {low}" if low is not None else kind
