"""The typed keys of cufile.json for each libcufile release, and checks of a document and of keys against each other.

The library ignores unknown keys and refuses to work at all over one bad value.  ``check`` is stricter: an unknown key
is a problem, and so is a word that the library accepts without a check.  The data is keys.yml.

``relations`` are about keys that are right one by one: what one key does to another, and values without an effect.  The
facts are from the libraries' own answers and logs, from the comments of NVIDIA's cufile.json, and from the
documentation of NVIDIA's gds-diag.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gdsdeploy.errors import nearest
from gdsdeploy.files import yamlfile
from gdsdeploy.host.libcufile import p2pdma
from gdsdeploy.host.subjects import rdma
from gdsdeploy.host.subjects.cufile_json import LIST, SHOWN, TABLE, key_name, listed

#: (major, minor) of a libcufile version
Release = tuple[int, int]
#: What cufile.json holds: sections, each an object of keys.
Document = Mapping[str, Any]
#: The names of a member and of the objects around it; `key_name` is its text.
KeyPath = tuple[str, ...]

OLDEST: Release = (1, 4)
#: A newer library is judged as this one until its keys are known.
NEWEST: Release = (1, 20)
#: The releases that were examined; a release between two of them is judged as the older one.
EXAMINED_RELEASES: tuple[Release, ...] = (OLDEST, (1, 9), (1, 11), *((1, minor) for minor in range(13, NEWEST[1] + 1)))

#: Most problems with a guess of the intended key: each guess compares all keys.
GUESSES = 100

SLAB_SIZES = "properties.posix_pool_slab_size_kb"
SLAB_COUNTS = "properties.posix_pool_slab_count"
GPU_SIZES = "properties.gpu_bounce_buffer_slab_config.slab_size_kb"
GPU_COUNTS = "properties.gpu_bounce_buffer_slab_config.slab_count"
STATISTICS = "profile.cufile_stats"
BUFFER = "properties.per_buffer_cache_size_kb"
CACHE = "properties.max_device_cache_size_kb"
BATCH = "properties.io_batchsize"
LARGEST = "properties.max_direct_io_size_kb"
ALLOW_COMPAT = "properties.allow_compat_mode"
FORCE_COMPAT = "properties.force_compat_mode"
P2PDMA = p2pdma.GLOBAL
#: The same for NVMe disks, from 1.16 on.
NVME_P2PDMA = "block.nvme.use_pci_p2pdma"

#: One unsigned key above this aborts the process that reads the file.
_UINT_MAX = 2**32 - 1

_Kind = Literal["bool", "uint", "int", "text", "texts", "uints", "object"]
_WORDS = {
    "bool": "true or false",
    "uint": "a whole number",
    "int": "a whole number",
    "text": "text",
    "texts": "a list of texts",
    "uints": "a list of whole numbers",
    "object": "an object",
}


@dataclass(frozen=True)
class Problem:
    """A key of a document, by its key_name, and what is wrong with it."""

    key: str
    message: str
    #: stable name of the kind of problem; docs/cufile.md lists them
    id: str = field(default="", compare=False)
    #: the key that was probably meant
    near: str | None = field(default=None, compare=False)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Model):
    """What a value may be; a list is judged item by item."""

    min: int | None = None
    max: int | None = None
    multiple: int | None = None
    #: single values outside min..max that are accepted
    also: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    pattern: str | None = None
    form: Literal["adapter", "path"] | None = None


class Key(_Model):
    """One key of cufile.json; versions are "major.minor" of libcufile."""

    key: str
    names: dict[str, str] | None = None
    type: _Kind
    rows: tuple[str, ...] = ()
    since: str = ""
    until: str | None = None
    unit: str = ""
    default: Any = None
    defaults: dict[str, Any] | None = None
    limits: Limits = Limits()
    limits_from: dict[str, Limits] | None = None
    bits: Literal[8, 32, 64] = 64
    enforced: Limits | None = None
    enforced_from: dict[str, Limits] | None = None
    heeded: str | None = None
    clamped: bool = False
    formerly: str | None = None
    successor: str | None = None
    refused: str | None = None
    meaning: str

    def read_by(self, release: Release) -> bool:
        """Whether this release of the library knows the key."""
        return release_of(self.since) <= release and (self.until is None or release <= release_of(self.until))

    def default_for(self, release: Release) -> Any:
        """The library's own value, or None where it is not known."""
        return _latest(self.defaults, release) if self.defaults else self.default

    def limits_for(self, release: Release) -> Limits:
        """What gdsdeploy writes and accepts."""
        limits: Limits = _latest(self.limits_from, release) if self.limits_from else self.limits
        return limits

    def enforced_for(self, release: Release) -> Limits:
        """What the library itself enforces."""
        limits: Limits | None = _latest(self.enforced_from, release) if self.enforced_from else self.enforced
        return self.limits_for(release) if limits is None else limits

    def heeded_by(self, release: Release) -> bool:
        """Whether the release reacts to a wrong value of the key."""
        return self.heeded is None or release_of(self.heeded) <= release


