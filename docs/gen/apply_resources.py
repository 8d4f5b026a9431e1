"""The page of resources."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

from docs.gen.collection import descriptions
from gdsdeploy.host.apply import registry
from gdsdeploy.host.model import schema

HEAD = """\
# Resources of `apply`

[apply.md](apply.md) describes the document that these are part of. The tables show the desired state of each resource.
A field without a default is required.
"""


def page() -> str:
    """Markdown: a section for each resource, with a table of its fields."""
    return "\n".join((HEAD, *map(_section, registry.names())))


def _section(name: str) -> str:
    resource = registry.resource(name)
    text = " ".join((inspect.getdoc(type(resource)) or "").split("\n\n")[0].split())
    about = " ".join((inspect.getdoc(resource.desired_type) or "").replace("``", "`").split())
    lines = [f"## `{name}`", "", text.replace("``", "`"), "", about, ""]
    fields = dataclasses.fields(resource.desired_type)
    if fields:
        types = schema.schema(resource.desired_type)["properties"]
        texts = descriptions(resource.desired_type)
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        for field in fields:
            text = texts[field.name].replace("``", "`")
            lines.append(f"| `{field.name}` | {_type(types[field.name])} | {_default(field)} | {text} |")
        lines.append("")
    return "\n".join(lines)


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return f"{_type(value['anyOf'][0])} or null"
    if "enum" in value:
        return " or ".join(f"`{word}`" for word in value["enum"])
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    if "properties" in value:
        fields = (name if name in value["required"] else f"{name}?" for name in value["properties"])
        return f"object ({', '.join(fields)})"
    if value["type"] == "object":
        return f"name → {_type(value['additionalProperties'])}"
    return str(value["type"])


def _default(field: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    return "" if field.default is dataclasses.MISSING else f"`{json.dumps(field.default)}`"
