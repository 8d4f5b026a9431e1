"""Patches of evidence: JSON merge patches with operators for texts, lists and copies; see tests/cases/README.md."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.unit.host import block_devices, pci_functions

OPERATOR = re.compile(r"\$[a-z]+")
#: Host → its evidence, and the keys that lead to a place.
Source = Callable[[str], Any]
Place = tuple[Any, ...]
ABSENT = object()


class PatchError(Exception):
    """A patch that doesn't fit, or changes nothing; the message says where."""


def patched(value: Any, patch: Any, source: Source | None = None, place: Place = (), parent: Any = None) -> Any:
    """``value`` after a merge patch (RFC 7396); itself it stays as it is.  source: of ``$from``.  Raises PatchError."""
    if not isinstance(patch, Mapping):
        changed = patch
    elif any(OPERATOR.fullmatch(str(key)) for key in patch):
        changed = value
        for operator, operand in patch.items():
            if operator == "$merge":
                changed = patched(changed, operand, source, place)
            else:
                changed = _operate(changed, operator, operand, source, place, parent)
    elif isinstance(value, list) and all(isinstance(key, int) for key in patch):
        changed = list(value)
        for position, inner in patch.items():
            changed[position] = patched(value[position], inner, source, (*place, position))
    else:
        changed = dict(value) if isinstance(value, Mapping) else {}
        for key, inner in patch.items():
            if inner is not None:
                changed[key] = patched(changed.get(key, ABSENT), inner, source, (*place, key), changed)
            elif changed.pop(key, changed) is changed:
                raise PatchError(f"{_shown((*place, key))} isn't there, and can't be deleted")
    if type(changed) is type(value) and changed == value:
        raise PatchError(f"the patch changes nothing at {_shown(place)}: {patch!r:.200}")
    return changed


def _operate(value: Any, operator: str, operand: Any, source: Source | None, place: Place, parent: Any) -> Any:
    if operator == "$set":
        return copy.deepcopy(operand)
    if operator == "$json":
        return json.dumps(operand, indent=1)
    if operator in OF_HOSTS:
        return OF_HOSTS[operator](value, operand)
    if operator == "$like" and operand in (parent or ()):
        return copy.deepcopy(parent[operand])
    if operator == "$from" and source:
        found = source(operand)
        for key in place:
            found = found[key]
        return copy.deepcopy(found)
    if operator == "$append" and isinstance(value, str):
        return value + operand
    if operator == "$add" and isinstance(value, list):
        return [*value, *operand]
    if operator == "$remove" and isinstance(value, list) and all(one in value for one in operand):
        return [one for one in value if one not in operand]
    if operator == "$replace" and isinstance(value, (str, list)):
        for before, after in operand.items():
            texts = [value] if isinstance(value, str) else value
            if not any(before in text for text in texts):
                raise PatchError(f"{_shown(place)}: there is no {before!r}")
            replaced = [text.replace(before, after) for text in texts]
            value = replaced[0] if isinstance(value, str) else replaced
        return value
    raise PatchError(f"{_shown(place)}: {operator} {operand!r:.100} doesn't fit {value!r:.100}")


def _logged(document: Any, lines: list[str]) -> Any:
    """The kernel has said this, too: in dmesg, and in the journal where there is one."""
    commands = dict(document["commands"])
    for name, letters in (("dmesg", ""), ("journal", "vm kernel: ")):
        if commands[name]["status"] == 0:
            text = "".join(re.sub(r"^(\[.*?\] )", rf"\g<1>{letters}", line) + "\n" for line in lines)
            commands[name] = {**commands[name], "stdout": commands[name]["stdout"] + text}
    return {**document, "commands": commands}


#: Operators of the whole evidence.
OF_HOSTS: dict[str, Callable[[Any, Any], Any]] = {
    "$log": _logged,
    "$pci": pci_functions.with_functions,
    "$storage": block_devices.with_storage,
}


def _shown(place: Place) -> str:
    return " ".join(map(str, place)) or "all"
