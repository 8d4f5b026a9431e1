"""A fleet file for others to read: masked by its structure, without its comments.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import yaml

from gdsdeploy.files.secret import REDACTED
from gdsdeploy.fleetfile.load import secret_keys
from gdsdeploy.model.fleet import Fleet

#: Keys that say where hosts are, and who enters them how.
_WAYS: Final = frozenset({"address", "user", "identity_file", "known_hosts", "config"})
#: Sections whose keys aren't the fleet file's own.
_FOREIGN: Final = frozenset({"cufile", "labels", "options", "arguments", "module_options", "groups"})


@cache
def private_keys() -> frozenset[str]:
    """Keys whose values, however deep, are masked; of an address (``uri``) only what has no place in one is."""
    return (secret_keys(Fleet) | _WAYS) - {"uri"}


def mask_fleet(text: str, secret: Callable[[str], object]) -> str:
    """The fleet file ``text`` with private values masked; ``secret`` is called with each.  Raises yaml.YAMLError."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return ""
    for node, private in list(_scalars(root)):
        value = REDACTED if private else _without_login(node.value)
        if value != node.value:
            secret(node.value)
            node.value, node.tag, node.style = value, "tag:yaml.org,2002:str", None
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=120))


def _scalars(root: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, bool]]:
    """Every value with whether it is private; one that an alias repeats may come twice."""
    stack, visited = [(root, False, False)], set[tuple[int, bool, bool]]()
    while stack:
        node, private, foreign = stack.pop()
        if (id(node), private, foreign) in visited:
            continue
        visited.add((id(node), private, foreign))
        if isinstance(node, yaml.ScalarNode):
            yield node, private
        elif isinstance(node, yaml.SequenceNode):
            stack += [(entry, private, foreign) for entry in node.value]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else ""
                hidden = private or (name in private_keys() and not foreign)
                stack.append((value, hidden, foreign or name in _FOREIGN))


def _without_login(value: str) -> str:
    """An address without user, password and parameters; any other value as it is."""
    if "://" not in value:
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return REDACTED
    place = f"{REDACTED}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    return urlunsplit(parts._replace(netloc=place, query=REDACTED if parts.query else "", fragment=""))
