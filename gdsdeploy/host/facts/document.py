"""Ask an evidence document questions without trusting its shape.

Three answers are kept apart: what was found, ``None`` for what was looked for and is not there, and Unknown for what
was not looked for or could not be read.  Only the second proves absence.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Union

from .unknown import Unknown

#: Errors that mean "there is no such thing".
ABSENT = ("ENOENT", "ENOTDIR", "ENODEV", "ENXIO")
#: What is said of an entry that is an error, unless its reader has better words.
READ = "could not be read"
#: As in process.py.
NOT_FOUND = 127
TIMED_OUT = 124


@dataclass(frozen=True)
class Ran:
    """A program's run: its exit status (124: killed at its time limit, 127: not installed) and what it wrote."""

    status: int
    stdout: str
    stderr: str
    log: str = ""


class Document:
    """An evidence document; every method answers for every input, however malformed."""

    def __init__(self, value: Any) -> None:
        self._value: Dict[str, Any] = value if isinstance(value, dict) else {}

    def text(self, path: str) -> Union[str, Unknown, None]:
        """The whole of a file."""
        value = self._entry("files", path)
        return value if isinstance(value, str) or value is None else _unknown(path, value)

    def line(self, path: str) -> Union[str, Unknown, None]:
        """A file of one line, without its end."""
        text = self.text(path)
        return text.strip() if isinstance(text, str) else text

    def binary(self, path: str) -> Union[str, Unknown, None]:
        value = self._entry("binaries", path)
        return value if isinstance(value, str) or value is None else _unknown(path, value)

    def link(self, path: str) -> Union[str, Unknown, None]:
        """A link's target, made absolute."""
        value = self._entry("links", path)
        if isinstance(value, str):
            return posixpath.normpath(posixpath.join(posixpath.dirname(path), value))
        return value if value is None else _unknown(path, value)

    def names(self, path: str) -> Union[Tuple[str, ...], Unknown, None]:
        """The names in a folder, or those that match a pattern."""
        value = self._entry("listings", path)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return value if value is None else _unknown(path, value)

    def lines(self, path: str) -> Union[Tuple[str, ...], Unknown, None]:
        """The kept lines of a large file."""
        value = self._entry("excerpts", path)
        if isinstance(value, dict) and _texts(value.get("lines")):
            return tuple(value["lines"])
        return value if value is None else _unknown(path, value)

    def looked_for(self, path: str, word: str) -> bool:
        """Whether the kept lines of a large file would have ``word``: recordings of older programs kept fewer."""
        value = self._section("excerpts").get(path)
        return isinstance(value, dict) and word in str(value.get("pattern", ""))

    def ran(self, name: str) -> Union[Ran, Unknown]:
        """A program's run; Unknown if it was not started, was killed at its time limit, or wrote more than was kept."""
        done = self.attempted(name)
        if isinstance(done, Unknown):
            return done
        if done.status == NOT_FOUND:
            return Unknown(f"{name} could not be run: {done.stderr.strip()}")
        if done.status == TIMED_OUT:
            return Unknown(f"{name} had not ended when its time was up")
        return done

    def attempted(self, name: str) -> Union[Ran, Unknown]:
        """A program's run, however it ended; Unknown if it was not started or wrote more than was kept."""
        value = self._section("commands").get(name)
        if not isinstance(value, dict):
            return Unknown(f"{name} was not run")
        # None for what is missing: what a program wrote is then not known, rather than nothing.
        parts = [value.get("status"), value.get("stdout"), value.get("stderr"), value.get("log", "")]
        status, stdout, stderr, log = parts
        if not isinstance(status, int) or not all(isinstance(item, str) for item in parts[1:]):
            return Unknown(f"the record of {name} is malformed")
        if "error" in value:
            return Unknown("the output of {} is {}".format(name, value["error"]))
        return Ran(status, stdout, stderr, log)

    def module(self, path: str) -> Union[Dict[str, Any], Unknown]:
        """What was read from a module file."""
        value = self._section("modules").get(path)
        if not isinstance(value, dict):
            return Unknown(f"{path} was not read")
        if "error" in value:
            return Unknown(str(value["error"]))
        return value

    def tree(self, path: str) -> Union[str, Unknown]:
        """The digest of a driver's source tree."""
        value = self._section("trees").get(path)
        found = value.get("digest") if isinstance(value, dict) else None
        return found if isinstance(found, str) else Unknown(f"the source tree {path} could not be read")

    def host(self, *keys: str) -> Union[str, Unknown]:
        value: Any = self._section("host")
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) and value else Unknown("host.{} was not recorded".format(".".join(keys)))

    def uid(self) -> Union[int, Unknown]:
        value = self._section("host").get("uid")
        return value if isinstance(value, int) and value >= 0 else Unknown("host.uid was not recorded")

    def environment(self) -> Union[Dict[str, str], Unknown]:
        """Variables that the collecting program was given, as far as they concern this stack."""
        value = self._value.get("environment")
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return {str(name): item for name, item in value.items()}
        return Unknown("the environment was not recorded")

    def inode_flags(self, path: str) -> Union[int, Unknown, None]:
        return _number(path, self._entry("inodes", path))

    def acs_control(self, address: str) -> Union[int, Unknown, None]:
        """The control register of a bridge's Access Control Services; negative where it has none."""
        return _number("the access control of " + address, self._entry("acs", address))

    def features(self, name: str) -> Union[Dict[str, int], Unknown, None]:
        """The sets of features in the ext4 superblock of a block device."""
        value = self._entry("features", name)
        if isinstance(value, dict) and value and all(isinstance(item, int) for item in value.values()):
            return dict(value)
        return value if value is None else _unknown("the superblock of " + name, value)

    def record(self, section: str, key: str, failed: str = READ) -> Union[Dict[str, Any], Unknown, None]:
        """A record of several values; Unknown with its reason where it is one of an error.

        failed: what could not be done where the record is one of an error.
        """
        value = self._entry(section, key)
        if isinstance(value, dict) and "error" not in value:
            return value
        return value if value is None else _unknown(key, value, failed)

    def opens(self, path: str) -> Union[str, Unknown, None]:
        """``ok``, or the name of the error with which the collecting program could not open the file."""
        value = self._entry("opens", path)
        if isinstance(value, str) or value is None:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        return error if isinstance(error, str) else _unknown(path, value)

    def space(self, path: str) -> Union[Dict[str, int], Unknown]:
        value = self._section("space").get(path)
        if isinstance(value, dict) and value and all(isinstance(item, int) for item in value.values()):
            return dict(value)
        return Unknown(f"the free space of {path} was not recorded")

    def has(self, section: str) -> bool:
        """Whether a section is there, empty or not."""
        return isinstance(self._value.get(section), dict)

    def paths(self, section: str) -> Tuple[str, ...]:
        """What a section has entries for."""
        return tuple(sorted(str(key) for key in self._section(section)))

    def collected_at(self) -> str:
        value = self._value.get("collected_at")
        return value if isinstance(value, str) else ""

    def seconds(self) -> float:
        value = self._value.get("seconds")
        return float(value) if isinstance(value, (int, float)) else 0.0

    def gaps(self) -> Tuple[str, ...]:
        """Collectors that did not come to their end, each as one sentence."""
        value = self._value.get("gaps")
        items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        return tuple("{}: {}".format(item.get("collector"), item.get("reason")) for item in items)

    def _section(self, section: str) -> Dict[str, Any]:
        value = self._value.get(section)
        return value if isinstance(value, dict) else {}

    def _entry(self, section: str, path: str) -> Any:
        """What was recorded, None for what is not there, Unknown for what was not looked at."""
        entries = self._section(section)
        if path not in entries:
            return Unknown(f"{path} was not looked at")
        value = entries[path]
        if isinstance(value, dict) and value.get("error") in ABSENT:
            return None
        return Unknown(f"{path} was not recorded") if value is None else value


def _number(what: str, value: Any) -> Union[int, Unknown, None]:
    return value if value is None or (isinstance(value, int) and not isinstance(value, bool)) else _unknown(what, value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _unknown(path: str, value: Any, failed: str = READ) -> Unknown:
    if isinstance(value, Unknown):
        return value
    error: Optional[Any] = value.get("error") if isinstance(value, dict) else None
    return Unknown("{} {}: {}".format(path, failed, error if error else "malformed record"))
