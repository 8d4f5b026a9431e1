"""A second configuration that CUFILE_ENV_PATH_JSON names, which libcufile lays over /etc/cufile.json.

The rules were seen in the real libcufile 1.9.1, 1.15.1 and 1.20.0: it reads /etc/cufile.json, then the named file, key
by key.  null and an empty list change nothing, and a mount table gets further mounts.  A missing file is
ignored; if one of both is broken, every cuFile call fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from .document import Document
from .environment import Variable
from .unknown import Maybe, Unknown

#: The variable that names the file.
VARIABLE = "CUFILE_ENV_PATH_JSON"
#: The sections that some release reads.
SECTIONS = (
    "logging", "profile", "execution", "properties", "block", "sparse", "fs", "denylist", "miscellaneous",
)  # fmt: skip


#: Switches of ``properties`` that every release reads.
SWITCHES = ("allow_compat_mode", "force_compat_mode")


@dataclass(frozen=True)
class Overlay:
    """``variable`` names the file."""

    variable: Variable
    #: its known sections; empty where there is no such file
    config: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = True
    #: why libcufile refuses it; empty where it doesn't
    broken: str = ""

    @property
    def path(self) -> str:
        return self.variable.value

    def value(self, section: str, key: str) -> Any:
        """The value that the file gives the key, at any depth of the section; None where it doesn't."""
        return next((value for name, value in _values(self.config.get(section)) if name == key), None)


def overlay(document: Document, key: str, variable: Variable) -> Maybe[Overlay]:
    """The file that was recorded as ``key``."""
    value = document.record("configs", key)
    if isinstance(value, Unknown):
        return Unknown(f"{VARIABLE} names a configuration that is unknown: {value.reason}")
    if value is None:
        return Overlay(variable, exists=False)
    config, broken = value.get("config"), value.get("broken", "")
    if isinstance(config, dict):
        sections = {name: config[name] for name in SECTIONS if isinstance(config.get(name), dict)}
        return Overlay(variable, sections, broken=_wrong_type(sections))
    if broken and isinstance(broken, str):
        return Overlay(variable, broken=broken)
    return Unknown(f"the record of {key} is malformed")


def merged(base: Optional[Mapping[str, Any]], over: Mapping[str, Any]) -> Dict[str, Any]:
    """``over`` laid over ``base`` key by key."""
    result = dict(base or {})
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merged(below if isinstance(below, Mapping) else None, value)
        elif value is not None and value != []:
            result[key] = value
    return result


def _values(section: Any) -> Iterator[Tuple[str, Any]]:
    for name, value in section.items() if isinstance(section, Mapping) else ():
        yield name, value
        yield from _values(value)


def _wrong_type(config: Mapping[str, Any]) -> str:
    """The switch with a value of another type, for which every release refuses the file; empty where there is none."""
    values = {key: config.get("properties", {}).get(key) for key in SWITCHES}
    wrong = [key for key, value in values.items() if value is not None and not isinstance(value, bool)]
    return f"its properties.{wrong[0]} is neither true nor false" if wrong else ""
