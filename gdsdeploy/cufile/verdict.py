"""What a release of libcufile does with a cufile.json: accepts it, refuses it over one key, or ends the process.

Pure.  A misspelt key is accepted here, because the library ignores it.  The data is keys.yml (``limits``, and
``enforced`` where the library checks something else) and reading.yml.  Both come from the libraries' own answers, which
the differential tests in tests/cufile compare again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from gdsdeploy.cufile import model
from gdsdeploy.cufile.document import Document, DocumentInvalid, Node, read
from gdsdeploy.cufile.model import NEWEST, Key, Limits, Release, keys, release_of
from gdsdeploy.files import yamlfile

#: The kind of a path on the machine where the library runs; "" means that nothing exists there.
What = Literal["folder", "block", "other", ""]
Look = Callable[[str], What]

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Verdict:
    """``accepted``: every cuFile call works as far as the configuration goes.

    key: the dotted key that the library stops at; None also if the library can't parse the text.
    aborts: the library ends the process that reads the file.
    effective: dotted key → the value in effect, for every key of the release whose value is known.
    """

    accepted: bool
    key: str | None = None
    reason: str = ""
    aborts: bool = False
    effective: Mapping[str, Any] = field(default_factory=dict)


class _Stop(Exception):
    """The library stops at a key."""

    def __init__(self, reason: str = "wrong type", *, aborts: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.aborts = aborts


def everything_is_there(path: str) -> What:
    """For a file of another machine: every path is what it should be."""
    return "folder" if path.startswith("/") else ""


def judge(text: bytes | Document, release: Release, look: Look = everything_is_there) -> Verdict:
    """The verdict of that release on the content of a file."""
    try:
        document = read(text) if isinstance(text, bytes) else text
    except DocumentInvalid as invalid:
        return Verdict(False, reason=invalid.message, aborts=invalid.aborts)
    root = document.root
    if root.kind == "null" or (root.kind == "array" and not root.items):
        root = Node("object", 0)
    if root.kind != "object":
        return Verdict(False, reason="the whole must be an object", aborts=True)
    return _judge_object(root, min(release, NEWEST), look)


def _judge_object(root: Node, release: Release, look: Look) -> Verdict:
    release_keys = keys(release)
    effective: dict[str, Any] = {name: key.default_for(release) for name, key in release_keys.items()}
    slabs = _gpu_slabs(root, release_keys)
    for name in reading_order(release):
        try:
            value = _read(root, release_keys[name], release, effective, look)
            if value is not None:
                effective[name] = value
            if name == model.BUFFER and release >= (1, 13) and not slabs:
                _enforce_buffer(effective)
        except _Stop as stop:
            return Verdict(False, name, stop.reason, stop.aborts)
    if effective[model.FORCE_COMPAT]:
        effective[model.ALLOW_COMPAT] = True
    effective.update(slabs)
    return _crash(effective) or Verdict(True, effective=effective)


def _read(root: Node, key: Key, release: Release, effective: Mapping[str, Any], look: Look) -> Any:
    """The value of the key in the file, or None if the file has no value that counts."""
    node = _find(root, key.key)
    # Slabs of GPU bounce buffers are never refused: see _gpu_slabs.
    if node is None or node.kind == "null" or key.key == model.GPU_SIZES or not key.heeded_by(release):
        return None
    value = _ACCESSORS[key.type](node, key)
    if value == []:
        return None
    _enforce(value, key, key.enforced_for(release), effective, look)
    return _clamp(value, key, release)


@functools.cache
def reading_order(release: Release) -> tuple[str, ...]:
    """The keys of a release in the order in which it reads them; it stops at the first bad one."""
    text = resources.files(__package__).joinpath("reading.yml").read_text(encoding="utf-8")
    rows = [{"key": row} if isinstance(row, str) else row for row in yamlfile.shipped(text)]
    return tuple(
        row["key"]
        for row in rows
        if release_of(row.get("since", "1.4")) <= release <= release_of(row.get("until", "999.0"))
        and row["key"] in keys(release)
    )


def _find(root: Node, name: str) -> Node | None:
    """The value that counts under a dotted name; a parent that isn't an object ends the process."""
    node = root
    parts = name.split(".")
    for number, part in enumerate(parts):
        member = node.last(part)
        if member is None:
            return None
        node = member.value
        if number + 1 < len(parts):
            if node.kind == "null":
                return None
            if node.kind != "object":
                raise _Stop(f"{'.'.join(parts[: number + 1])} is not an object", aborts=True)
    return node


def _bool(node: Node, _key: Key) -> bool:
    if node.kind != "bool":
        raise _Stop
    return bool(node.value)


def _uint(node: Node, key: Key) -> int:
    """A number, truncated at the point, or a boolean; beyond 32 bits some keys end the process."""
    value = node.value
    if node.kind == "bool":
        return int(bool(value))
    if node.kind == "real" and isinstance(value, float) and 0 <= value <= _MAX_UINT32:
        return int(value)
    if node.kind != "int" or not isinstance(value, int) or value < 0:
        raise _Stop
    if key.bits == 32 and value > _MAX_UINT32:
        raise _Stop("more than 32 bits", aborts=True)
    return value


