"""What a release of libcufile does with a cufile.json: takes it, refuses it over one key, or ends the process.

Pure, and no opinion: a misspelt key is taken here, because the library ignores it.  The data is keys.yml (``limits``,
and ``enforced`` where the library checks something else) and reading.yml; both were taken from the libraries' own
answers, and the differential tests in tests/cufile ask them again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml

from gdsdeploy.cufile.document import Document, DocumentInvalid, Node, read
from gdsdeploy.cufile.model import NEWEST, Key, Limits, Release, keys, release_of

#: What lies under a path on the machine where the library runs; "" stands for nothing.
What = Literal["folder", "block", "other", ""]
Look = Callable[[str], What]

SLAB_SIZES = "properties.posix_pool_slab_size_kb"
SLAB_COUNTS = "properties.posix_pool_slab_count"
GPU_SIZES = "properties.gpu_bounce_buffer_slab_config.slab_size_kb"
GPU_COUNTS = "properties.gpu_bounce_buffer_slab_config.slab_count"
BUFFER = "properties.per_buffer_cache_size_kb"
CACHE = "properties.max_device_cache_size_kb"
LARGEST = "properties.max_direct_io_size_kb"

_ALLOW = "properties.allow_compat_mode"
_FORCE = "properties.force_compat_mode"
_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Verdict:
    """``accepted``: every cuFile call works as far as the configuration goes.

    key: the dotted key that the library stops at; None also when the text itself is no JSON to it.
    aborts: the process that reads the file ends there and then.
    effective: dotted key → the value that it works with, for every key that the release knows and whose value is known.
    """

    accepted: bool
    key: str | None = None
    reason: str = ""
    aborts: bool = False
    effective: Mapping[str, Any] = field(default_factory=dict)


class _Stop(Exception):
    """The library stops at a key: (reason, whether the process aborts)."""

    def __init__(self, reason: str, *, aborts: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.aborts = aborts


def everything_is_there(path: str) -> What:
    """The paths of a file that is not for this machine: taken for what they should be."""
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
    return _judged(root, min(release, NEWEST), look)


def _judged(root: Node, release: Release, look: Look) -> Verdict:
    known = keys(release)
    effective: dict[str, Any] = {name: key.default_for(release) for name, key in known.items()}
    slabs = _gpu_slabs(root, known)
    for name in reading_order(release):
        try:
            value = _read(root, known[name], release, effective, look)
            if value is not None:
                effective[name] = value
            if name == BUFFER and release >= (1, 13) and not slabs:
                _enforce_buffer(effective)
        except _Stop as stop:
            # The key of a value that ends the process is ours to name: the library no longer can.
            return Verdict(False, name, stop.reason, stop.aborts)
    if effective[_FORCE]:
        effective[_ALLOW] = True
    effective.update(slabs)
    return _crash(effective) or Verdict(True, effective=effective)


def _read(root: Node, key: Key, release: Release, effective: Mapping[str, Any], look: Look) -> Any:
    """The value that the file gives the key, or None: it gives none that counts."""
    node = _find(root, key.key)
    # Slabs of GPU bounce buffers are never refused: see _gpu_slabs.
    if node is None or node.kind == "null" or key.key == GPU_SIZES or not key.heeded_by(release):
        return None
    value = _converted(node, key)
    if value == []:
        # As if it were not given.
        return None
    _enforce(value, key, key.enforced_for(release), effective, look)
    return _clamped(value, key, release)


@functools.cache
def reading_order(release: Release) -> tuple[str, ...]:
    """The keys of a release in the order in which it reads them, and so stops at the first bad one."""
    text = resources.files(__package__).joinpath("reading.yml").read_text(encoding="utf-8")
    found: list[str] = []
    for row in yaml.safe_load(text):
        entry = {"key": row} if isinstance(row, str) else row
        since, until = release_of(entry.get("since", "1.4")), entry.get("until")
        if since <= release and (until is None or release <= release_of(until)):
            found += [name for name in [entry["key"]] if name in keys(release)]
    return tuple(found)


def _find(root: Node, name: str) -> Node | None:
    """The value that counts under a dotted name; a parent that is no object ends the process."""
    here = root
    parts = name.split(".")
    for number, part in enumerate(parts):
        member = here.last(part)
        if member is None:
            return None
        here = member.value
        if number + 1 < len(parts):
            if here.kind == "null":
                return None
            if here.kind != "object":
                raise _Stop(f"{'.'.join(parts[: number + 1])} is not an object", aborts=True)
    return here


def _converted(node: Node, key: Key) -> Any:
    """The value as the library's accessor takes it; stops on a wrong type."""
    take = {"bool": _bool, "uint": _uint, "int": _int, "text": _text, "texts": _list, "uints": _list, "object": _table}
    return take[key.type](node, key)


def _mismatch() -> _Stop:
    return _Stop("wrong type")


def _bool(node: Node, _key: Key) -> bool:
    if node.kind != "bool":
        raise _mismatch()
    return bool(node.value)


