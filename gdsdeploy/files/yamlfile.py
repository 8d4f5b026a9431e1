"""Untrusted YAML, within bounds: size, nesting, aliases, numbers; every mistake has its place.

libyaml makes the events where PyYAML has it; PyYAML's composer in Python makes the nodes, because the one in C has no
bound for nesting but the end of its stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.reader import Reader

from gdsdeploy import paths
from gdsdeploy.errors import GdsError
from gdsdeploy.host.io import reading

#: Bytes of a file.
LIMIT: Final = 4 * 1024 * 1024
#: Lists and mappings in each other.
DEPTH: Final = 64
#: Values of a document, those that an alias repeats counted again.
VALUES: Final = 400_000
#: What an escape can write and no program takes: it ends a file's name, or can't be encoded.
_NOT_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
_TEXT: Final = "tag:yaml.org,2002:str"
_KEYS: Final = {_TEXT, "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"}
#: A key as fleet files and locks have them; an error quotes no other.
_PLAIN_KEY: Final = re.compile("[a-z0-9_.-]{1,40}")
_NUMBER: Final = re.compile("[-+0-9.,:_ TtZzxXeE]*")
_QUOTED: Final = re.compile("'([^']*)'")
_ABSENT: Final = ("no such file", "See examples/ for files to start from")


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is not read here."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Bounded(Composer):
    """Nodes within the bounds, each key a text; keys that a mapping has twice are listed."""

    peek_event: Any

    def compose_document(self) -> Any:
        self._depth, self._values = 0, 0
        self._sizes: dict[str, int] = {}
        self.repeated: list[tuple[yaml.Mark, str]] = []
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.peek_event(), self._values
        self._depth += 1
        if self._depth > DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise _Refused(f"nested more than {DEPTH} deep", event.start_mark)
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            self._repeat(event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._values += 1
        if self._values > VALUES:
            raise _Refused(f"more than {VALUES} values, with what aliases repeat", event.start_mark)
        if event.anchor is not None:
            self._sizes[event.anchor] = self._values - before
        return node

    def _repeat(self, event: Any) -> None:
        """Count what an alias stands for; an anchor without a size is of what is still being read."""
        if event.anchor not in self._sizes:
            raise _Refused(f"*{event.anchor} is inside of &{event.anchor}, which it would repeat", event.start_mark)
        self._values += self._sizes[event.anchor]

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag not in _KEYS or not isinstance(key, yaml.ScalarNode):
                name = quoted(key.value) if isinstance(key.value, str) else "this"
                raise _Refused(f"{name} is not text, as keys are: write it in quotes", key.start_mark)
            if key.value in names:
                self.repeated.append((key.start_mark, key.value))
            names.add(key.value)
        return node


_PLAIN: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Loader(_Bounded, _PLAIN):  # type: ignore[misc]
    """Makes plain values."""

    def __init__(self, text: str) -> None:
        _PLAIN.__init__(self, text)
        Composer.__init__(self)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as cause:
            kind = node.tag.rpartition(":")[2].replace("timestamp", "date")
            why = f": {cause}" if kind == "date" and isinstance(cause, ValueError) else ""
            value = _short(node.value) if _NUMBER.fullmatch(str(node.value)) else "this"
            raise _Refused(f"{value} cannot be read as {kind}{why}", node.start_mark) from None
        if isinstance(value, str) and (wrong := _NOT_TEXT.search(value)):
            raise _Refused(f"the character U+{ord(wrong.group()):04X} is not text", node.start_mark)
        if isinstance(value, int) and value.bit_length() > 64:
            raise _Refused(f"{_short(node.value)} is too large for a number", node.start_mark)
        return value


class _Texts(_Bounded, _TEXTS):  # type: ignore[misc]
    """Makes texts, lists and mappings only: a stream 5.10 is not the number 5.1."""

    def __init__(self, text: str | bytes) -> None:
        _TEXTS.__init__(self, text)
        Composer.__init__(self)


@dataclass(frozen=True)
class Document:
    """A YAML file: what it holds, and the nodes that have the places."""

    path: Path
    root: yaml.Node
    value: Any
    #: (place, key) of each key that a mapping has before
    repeated: list[tuple[yaml.Mark, str]]


def read(path: Path, *, error: type[GdsError], absent: tuple[str, str] = _ABSENT, links: bool = True) -> Document:
    """Read a YAML file; raises ``error`` that names the file, line and column, and the next step.

    absent: what is wrong, and the next step, where there is no such file.
    links: whether it may be a link that leads out of its folder.
    """
    return parse(path, content(path, error=error, absent=absent, links=links), error=error, absent=absent)


def parse(path: Path, data: bytes, *, error: type[GdsError], absent: tuple[str, str] = _ABSENT) -> Document:
    """``data``, the content of the YAML file ``path``, as :func:`read` reads it."""
    loader = _Loader(_text(path, data, error))
    try:
        root = loader.get_single_node()
        if root is None:
            raise error(f"{path}: the file is empty", hint=absent[1])
        return Document(path, root, loader.construct_document(root), loader.repeated)
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        words = str(cause.problem or cause.context)
        if not isinstance(cause, _Refused):
            # PyYAML quotes what it found, and the file may be another than the user thinks.
            words = "not valid YAML: " + _QUOTED.sub(lambda match: f"'{quoted(match[1])}'", words)
        raise error(f"{place}: {words}") from cause


def documents(text: bytes) -> Iterator[Any]:
    """The documents of a YAML stream, of texts, lists and mappings; raises yaml.YAMLError."""
    loader = _Texts(text)
    while loader.check_node():
        yield loader.construct_document(loader.get_node())


def shipped(text: str) -> Any:
    """The value of a table of gdsdeploy itself: no bounds, and by libyaml a tenth of the time of yaml.safe_load."""
    return yaml.load(text, Loader=_PLAIN)  # noqa: S506 # nosec B506 # both loaders are safe ones


def quoted(key: str) -> str:
    """A key, or a part of it, as an error quotes it: what looks like no key may be a line of a file with secrets."""
    return key if len(key) <= 3 or _PLAIN_KEY.fullmatch(key) else "…"


def content(path: Path, *, error: type[GdsError], absent: tuple[str, str] = _ABSENT, links: bool = True) -> bytes:
    """The bytes of a YAML file, at most LIMIT; raises ``error`` as :func:`read` does."""
    if not links:
        require_no_way_out(path, error)
    try:
        data = reading.beginning(str(path), LIMIT, pipes=links)
    except FileNotFoundError:
        raise error(f"{path}: {absent[0]}", hint=absent[1]) from None
    except IsADirectoryError:
        raise error(f"{path}: this is a folder", hint="Name the file in it") from None
    except PermissionError:
        raise error(f"{path}: you may not read this file", hint=f"Try: sudo chmod a+r {path}") from None
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror}", hint=reading.look(str(path))) from cause
    if len(data) > LIMIT:
        raise error(f"{path}: larger than {LIMIT >> 20} MiB", hint="Is it the right file? Fleets and locks are smaller")
    return data


def require_no_way_out(path: Path, error: type[GdsError]) -> None:
    """Raise ``error`` where ``path`` is a link that leads out of its folder: its reader trusts that folder alone."""
    if paths.is_outside(path.parent, path):
        hint = "Review where the link leads, and name that file, or put the file itself here"
        raise error(f"{path}: is a link that leads out of its folder, so it isn't read", hint=hint)


def _text(path: Path, data: bytes, error: type[GdsError]) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        before = data[: cause.start].decode("utf-8-sig", "replace")
        raise error(f"{_at(path, before)}: not text in UTF-8", hint="Save the file as text in UTF-8") from None
    if match := Reader.NON_PRINTABLE.search(text):
        place, code = _at(path, text[: match.start()]), ord(match.group())
        raise error(f"{place}: the character U+{code:04X} is not text", hint="Save the file as text in UTF-8")
    return text


def _at(path: Path, before: str) -> str:
    """The place behind the text ``before``."""
    lines = re.split("\r\n|\n|\r", before)
    return f"{path}:{len(lines)}:{len(lines[-1]) + 1}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else "this"
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"