def _int(node: Node, key: Key) -> int:
    """A whole number; to the parser, one above 31 bits is unsigned, which is another type."""
    value = node.value
    if node.kind != "int" or not isinstance(value, int) or value >= 2**31:
        raise _Stop
    if value < -(2**31):
        raise _Stop("more than 32 bits", aborts=True)
    return value % 2**key.bits if key.bits < 32 else value


def _text(node: Node, _key: Key) -> str:
    if node.kind != "text":
        raise _Stop
    return str(node.value)


def _list(node: Node, key: Key) -> list[Any]:
    if node.kind != "array":
        raise _Stop
    return [(_text if key.type == "texts" else _int)(element, key) for element in node.items]


def _table(node: Node, key: Key) -> dict[str, list[str]]:
    """A mount table: folder → addresses."""
    members = {member.name: member.value for member in node.members}
    if node.kind != "object" or any(value.kind != "object" for value in members.values()):
        raise _Stop
    texts = key.model_copy(update={"type": "texts"})
    lists = {name: value.last("rdma_dev_addr_list") for name, value in members.items()}
    return {name: _list(member.value, texts) if member else [] for name, member in lists.items()}


#: Type of a key → the library's accessor, which stops on a wrong type.
_ACCESSORS: Mapping[str, Callable[[Node, Key], Any]] = {
    "bool": _bool,
    "uint": _uint,
    "int": _int,
    "text": _text,
    "texts": _list,
    "uints": _list,
    "object": _table,
}


def _enforce(value: Any, key: Key, limits: Limits, effective: Mapping[str, Any], look: Look) -> None:
    items = value if isinstance(value, list) else [value]
    # The library examines each mount, and only the result of the last one counts.
    for part in items[-1:] if key.key == "denylist.mounts" else items:
        if isinstance(part, int) and not isinstance(part, bool):
            _enforce_number(part, limits)
        elif isinstance(part, str):
            _enforce_text(part, limits, look, folder=key.key == "logging.dir")
    if isinstance(value, dict) and any(look(folder) != "folder" for folder, hosts in value.items() if hosts):
        raise _Stop("one of its mount points isn't a folder")
    if key.key == model.SLAB_COUNTS and len(value) != len(effective[model.SLAB_SIZES]):
        raise _Stop(f"{len(value)} entries, but posix_pool_slab_size_kb has {len(effective[model.SLAB_SIZES])}")


def _enforce_buffer(effective: Mapping[str, Any]) -> None:
    """Also where the file sets neither key: one default may be too large for the other key's value."""
    if effective[model.BUFFER] > effective[model.LARGEST]:
        raise _Stop(f"{effective[model.BUFFER]} is more than max_direct_io_size_kb ({effective[model.LARGEST]})")


def _enforce_number(value: int, limits: Limits) -> None:
    if value in limits.also:
        return
    if (limits.min is not None and value < limits.min) or (limits.max is not None and value > limits.max):
        raise _Stop(f"{value} is out of range")
    if limits.multiple and value % limits.multiple:
        raise _Stop(f"{value} is not a multiple of {limits.multiple}")


def _clamp(value: Any, key: Key, release: Release) -> Any:
    limits = key.limits_for(release)
    return max(limits.min or 0, min(value, limits.max)) if key.clamped and limits.max is not None else value


def _enforce_text(value: str, limits: Limits, look: Look, *, folder: bool) -> None:
    if limits.words and value not in limits.words:
        raise _Stop(f"{value!r} isn't one of its words")
    if limits.pattern and not re.fullmatch(limits.pattern, value):
        raise _Stop(f"{value!r} does not look like {limits.pattern}")
    if limits.form == "path":
        # In C a text ends at its first NUL.
        what = look(value.split("\0")[0])
        if not what or (folder and what != "folder"):
            raise _Stop(f"{value!r} isn't a folder" if what else f"{value!r} doesn't exist")


def _gpu_slabs(root: Node, release_keys: Mapping[str, Key]) -> dict[str, Any]:
    """Effective values that follow from slabs of GPU bounce buffers; wrong slabs are dropped without a refusal."""
    lists: list[list[int]] = []
    for name in (model.GPU_SIZES, model.GPU_COUNTS):
        try:
            node = _find(root, name) if name in release_keys else None
            lists.append(_list(node, release_keys[name]) if node is not None else [])
        except _Stop:
            return {}
    sizes, counts = lists
    if (
        not sizes
        or len(sizes) != len(counts)
        or any(size <= 0 or size % 4 for size in sizes)
        or any(count <= 0 for count in counts)
        or sorted(set(sizes)) != sizes
    ):
        return {}
    total = sum(size * count for size, count in zip(sizes, counts, strict=True))
    return {model.GPU_SIZES: sizes, model.GPU_COUNTS: counts, model.CACHE: total, model.BUFFER: sizes[-1]}


def _crash(effective: Mapping[str, Any]) -> Verdict | None:
    """Values that pass every check and end the process a moment later."""
    sizes, counts = effective[model.SLAB_SIZES], effective[model.SLAB_COUNTS]
    if len(sizes) != len(counts):
        reason = f"{len(sizes)} entries, but posix_pool_slab_count has {len(counts)}"
        return Verdict(False, model.SLAB_SIZES, reason, aborts=True)
    if any(count < 0 for count in counts):
        return Verdict(False, model.SLAB_COUNTS, "a negative count", aborts=True)
    if effective[model.BUFFER] == 0:
        return Verdict(False, model.BUFFER, "a buffer of no size", aborts=True)
    return None
