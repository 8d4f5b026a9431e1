"""The typed keys of cufile.json for each libcufile release, and the check of a document against them.

The library ignores what it does not know and refuses to work at all over one bad value, so this is stricter than it:
an unknown key is a problem here, and so is a word that the library takes without looking.  The data is keys.yml.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from gdsdeploy.errors import nearest

#: (major, minor) of a libcufile version
Release = tuple[int, int]
#: What cufile.json holds: sections, each an object of keys.
Document = Mapping[str, Any]

OLDEST: Release = (1, 4)
#: A newer library is judged by this one until its keys are known.
NEWEST: Release = (1, 20)
#: The releases that were asked; what lies between two of them is judged by the older one.
ASKED: tuple[Release, ...] = (OLDEST, (1, 9), (1, 11), *((1, minor) for minor in range(13, NEWEST[1] + 1)))

#: Problems after which no more is guessed what an unknown key was meant to be: each guess looks at all keys.
GUESSES = 100

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
    """A key of a document (dotted) and what is wrong with it."""

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
    form: Literal["address", "path"] | None = None


class Key(_Model):
    """One key of cufile.json; versions are "major.minor" of libcufile."""

    key: str
    names: dict[str, str] | None = None
    type: _Kind
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
    logged: str | None = None
    shown: str | None = None
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
        """What gdsdeploy writes and finds right."""
        found: Limits = _latest(self.limits_from, release) if self.limits_from else self.limits
        return found

    def enforced_for(self, release: Release) -> Limits:
        """What the library itself insists on."""
        if self.enforced_from:
            found: Limits = _latest(self.enforced_from, release)
            return found
        return self.limits_for(release) if self.enforced is None else self.enforced

    def silent_in(self, release: Release) -> bool:
        """Whether the release logs nothing about the key."""
        return self.logged == "never" or (self.logged is not None and release < release_of(self.logged))

    def heeded_by(self, release: Release) -> bool:
        """Whether the release does anything about a wrong value of the key."""
        return self.heeded is None or release_of(self.heeded) <= release


def release_of(version: str) -> Release:
    """The release of a libcufile version such as ``1.9.1.3``; raises ValueError when it does not begin so."""
    found = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    if not found:
        raise ValueError(f"not a version of libcufile: {version!r}")
    return int(found[1]), int(found[2])


@functools.cache
def known_keys() -> Mapping[str, Key]:
    """Every key of every release by its dotted name, in the order of the rendered file."""
    text = resources.files(__package__).joinpath("keys.yml").read_text(encoding="utf-8")
    found: dict[str, Key] = {}
    for row in yaml.safe_load(text):
        key = Key.model_validate(row)
        for one in _expand(key):
            if one.key in found or not one.since:
                raise ValueError(f"keys.yml: {one.key}: {'given twice' if one.key in found else 'has no since'}")
            found[one.key] = one
    return found


def keys(release: Release) -> dict[str, Key]:
    """The keys that ``release`` reads."""
    judged = min(release, NEWEST)
    return {name: key for name, key in known_keys().items() if key.read_by(judged)}


def check(document: Document, release: Release) -> list[Problem]:
    """Every problem of ``document`` for that release, in the order of the document."""
    if release < OLDEST:
        oldest = _text(OLDEST)
        return [Problem("", f"libcufile {_text(release)} is older than {oldest}, the oldest one whose keys are known")]
    readable = keys(release)
    found: list[Problem] = []
    for name, value in _leaves(document, ()):
        key = readable.get(name)
        if key is None:
            found.append(_unknown(name, value, release, guess=len(found) < GUESSES))
        elif key.refused:
            found.append(Problem(name, f"gdsdeploy does not write this key: {key.refused}", "not-written"))
        else:
            found += [Problem(name, message, kind) for kind, message in _judge(value, key, min(release, NEWEST))]
    wrong = {problem.key for problem in found}
    return found + [problem for problem in _relations(document, readable, release) if problem.key not in wrong]


def get(document: Document, name: str) -> Any:
    """The value under a dotted name, or None."""
    here: Any = document
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


def _expand(key: Key) -> Iterator[Key]:
    if key.names is None:
        yield key
        return
    for name, since in key.names.items():
        yield key.model_copy(update={"key": key.key.replace("<name>", name), "since": since, "names": None})


def _latest(values: Mapping[str, Any], release: Release) -> Any:
    """The value of the newest release that is not newer than ``release``."""
    return values[max((r for r in values if release_of(r) <= release), key=release_of)]


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Dotted name and value of all that is not an object on the way to a known key."""
    name = ".".join(path)
    known = not path or any(key.startswith(name + ".") for key in known_keys())
    # An unknown section is entered too: its keys say better than its name what was meant.
    if isinstance(value, Mapping) and (known or (len(path) == 1 and value)):
        for part, item in value.items():
            yield from _leaves(item, (*path, str(part)))
    else:
        yield name, value


