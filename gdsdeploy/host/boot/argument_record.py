"""Which kernel arguments are gdsdeploy's, in ``/var/lib/gdsdeploy/boot-arguments.json``.

::

    {"version": 1, "arguments": [WORD], "exceptions": {PATH: [WORD]}, "left": {"boot_id": ID, "arguments": [WORD]}}

``exceptions``: files that had a word before gdsdeploy set it elsewhere; it stays there.
``left``: what was taken out in this boot, whose kernel still has it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List

from ..errors import ApplyError
from ..rootdir import read_text

PATH = "/var/lib/gdsdeploy/boot-arguments.json"
VERSION = 1
#: systemd-boot counts attempts in the names of entries: NAME+LEFT-DONE.conf.
_COUNTER = re.compile(r"\+\d+(-\d+)?(?=\.conf\Z)")


@dataclass(frozen=True)
class ArgumentRecord:
    """See the module."""

    arguments: List[str] = field(default_factory=list)
    exceptions: Dict[str, List[str]] = field(default_factory=dict)
    left_boot: str = ""
    left: List[str] = field(default_factory=list)

    def ours(self, path: str, words: List[str]) -> List[str]:
        """Those of ``words`` in the file ``path`` that gdsdeploy has set."""
        return [word for word in self.arguments if word in words and word not in self.exceptions.get(key(path), ())]

    def to_json(self) -> str:
        """The text of the file."""
        left = {"boot_id": self.left_boot, "arguments": self.left}
        value = {"version": VERSION, "arguments": self.arguments, "exceptions": self.exceptions, "left": left}
        return json.dumps(value, sort_keys=True, indent=1) + "\n"


def key(path: str) -> str:
    """What stays of the name of an entry while its attempts are counted."""
    return _COUNTER.sub("", path)


def read(root: str = "/") -> ArgumentRecord:
    """The record of a host; empty where there is none.  Raises ApplyError where it is damaged."""
    text = read_text(root, PATH)
    if not text:
        return ArgumentRecord()
    try:
        return _from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        hint = f"look at it, and take the arguments out of the boot loader yourself: mv {PATH} {PATH}.damaged"
        raise ApplyError(f"{PATH}: the record of kernel arguments can't be read: {error}", hint, "io") from None


def _from_json(value: Any) -> ArgumentRecord:
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"not a record of version {VERSION}")
    left, exceptions = value.get("left"), value.get("exceptions")
    if not isinstance(left, dict) or not isinstance(left.get("boot_id"), str) or not isinstance(exceptions, dict):
        raise ValueError("left or exceptions is missing")
    return ArgumentRecord(
        _words(value.get("arguments")),
        {str(path): _words(words) for path, words in exceptions.items()},
        left["boot_id"],
        _words(left.get("arguments")),
    )


def _words(value: Any) -> List[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise ValueError("a list of arguments is malformed")
    return list(value)
