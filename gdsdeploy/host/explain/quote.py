"""Where something was seen, in the words of the evidence itself: ``PLACE: what stands there``."""

from __future__ import annotations

import json
import re
from typing import Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Unknown
from ..facts.storage import Mount
from ..paths import CUFILE, MOUNTINFO, PROBE_FOLDERS

#: Lines of one place that are quoted, and letters of one line.
LINES = 3
WIDTH = 200


def file(facts: HostFacts, path: str, pattern: str = "") -> Tuple[str, ...]:
    """The first line of a file, or those in which ``pattern`` is found."""
    text = facts.document.text(path)
    if isinstance(text, Unknown):
        return (text.reason,)
    if text is None:
        return (f"{path}: there is no such file",)
    lines = [line for line in text.splitlines() if re.search(pattern, line)] if pattern else text.splitlines()[:1]
    return placed(path, lines) or ("{}: {}".format(path, "no line with " + pattern if pattern else "empty"),)


def symbols(facts: HostFacts, names: Sequence[str]) -> Tuple[str, ...]:
    """The lines of the kernel's symbols with one of ``names``, or that there is none."""
    lines = facts.document.lines("/proc/kallsyms")
    if not isinstance(lines, tuple):
        return ()
    found = [line for line in lines if any(re.search(rf"\b{name}\b", line) for name in names)]
    return placed("/proc/kallsyms", found) or ("/proc/kallsyms: no {}".format(", no ".join(names)),)


def program(facts: HostFacts, name: str) -> Tuple[str, ...]:
    """What a program said last."""
    ran = facts.document.attempted(name)
    if isinstance(ran, Unknown):
        return (ran.reason,)
    lines = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
    return placed(name.replace(":", " "), lines[-LINES:]) or (f"{name}: said nothing",)


def messages(facts: HostFacts, pattern: str) -> Tuple[str, ...]:
    """The last kernel messages in which ``pattern`` is found; none where they are not known."""
    known = facts.kernel.messages
    lines = [line for line in known if re.search(pattern, line)] if isinstance(known, tuple) else []
    return placed("dmesg", lines[-LINES:])


def mount(found: Mount) -> Tuple[str, ...]:
    return placed(MOUNTINFO, [found.line])


def setting(facts: HostFacts, section: str, key: str) -> Tuple[str, ...]:
    """A setting of cufile.json by file and line, as it is written there."""
    text = facts.document.text(CUFILE)
    if not isinstance(text, str):
        return ()
    value = facts.cufile.setting(section, key, None)
    for number, line in enumerate(text.splitlines(), 1):
        if f'"{key}"' in line:
            shown = line.strip() if len(line) < WIDTH else f'"{key}": {json.dumps(value)}'
            return (f"{CUFILE}:{number}: {shown}"[:WIDTH],)
    return (f"{CUFILE}: no {section}.{key}",)


def fragments(facts: HostFacts) -> Iterator[Tuple[str, str]]:
    """(``FILE:LINE``, line) of every fragment of modprobe.d that is in the evidence."""
    for folder in PROBE_FOLDERS:
        names = facts.document.names(folder)
        for name in names if isinstance(names, tuple) else ():
            text = facts.document.text(folder + "/" + name)
            for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
                yield f"{folder}/{name}:{number}", line.strip()


def placed(place: str, lines: Sequence[str]) -> Tuple[str, ...]:
    """``lines`` with their place before each, shortened."""
    found: List[str] = [line.strip() for line in lines if line.strip()]
    return tuple(f"{place}: {line}"[:WIDTH] for line in found[:LINES])
