"""The file of preferences: pins of the locked packages, and the names of packages that stay out."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Iterable, List, Sequence

from ..files import File
from .managers import Pin

PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"
#: Runs after package lists were read, whichever program reads them.  It never fails: that would fail the update.
_HOOK = """\
# Rendered by gdsdeploy; changes here are overwritten.
# Names that a repository has from now on, and that the patterns in 00-gdsdeploy.pref match, stay out as well.
APT::Update::Post-Invoke-Success { "%s"; };
"""
_COMMAND = (
    "program=/usr/lib/gdsdeploy/gdsdeploy-host.pyz; [ ! -r $program ]"
    " || timeout 120 python3 -I -S $program pins refresh </dev/null || :"
)
HOOK = File.of("/etc/apt/apt.conf.d/99gdsdeploy", _HOOK % _COMMAND)
HEAD = "# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten."
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_WHY = "other versions of these, and whatever else could move the driver, stay out wherever they come from"
_PATTERNS = re.compile(r"^# Patterns: (.*)$", re.MULTILINE)
_PINNED = re.compile(r"^Package: (\S+)\nPin: version ", re.MULTILINE)
_DENIED = re.compile(rf"^Explanation: {re.escape(_WHY)}\nPackage: (.*)$", re.MULTILINE)


def preferences(pins: Sequence[Pin], deny: Sequence[str], names: Sequence[str], closed: Sequence[Any]) -> str:
    """The text of ``00-gdsdeploy.pref``.

    deny: the patterns, for :func:`refresh`.  names: what :func:`names_to_deny` found.
    closed: address and release of each repository for the stack alone.
    """
    lines = [HEAD, "# The name of this file sorts first: among records for the same thing, apt takes the first."]
    # Not an option: a line break in a pattern would be a record of its own.
    lines += [f"# Patterns: {' '.join(' '.join(deny).split())}"] if deny else []
    for pin in pins:
        lines += ["", f"Package: {pin.package}", f"Pin: version {pin.version}", "Pin-Priority: 1001"]
    if names:
        lines += ["", f"Explanation: {_WHY}", f"Package: {' '.join(names)}", "Pin: release *", "Pin-Priority: -1"]
    for uri, release in closed:
        why = f"{uri} is configured for the stack alone"
        lines += ["", f"Explanation: {why}", "Package: *", f"Pin: release {release}", "Pin-Priority: -1"]
    return "\n".join(lines) + "\n"


def names_to_deny(deny: Sequence[str], packages: Iterable[str], candidates: Iterable[str]) -> List[str]:
    """The names of packages that stay out: ``packages`` of the lock, and the candidates that patterns match.

    Preferences can hold patterns, but at each start apt matches each of them against every package (apt-pkg's
    ``pkgPolicy::CreatePin``), and compiles a regular expression again for every package.  Names take no measurable
    time: see benchmarks/pins.
    """
    pattern = re.compile("|".join(map(fnmatch.translate, deny)) or r"(?!)")
    exact = [word if _NAME.fullmatch(word) else word.rstrip("*").rstrip("-") for word in deny]
    # These stay out even if no repository has them: packages of the lock, and what patterns begin with.
    always = list(dict.fromkeys([*filter(_NAME.fullmatch, exact), *packages]))
    names = {name for name in candidates if pattern.fullmatch(name) and _NAME.fullmatch(name)}
    return [*always, *sorted(names.difference(always))]


def recorded_names(text: str, deny: Sequence[str], packages: Sequence[str]) -> List[str]:
    """The names in preferences that were written for the same patterns; none where they were not.

    Packages that the repositories have had since then don't make the file wrong: a host would differ whenever NVIDIA
    publishes a driver.  :func:`refresh` adds them when the host reads its package lists.
    """
    match = _DENIED.search(text)
    names = match[1].split() if match else []
    return names if names_to_deny(deny, packages, names) == names else []


def refresh(text: str, candidates: Iterable[str]) -> str:
    """The same preferences with the names that repositories have now; names that have gone stay."""
    match, patterns = _DENIED.search(text), _PATTERNS.search(text)
    if match is None or patterns is None:
        return text
    names = names_to_deny(patterns[1].split(), _PINNED.findall(text), [*match[1].split(), *candidates])
    return text[: match.start(1)] + " ".join(names) + text[match.end(1) :]