def _uint(node: Node, key: Key) -> int:
    """A number, cut off at the point, or a boolean; beyond 32 bits some keys end the process."""
    value = node.value
    if node.kind == "bool":
        return int(bool(value))
    if node.kind == "real":
        assert isinstance(value, float)
        if not 0 <= value <= _MAX_UINT32:
            raise _mismatch()
        return int(value)
    if node.kind != "int" or not isinstance(value, int) or value < 0:
        raise _mismatch()
    if key.bits == 32 and value > _MAX_UINT32:
        raise _Stop("more than 32 bits", aborts=True)
    return value


def _int(node: Node, key: Key) -> int:
    """A whole number; the parser calls one above 31 bits unsigned, which is another type to it."""
    value = node.value
    if node.kind != "int" or not isinstance(value, int) or value >= 2**31:
        raise _mismatch()
    if value < -(2**31):
        raise _Stop("more than 32 bits", aborts=True)
    return value % 2**key.bits if key.bits < 32 else value


def _text(node: Node, _key: Key) -> str:
    if node.kind != "text":
        raise _mismatch()
    return str(node.value)


def _list(node: Node, key: Key) -> list[Any]:
    if node.kind != "array":
        raise _mismatch()
    return [(_text if key.type == "texts" else _int)(item, key) for item in node.items]


def _table(node: Node, key: Key) -> dict[str, list[str]]:
    """A mount table: folder → addresses."""
    if node.kind != "object":
        raise _mismatch()
    found: dict[str, list[str]] = {}
    for member in {member.name: member for member in node.members}.values():
        if member.value.kind != "object":
            raise _mismatch()
        inner = member.value.last("rdma_dev_addr_list")
        found[member.name] = _list(inner.value, key.model_copy(update={"type": "texts"})) if inner else []
    return found


def _enforce(value: Any, key: Key, limits: Limits, effective: Mapping[str, Any], look: Look) -> None:
    items = value if isinstance(value, list) else [value]
    # Each mount is looked at, and only what came of the last one counts.
    for item in items[-1:] if key.key == "denylist.mounts" else items:
        if isinstance(item, int) and not isinstance(item, bool):
            _enforce_number(item, limits)
        elif isinstance(item, str):
            _enforce_text(item, limits, look, folder=key.key == "logging.dir")
    if isinstance(value, dict) and any(look(folder) != "folder" for folder, hosts in value.items() if hosts):
        raise _Stop("a mount point of it is no folder")
    if key.key == SLAB_COUNTS and len(value) != len(effective[SLAB_SIZES]):
        raise _Stop(f"{len(value)} entries, but posix_pool_slab_size_kb has {len(effective[SLAB_SIZES])}")


def _enforce_buffer(effective: Mapping[str, Any]) -> None:
    """Also where the file gives neither: the default of the one may be too large for the other."""
    if effective[BUFFER] > effective[LARGEST]:
        raise _Stop(f"{effective[BUFFER]} is more than max_direct_io_size_kb ({effective[LARGEST]})")


def _enforce_number(value: int, limits: Limits) -> None:
    if value in limits.also:
        return
    if (limits.min is not None and value < limits.min) or (limits.max is not None and value > limits.max):
        raise _Stop(f"{value} is out of range")
    if limits.multiple and value % limits.multiple:
        raise _Stop(f"{value} is not a multiple of {limits.multiple}")


def _clamped(value: Any, key: Key, release: Release) -> Any:
    limits = key.limits_for(release)
    return max(limits.min or 0, min(value, limits.max)) if key.clamped and limits.max is not None else value


def _enforce_text(value: str, limits: Limits, look: Look, *, folder: bool) -> None:
    if limits.words and value not in limits.words:
        raise _Stop(f"{value!r} is none of its words")
    if limits.pattern and not re.fullmatch(limits.pattern, value):
        raise _Stop(f"{value!r} does not look like {limits.pattern}")
    if limits.form == "path":
        # To C a text ends at its first NUL.
        what = look(value.split("\0")[0])
        if not what or (folder and what != "folder"):
            raise _Stop(f"{value!r} {'is no folder' if what else 'does not exist'}")


def _gpu_slabs(root: Node, known: Mapping[str, Key]) -> dict[str, Any]:
    """Effective values that slabs of GPU bounce buffers decide over; wrong slabs are dropped without a refusal."""
    lists: list[list[int]] = []
    for name in (GPU_SIZES, GPU_COUNTS):
        try:
            node = _find(root, name) if name in known else None
            lists.append(_list(node, known[name]) if node is not None else [])
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
    return {GPU_SIZES: sizes, GPU_COUNTS: counts, CACHE: total, BUFFER: sizes[-1]}


def _crash(effective: Mapping[str, Any]) -> Verdict | None:
    """What passes every check and ends the process a moment later."""
    sizes, counts = effective[SLAB_SIZES], effective[SLAB_COUNTS]
    if len(sizes) != len(counts):
        reason = f"{len(sizes)} entries, but posix_pool_slab_count has {len(counts)}"
        return Verdict(False, SLAB_SIZES, reason, aborts=True)
    if any(count < 0 for count in counts):
        return Verdict(False, SLAB_COUNTS, "a negative count", aborts=True)
    if effective[BUFFER] == 0:
        return Verdict(False, BUFFER, "a buffer of no size", aborts=True)
    return None
