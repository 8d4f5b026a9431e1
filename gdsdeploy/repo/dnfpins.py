"""What pins the stack for dnf: versions that are locked, names that have none to choose, module streams.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: Around our lines in dnf's list of locks, which others may have lines in too.
BEGIN, END = "# BEGIN gdsdeploy", "# END gdsdeploy"
#: Commands that only look: what is locked, and which module streams are enabled.
QUESTIONS: Mapping[str, list[str]] = {
    "dnf-locks": ["cat", "/etc/dnf/plugins/versionlock.list"],
    "dnf-streams": ["grep", "--recursive", "--extended-regexp", "^(stream|state)=", "/etc/dnf/modules.d"],
}


def nevras(pins: Iterable[Mapping[str, str]]) -> list[str]:
    """NAME-EPOCH:VERSION-RELEASE.* of every pin (package, version), as dnf takes it in its lists."""
    return [f"{pin['package']}-{_epoch(pin['version'])}.*" for pin in pins]


def streams(lines: Iterable[str]) -> list[str]:
    """NAME:STREAM of every enabled module, from what grep shows of modules.d: ``FILE:stream=…``, ``FILE:state=…``."""
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        file, _, entry = line.partition(":")
        key, _, value = entry.partition("=")
        found.setdefault(file.rpartition("/")[2].removesuffix(".module"), {})[key] = value
    enabled = {name: item for name, item in found.items() if item.get("state") == "enabled" and "stream" in item}
    return [f"{name}:{item['stream']}" for name, item in enabled.items()]


def locks(pins: Iterable[Mapping[str, str]], deny: Iterable[str]) -> list[str]:
    """Our lines in the list of locks; a version that does not exist leaves a name none to be chosen in."""
    return [*nevras(pins), *(f"{name}-0:0-0.none" for name in deny)]


def ours(text: str) -> list[str]:
    """What stands between our marks in the list of locks."""
    _, begun, rest = text.partition(BEGIN + "\n")
    inner, ended, _ = rest.partition(END)
    return inner.splitlines() if begun and ended else []


def missing(wanted: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The streams of ``wanted`` that are not enabled."""
    enabled = streams(lines)
    return [item for item in wanted if item not in enabled]


def _epoch(version: str) -> str:
    return version if ":" in version else f"0:{version}"