def release_of(version: str) -> Release:
    """The release of a libcufile version such as ``1.9.1.3``; raises ValueError for anything else."""
    match = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    if not match:
        raise ValueError(f"not a version of libcufile: {version!r}")
    return int(match[1]), int(match[2])


def release_text(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


@functools.cache
def known_keys() -> Mapping[str, Key]:
    """Every key of every release by its dotted name, in the order of the rendered file."""
    text = resources.files(__package__).joinpath("keys.yml").read_text(encoding="utf-8")
    by_name: dict[str, Key] = {}
    for row in yamlfile.shipped(text):
        given = Key.model_validate(row)
        named = [
            given.model_copy(update={"key": given.key.replace("<name>", name), "since": since, "names": None})
            for name, since in (given.names or {}).items()
        ]
        for key in named or [given]:
            if key.key in by_name or not key.since:
                raise ValueError(f"keys.yml: {key.key}: {'given twice' if key.key in by_name else 'has no since'}")
            by_name[key.key] = key
    return by_name


@functools.lru_cache(maxsize=64)
def keys(release: Release) -> Mapping[str, Key]:
    """The keys that ``release`` reads."""
    examined_release = min(release, NEWEST)
    return {name: key for name, key in known_keys().items() if key.read_by(examined_release)}


def check(document: Document, release: Release) -> list[Problem]:
    """Every problem of ``document`` for that release, in the order of the document."""
    if release < OLDEST:
        shown, oldest = release_text(release), release_text(OLDEST)
        return [Problem("", f"libcufile {shown} is older than {oldest}, the oldest one whose keys are known")]
    readable = keys(release)
    problems: list[Problem] = []
    for path, value in _leaves(document, ()):
        name = key_name(path)
        key = readable.get(name)
        if key is None:
            problems.append(_unknown(path, value, release, guess=len(problems) < GUESSES))
        elif key.refused:
            problems.append(Problem(name, f"gdsdeploy does not write this key: {key.refused}", "not-written"))
        else:
            problems += _judge(path, value, key, min(release, NEWEST))
    wrong = {problem.key for problem in problems}
    contradictions = _contradictions(settings_of(document, release))
    return problems + [problem for problem in contradictions if problem.key not in wrong]


def get(document: Document, name: str) -> Any:
    """The value under a dotted name, or None."""
    node: Any = document
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _latest(values: Mapping[str, Any], release: Release) -> Any:
    """The value of the newest release that is not newer than ``release``."""
    return values[max((r for r in values if release_of(r) <= release), key=release_of)]


def _leaves(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    """Path and value of everything except objects on the way to a known key."""
    is_section = not path or any(key.startswith(key_name(path) + ".") for key in known_keys())
    # An unknown section is entered too: its keys show better than its name which section was intended.
    if isinstance(value, Mapping) and (is_section or (len(path) == 1 and value)):
        for part, member in value.items():
            yield from _leaves(member, (*path, str(part)))
    else:
        yield path, value


def _unknown(path: KeyPath, value: object, release: Release, *, guess: bool) -> Problem:
    every, name, joined = known_keys(), key_name(path), ".".join(path)
    if joined != name and joined in every:
        section, _, last = joined.rpartition(".")
        message = f"unknown key, which libcufile would ignore: a dot isn't a path (did you mean {last} in {section}?)"
        return Problem(name, message, "unknown-key")
    if any(candidate.startswith(name + ".") for candidate in every):
        return Problem(name, f"expected an object (found {shown(value)})", "wrong-type")
    key = every.get(name)
    other = other_name(key, release) if key is not None else None
    if other is not None:
        message = f"libcufile {release_text(release)} doesn't read this key; it is {other} there"
        return Problem(name, message, "renamed-key", other)
    if key is not None and release < release_of(key.since):
        message = f"libcufile reads this key from {key.since} on; this is {release_text(release)}"
        return Problem(name, message, "newer-key")
    if key is not None:
        message = f"libcufile reads this key up to {key.until}; this is {release_text(release)}"
        return Problem(name, message, "dropped-key")
    if printed := {there: here for here, there in SHOWN.items()}.get(name):
        message = f"unknown key (gdscheck prints {printed} under this name; did you mean that?)"
        return Problem(name, message, "unknown-key", printed)
    for candidate in every.values():
        if candidate.formerly == name:
            return Problem(
                name, f"libcufile no longer reads this key; it is {candidate.key} now", "renamed-key", candidate.key
            )
    section = key_name(path[-1:])
    if any(candidate.startswith(section + ".") for candidate in every):
        message = f"unknown key, which libcufile would ignore: {section} is a section at the top of the file"
        return Problem(name, message, "unknown-key", section)
    near = _nearest(path, keys(release)) if guess else None
    message = "unknown key, which libcufile would ignore" + (f" (did you mean {near}?)" if near else "")
    return Problem(name, message, "unknown-key", near)


def other_name(key: Key, release: Release) -> str | None:
    """The name under which ``release`` reads what other releases call ``key``."""
    same = (other for other in known_keys().values() if key.key == other.successor or other.key == key.successor)
    return next((other.key for other in same if other.read_by(release)), None)


def _nearest(path: KeyPath, candidates: Mapping[str, Key]) -> str | None:
    """By the whole name first; then by the last part, for a key in the wrong section."""
    near = nearest(".".join(path), candidates, cutoff=0.75)
    if near:
        return near
    last = {key.rsplit(".", 1)[-1]: key for key in reversed(list(candidates))}
    near = nearest(path[-1], last, cutoff=0.8)
    return last[near] if near else None


def _judge(path: KeyPath, value: object, key: Key, release: Release) -> Iterator[Problem]:
    """Each problem of a value, and of what is in a table."""
    name, limits = key_name(path), key.limits_for(release)
    if not _is(value, key.type):
        yield Problem(name, f"expected {_WORDS[key.type]} (found {shown(value)})", "wrong-type")
    elif isinstance(value, Mapping):
        yield from _judge_table(path, value, key, release)
    else:
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, int) and not isinstance(part, bool):
                yield from _judge_number(name, part, key, limits)
            elif isinstance(part, str):
                yield from _judge_text(name, part, limits, release)


def _judge_table(path: KeyPath, table: Mapping[str, object], key: Key, release: Release) -> Iterator[Problem]:
    for folder, row in table.items():
        at = (*path, folder)
        yield from _judge_text(key_name(at), folder, Limits(form="path"), release)
        if not isinstance(row, Mapping):
            yield Problem(key_name(at), f"expected an object (found {shown(row)})", "wrong-type")
            continue
        for name, value in row.items():
            if name in key.rows:
                yield from _judge((*at, name), value, known_keys()[key_name((*path[:-1], name))], release)
            else:
                near = nearest(name, key.rows)
                message = "unknown key, which libcufile would ignore" + (f" (did you mean {near}?)" if near else "")
                yield Problem(key_name((*at, name)), message, "unknown-key", near)
    addresses = listed(table)
    # The library reads the rows in this order.
    last = max(table, key=lambda folder: folder.encode("utf-8", "surrogatepass"), default="")
    if any(addresses.values()) and not addresses[last]:
        message = "has no addresses; for an empty list in the last row, libcufile drops the whole table"
        yield Problem(key_name((*path, last)), message, "empty-row")


_TYPES: Mapping[_Kind, type] = {"bool": bool, "uint": int, "int": int, "text": str, "object": Mapping}


def _is(value: object, kind: _Kind) -> bool:
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    part_kind: _Kind = "text" if kind == "texts" else "uint"
    return isinstance(value, (list, tuple)) and all(_is(part, part_kind) for part in value)


def _judge_number(name: str, value: int, key: Key, limits: Limits) -> Iterator[Problem]:
    if value in limits.also:
        return
    unit = f" {key.unit}" if key.unit else ""
    low = limits.min if limits.min is not None else (-_UINT_MAX // 2 if key.type == "int" else 0)
    high = limits.max if limits.max is not None else (_UINT_MAX // 2 if key.type == "int" else _UINT_MAX)
    if not low <= value <= high:
        also = "".join(f" or {number}" for number in limits.also)
        yield Problem(name, f"must be {low} to {high}{unit}{also} (found {shown(value)})", "out-of-range")
    elif limits.multiple and value % limits.multiple:
        yield Problem(name, f"must be a multiple of {limits.multiple}{unit} (found {value})", "not-a-multiple")


def _judge_text(name: str, value: str, limits: Limits, release: Release) -> Iterator[Problem]:
    if limits.words and value not in limits.words:
        yield Problem(name, f"must be one of {', '.join(limits.words)} (found {shown(value)})", "unknown-word")
    if limits.pattern and not re.fullmatch(limits.pattern, value):
        yield Problem(name, f"must look like {limits.pattern} (found {shown(value)})", "bad-format")
    if limits.form == "path" and not value.startswith("/"):
        yield Problem(name, f"must be an absolute path (found {shown(value)})", "bad-format")
    if limits.form == "adapter" and (why := rdma.refusal(value, release)):
        yield Problem(name, f"{why} (found {shown(value)})", "bad-format")


@dataclass(frozen=True)
class Settings:
    """A file's values by dotted key, for one release."""

    values: Mapping[str, Any]
    release: Release

    def effective(self, name: str) -> Any:
        """The file's value, else the library's default, else None."""
        value, key = self.values.get(name), keys(self.release).get(name)
        return value if value is not None or key is None else key.default_for(self.release)

    def addresses(self, name: str) -> list[str]:
        """The addresses of a list or of a mount table; empty if the value has another type."""
        return [address for addresses in listed(self.values.get(name)).values() for address in addresses]


def settings_of(document: Document, release: Release) -> Settings:
    """What the keys of that release have in the document; null counts as a missing key."""
    values = {name: value for name in keys(release) if (value := get(document, name)) is not None}
    return Settings(values, min(release, NEWEST))


def _contradictions(settings: Settings) -> Iterator[Problem]:
    """Contradictions between keys; a key that the document doesn't set counts with the library's default."""
    effective = settings.effective
    present = [name for name in (BUFFER, LARGEST) if name in settings.values]
    sizes = effective(BUFFER), effective(LARGEST)
    if present and all(_is(size, "uint") for size in sizes) and sizes[0] > sizes[1]:
        message = f"per_buffer_cache_size_kb ({sizes[0]}) may not exceed max_direct_io_size_kb ({sizes[1]})"
        yield Problem(present[0], message, "buffer-exceeds-request")
    for sizes_of, counts_of in ((SLAB_SIZES, SLAB_COUNTS), (GPU_SIZES, GPU_COUNTS)):
        values = effective(sizes_of), effective(counts_of)
        lengths = [len(value) if isinstance(value, (list, tuple)) else 0 for value in values]
        lists = all(value is None or isinstance(value, (list, tuple)) for value in values)
        if lists and lengths[0] != lengths[1]:
            message = f"has {lengths[0]} entries but {counts_of.rsplit('.', 1)[-1]} has {lengths[1]}"
            yield Problem(sizes_of, message, "list-lengths")
    if effective(FORCE_COMPAT) is True and effective(ALLOW_COMPAT) is False:
        message = "contradicts allow_compat_mode: false, which the library then ignores"
        yield Problem(FORCE_COMPAT, message, "compat-contradiction")
    yield from half_set_p2pdma(settings.values, settings.release)


def half_set_p2pdma(values: Mapping[str, Any], release: Release) -> Iterator[Problem]:
    """The missing half of PCI P2PDMA, which from 1.16 on takes ``P2PDMA`` and the key of some kind of storage.

    values: dotted key → the file's value, None for none.  Compat mode, where it is forced, makes both moot.
    """
    if values.get(FORCE_COMPAT) is True:
        return
    storage_keys = [row.name for row in p2pdma.keys_for(min(release, NEWEST))]
    own = [name for name in storage_keys if values.get(name) is True]
    if values.get(P2PDMA) is True and storage_keys and not own:
        since = release_text(p2pdma.OWN_KEYS_SINCE)
        message = f"does nothing from {since} on without the key of some storage, such as {NVME_P2PDMA}: true"
        yield Problem(P2PDMA, message, "p2pdma-half-set")
    elif values.get(P2PDMA) is not True:
        yield from (Problem(name, f"does nothing without {P2PDMA}: true", "p2pdma-half-set") for name in own)


def shown(value: object) -> str:
    """A value in a message, cut where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


_ROUTING = "properties.rdma_dynamic_routing"


def relations(settings: Settings, wrong: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    """(finding id, dotted key, message) of what concerns a key that isn't ``wrong`` by itself."""
    for name, value in settings.values.items():
        if name not in wrong:
            for about in (_paths, _needs, _addresses, _sizes):
                yield from ((kind, name, message) for kind, message in about(name, value, settings))


def trapped(settings: Settings) -> bool:
    """Whether newer releases refuse a request size that this one accepts: their buffer is larger by default."""
    largest = settings.values.get(LARGEST)
    return settings.release < (1, 13) and BUFFER not in settings.values and type(largest) is int and largest < 1024


#: (finding id, message)
_Relations = Iterator[tuple[str, str]]
_WITHOUT_ROUTE = [row.name for row in p2pdma.storage_keys() if not row.route]


def _paths(name: str, value: Any, settings: Settings) -> _Relations:
    if value is True and name.endswith(".use_pci_p2pdma") and settings.values.get(FORCE_COMPAT) is True:
        yield "p2pdma-contradiction", "contradicts force_compat_mode: true, which wins"
    if value is True and name in _WITHOUT_ROUTE:
        route = "NVIDIA lists no PCI peer-to-peer route to this file system, although libcufile then logs p2pdma for it"
        yield "no-p2pdma-route", route


#: Key → the key without which it does nothing, and the value that this one has to have; None: any.
_NEEDS: Mapping[str, tuple[str, bool | None]] = {
    "properties.rdma_dynamic_routing_order": (_ROUTING, True),
    "miscellaneous.static_routing_filepath": ("miscellaneous.enable_static_routing", True),
    "miscellaneous.static_config_filepath": ("miscellaneous.enable_static_config", True),
    "miscellaneous.enable_static_routing": ("miscellaneous.static_routing_filepath", None),
    "miscellaneous.enable_static_config": ("miscellaneous.static_config_filepath", None),
    "properties.rdma_max_backup_devices": ("properties.rdma_multipath_enabled", True),
}


def _needs(name: str, value: Any, settings: Settings) -> _Relations:
    other, needed = _NEEDS.get(name, ("", None))
    present = other in settings.values and (needed is None or settings.values[other] is needed)
    if other and value is not False and not present:
        yield "no-effect", f"does nothing without {other}" + (": true" if needed else "")


def _addresses(name: str, value: Any, settings: Settings) -> _Relations:
    lists = [one for one in settings.values if one.endswith((LIST, TABLE))]
    if name == _ROUTING and value is True and not any(map(settings.addresses, lists)):
        yield "no-effect", "does nothing without addresses, in an rdma_dev_addr_list or a mount_table"
    addresses = settings.addresses(name) if name in lists else []
    if addresses and name.endswith(TABLE) and settings.addresses(name.removesuffix(TABLE) + LIST):
        message = "gives addresses by mount, and this file system's rdma_dev_addr_list gives them for all mounts"
        yield "two-address-lists", message


def _sizes(name: str, value: Any, settings: Settings) -> _Relations:
    if name == LARGEST and trapped(settings):
        yield "upgrade-trap", "without per_buffer_cache_size_kb this is fatal from libcufile 1.13 on"
    if name == "properties.rdma_topN_ranks" and type(value) is int and value < 1:
        message = f"must be 1 or more: of the distances between GPU and interface, so many count (found {value})"
        yield "no-near-interface", message
    # Reported once, at the first of the keys that the file sets.  Slabs (from 1.17 on) replace both sizes.
    if name == next((one for one in settings.values if one in {CACHE, BUFFER, BATCH}), None):
        cache, buffer, batch = (settings.effective(one) for one in (CACHE, BUFFER, BATCH))
        numbers = all(type(one) is int for one in (cache, buffer, batch))
        if GPU_SIZES not in settings.values and numbers and cache < buffer * batch:
            message = (
                "max_device_cache_size_kb holds fewer bounce buffers of per_buffer_cache_size_kb than io_batchsize"
            )
            yield "small-cache", message
    is_list = name == GPU_SIZES and isinstance(value, list) and all(type(size) is int for size in value)
    if is_list and value != sorted(set(value)):
        yield "slab-order", f"must ascend (found {shown(value)})"
