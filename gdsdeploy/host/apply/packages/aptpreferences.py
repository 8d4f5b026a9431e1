"""The file of preferences: pins of the locked packages, and the names of packages that stay out."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Iterable, List, Sequence

from .managers import Pin

HEAD = "# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten."
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_WHY = "other versions of these, and whatever else could move the driver, stay out wherever they come from"
_DENIED = re.compile(rf"^Explanation: {re.escape(_WHY)}\nPackage: (.*)$", re.MULTILINE)


def preferences(pins: Sequence[Pin], names: Sequence[str], closed: Sequence[Any]) -> str:
    """The text of ``00-gdsdeploy.pref``.

    names: what :func:`names_to_deny` found.  closed: address and release of each repository for the stack alone.
    """
    lines = [HEAD, "# The name of this file sorts first: among records for the same thing, apt takes the first."]
    for pin in pins:
        lines += ["", f"Package: {pin.package}", f"Pin: version {pin.version}", "Pin-Priority: 1001"]
    if names:
        lines += ["", f"Explanation: {_WHY}", f"Package: {' '.join(names)}", "Pin: release *", "Pin-Priority: -1"]
    for uri, release in closed:
        why = f"{uri} is configured for the stack alone"
        lines += ["", f"Explanation: {why}", "Package: *", f"Pin: release {release}", "Pin-Priority: -1"]
    return "\n".join(lines) + "\n"


def names_to_deny(desired: Any, candidates: Iterable[str]) -> List[str]:
    """The names of packages that stay out: those of the lock, and which of ``known`` the patterns match.

    Preferences can hold patterns, but at each start apt matches each of them against every package: 27 patterns take
    three seconds (apt 3.0, 79,000 packages).  Names take no measurable time.
    """
    pattern = re.compile("|".join(map(fnmatch.translate, desired.deny)) or r"(?!)")
    exact = [word if _NAME.fullmatch(word) else word.rstrip("*").rstrip("-") for word in desired.deny]
    # These stay out even if no repository has them: packages of the lock, and what patterns begin with.
    always = list(dict.fromkeys([*filter(_NAME.fullmatch, exact), *(pin.package for pin in desired.pins)]))
    names = {name for name in candidates if pattern.fullmatch(name) and _NAME.fullmatch(name)}
    return [*always, *sorted(names.difference(always))]


def recorded_names(text: str, desired: Any) -> List[str]:
    """The names in preferences that were written for the same patterns; none where they were not.

    Packages that the repositories have had since then don't make the file wrong: a host would differ whenever NVIDIA
    publishes a driver.  They enter when the file is written again; until then holds keep the stack from moving.
    """
    match = _DENIED.search(text)
    names = match[1].split() if match else []
    return names if names_to_deny(desired, names) == names else []
