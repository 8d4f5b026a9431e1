"""The effect of a configuration: each key with its value in the file, in a real libcufile, and by default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gdsdeploy.cufile import document
from gdsdeploy.cufile.model import NEWEST, Release, half_set_p2pdma, keys, release_of
from gdsdeploy.host.subjects.cufile_json import SHOWN, TABLE, as_logged, key_name, logged, same
from tests.cufile.library import Answer, Library

#: set: as intended; differs: the library uses another value; ignored: this release doesn't know the key; not logged: it
#: knows the key but doesn't log its value; half-set: it does nothing without another key of PCI P2PDMA; default and
#: follows: the file doesn't set the key, and the value is the default, or follows from another key
State = Literal["set", "differs", "ignored", "not logged", "half-set", "default", "follows"]
#: States of a key that the file sets in vain.
IN_VAIN = ("differs", "ignored", "half-set")

#: Fields of an answer in its JSON object.
_ANSWER_KEYS = ("accepted", "reason", "key", "error", "hung", "seconds")
#: An error in a log.
_ERROR = re.compile(r"\] ERROR\s+\S+?:\d+ (.*\S)")


@dataclass(frozen=True)
class Value:
    """One key of cufile.json; values as the library logs them, None: no value."""

    key: str
    intended: str | None
    effective: str | None
    default: str | None
    state: State


@dataclass(frozen=True)
class Effective:
    """One file and its effect."""

    file: str
    libcufile: str
    answer: Answer
    #: keys of the file first, in its order, then all others; empty when the library refused the file
    values: tuple[Value, ...]

    @property
    def problem(self) -> str | None:
        """Why the file doesn't have the intended effect, or None."""
        answer = self.answer
        if answer.accepted is False:
            key = f"{answer.key}: " if answer.key else ""
            return f"refused by libcufile {self.libcufile}: {key}{answer.reason}"
        if answer.accepted is None or not answer.effective:
            end = "did not return" if answer.hung else f"returned {answer.error}" if answer.error else "ended"
            why = [*_ERROR.findall(answer.log)[-1:], *answer.output[-1:]]
            return f"libcufile {self.libcufile} {end} without logging its values" + (f": {why[0]}" if why else "")
        lost = [f"{v.key} ({v.state})" for v in self.values if v.state in IN_VAIN]
        return f"without the intended effect: {', '.join(lost)}" if lost else None

    def to_json(self) -> str:
        """One line."""
        answer = {name: getattr(self.answer, name) for name in _ANSWER_KEYS}
        values = [asdict(value) for value in self.values]
        document = {"file": self.file, "libcufile": self.libcufile, **answer, "problem": self.problem, "values": values}
        return json.dumps(document, ensure_ascii=False)


def effective(library: Library, files: Mapping[str, bytes], *, folders: Sequence[str] = ()) -> Iterator[Effective]:
    """Ask ``library`` about each of ``files`` (name → content), in their order.

    The defaults are those of an empty configuration.  Raises the exceptions of Library.ask_all.
    """
    answers = library.ask_all([b"{}", *files.values()], folders=folders)
    empty = next(answers)
    version = library.version_in(empty)
    release = min(release_of(version), NEWEST)
    for (name, content), answer in zip(files.items(), answers, strict=True):
        values = values_of(content, answer, empty.effective, release) if answer.effective else ()
        yield Effective(name, version, answer, tuple(values))


def values_of(content: bytes, answer: Answer, defaults: Mapping[str, str], release: Release) -> Iterator[Value]:
    """The keys of a file that the library took, then all others."""
    release_keys, intended, file_keys = keys(release), dict(keys_of(content)), set()
    half_set = {problem.key for problem in half_set_p2pdma(intended, release)}
    for key, value in intended.items():
        used = logged(key, answer.effective)
        file_keys.add(SHOWN.get(key, key))
        state: State = "set"
        if used is None:
            state = "not logged" if key in release_keys else "ignored"
        elif not same(value, used):
            state = "differs"
        elif key in half_set:
            state = "half-set"
        yield Value(key, as_logged(value), used, logged(key, defaults), state)
    names = {shown: key for key, shown in SHOWN.items()}
    for shown, used in answer.effective.items():
        if shown not in file_keys:
            default = defaults.get(shown)
            yield Value(names.get(shown, shown), None, used, default, "default" if used == default else "follows")


def keys_of(content: bytes) -> Iterator[tuple[str, Any]]:
    """key_name and value of each key that counts; of a repeated key, the last."""
    open_: list[tuple[tuple[str, ...], document.Node]] = [((), document.read(content).root)]
    while open_:
        path, node = open_.pop()
        if node.kind == "object" and path[-1:] != (TABLE,):
            inside = {member.name: member.value for member in node.members}
            open_ += [((*path, name), value) for name, value in reversed(inside.items())]
        elif path and node.kind != "null":
            yield key_name(path), plain(node)


def plain(node: document.Node) -> Any:
    """The value as Python has it; of repeated names the last."""
    if node.kind == "object":
        return {member.name: plain(member.value) for member in node.members}
    return [plain(element) for element in node.items] if node.kind == "array" else node.value