def _unknown(name: str, value: object, release: Release, *, guess: bool) -> Problem:
    every = known_keys()
    if any(known.startswith(name + ".") for known in every):
        return Problem(name, f"expected an object (found {_found(value)})", "wrong-type")
    key = every.get(name)
    if key is not None and release < release_of(key.since):
        return Problem(name, f"libcufile reads this key from {key.since} on; this is {_text(release)}", "newer-key")
    if key is not None:
        return Problem(name, f"libcufile reads this key up to {key.until}; this is {_text(release)}", "dropped-key")
    for known in every.values():
        if known.shown == name:
            message = f"unknown key (gdscheck prints {known.key} under this name; did you mean that?)"
            return Problem(name, message, "unknown-key", known.key)
        if known.formerly == name:
            return Problem(name, f"libcufile no longer reads this key; it is {known.key} now", "renamed-key", known.key)
    near = _nearest(name, keys(release)) if guess else None
    message = "unknown key, which libcufile would ignore" + (f" (did you mean {near}?)" if near else "")
    return Problem(name, message, "unknown-key", near)


def _nearest(name: str, known: Mapping[str, Key]) -> str | None:
    """By the whole name first; then by the last part, for a key in the wrong section."""
    near = nearest(name, known, cutoff=0.75)
    if near:
        return near
    last = {key.rsplit(".", 1)[-1]: key for key in reversed(list(known))}
    near = nearest(name.rsplit(".", 1)[-1], last, cutoff=0.8)
    return last[near] if near else None


def _judge(value: object, key: Key, release: Release) -> Iterator[tuple[str, str]]:
    """(kind, message) of each problem of a value."""
    if not _is(value, key.type):
        yield "wrong-type", f"expected {_WORDS[key.type]} (found {_found(value)})"
        return
    limits = key.limits_for(release)
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, int) and not isinstance(item, bool):
            yield from _judge_number(item, key, limits)
        elif isinstance(item, str):
            yield from _judge_text(item, limits)


def _is(value: object, kind: _Kind) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"uint", "int"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "text":
        return isinstance(value, str)
    if kind == "object":
        return isinstance(value, Mapping)
    item: _Kind = "text" if kind == "texts" else "uint"
    return isinstance(value, (list, tuple)) and all(_is(part, item) for part in value)


def _judge_number(value: int, key: Key, limits: Limits) -> Iterator[tuple[str, str]]:
    if value in limits.also:
        return
    unit = f" {key.unit}" if key.unit else ""
    low = limits.min if limits.min is not None else (-_UINT_MAX // 2 if key.type == "int" else 0)
    high = limits.max if limits.max is not None else (_UINT_MAX // 2 if key.type == "int" else _UINT_MAX)
    if not low <= value <= high:
        also = "".join(f" or {one}" for one in limits.also)
        yield "out-of-range", f"must be {low} to {high}{unit}{also} (found {_found(value)})"
    elif limits.multiple and value % limits.multiple:
        yield "not-a-multiple", f"must be a multiple of {limits.multiple}{unit} (found {value})"


def _judge_text(value: str, limits: Limits) -> Iterator[tuple[str, str]]:
    if limits.words and value not in limits.words:
        yield "unknown-word", f"must be one of {', '.join(limits.words)} (found {_found(value)})"
    if limits.pattern and not re.fullmatch(limits.pattern, value):
        yield "bad-format", f"must look like {limits.pattern} (found {_found(value)})"
    if limits.form == "path" and not value.startswith("/"):
        yield "bad-format", f"must be an absolute path (found {_found(value)})"
    if limits.form == "address":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            yield "bad-format", f"must be an IPv4 or IPv6 address (found {_found(value)})"


def _relations(document: Document, readable: Mapping[str, Key], release: Release) -> Iterator[Problem]:
    """What holds between keys; a key that is not given counts with the library's default."""

    def effective(name: str) -> Any:
        given = get(document, name)
        key = readable.get(name)
        return given if given is not None or key is None else key.default_for(min(release, NEWEST))

    buffer, largest = "properties.per_buffer_cache_size_kb", "properties.max_direct_io_size_kb"
    given = {name for name in (buffer, largest) if get(document, name) is not None}
    sizes = effective(buffer), effective(largest)
    if given and all(_is(size, "uint") for size in sizes) and sizes[0] > sizes[1]:
        yield Problem(
            buffer if buffer in given else largest,
            f"per_buffer_cache_size_kb ({sizes[0]}) may not exceed max_direct_io_size_kb ({sizes[1]})",
            "buffer-exceeds-request",
        )
    for sizes_of, counts_of in (
        ("properties.posix_pool_slab_size_kb", "properties.posix_pool_slab_count"),
        (
            "properties.gpu_bounce_buffer_slab_config.slab_size_kb",
            "properties.gpu_bounce_buffer_slab_config.slab_count",
        ),
    ):
        values = effective(sizes_of), effective(counts_of)
        lengths = [len(value) if isinstance(value, (list, tuple)) else 0 for value in values]
        lists = all(value is None or isinstance(value, (list, tuple)) for value in values)
        if lists and lengths[0] != lengths[1]:
            message = f"has {lengths[0]} entries but {counts_of.rsplit('.', 1)[-1]} has {lengths[1]}"
            yield Problem(sizes_of, message, "list-lengths")
    force, allow = "properties.force_compat_mode", "properties.allow_compat_mode"
    if effective(force) is True and effective(allow) is False:
        message = "contradicts allow_compat_mode: false, which the library then ignores"
        yield Problem(force, message, "compat-contradiction")


def _found(value: object) -> str:
    """A value in a message, cut where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
