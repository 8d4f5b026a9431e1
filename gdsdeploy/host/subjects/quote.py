"""Quotes of the evidence: ``SOURCE: its text``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Iterable, Sequence, Tuple

from ..facts.unknown import Unknown, if_known, known
from ..paths import CUFILE, MOUNTINFO
from .types import HostFacts, Mount

if TYPE_CHECKING:
    from .environment import Variable

#: Most lines quoted from one source, and most characters of one line.
LINES = 3
WIDTH = 200


def file(facts: HostFacts, path: str, pattern: str = "") -> Tuple[str, ...]:
    """The first line of a file, or the lines that match ``pattern``."""
    text = known(lambda: facts.document.text(path))
    if isinstance(text, Unknown):
        return (text.reason,)
    if text is None:
        return (f"{path}: there is no such file",)
    lines = [line for line in text.splitlines() if re.search(pattern, line)] if pattern else text.splitlines()[:1]
    return with_source(path, lines) or ("{}: {}".format(path, "no line with " + pattern if pattern else "empty"),)


def symbols(facts: HostFacts, names: Sequence[str]) -> Tuple[str, ...]:
    """The lines of the kernel's symbols with one of ``names``, or that there are none."""
    lines = if_known(lambda: facts.document.lines("/proc/kallsyms"), None)
    if lines is None:
        return ()
    matches = [line for line in lines if any(re.search(rf"\b{name}\b", line) for name in names)]
    return with_source("/proc/kallsyms", matches) or ("/proc/kallsyms: no {}".format(", no ".join(names)),)


def program(facts: HostFacts, name: str) -> Tuple[str, ...]:
    """The last lines that a program printed."""
    ran = known(lambda: facts.document.attempted(name))
    if isinstance(ran, Unknown):
        return (ran.reason,)
    lines = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
    return with_source(name.replace(":", " "), lines[-LINES:]) or (f"{name}: no output",)


def messages(facts: HostFacts, pattern: str) -> Tuple[str, ...]:
    """The last kernel messages that match ``pattern``; none where the messages are unknown."""
    return if_known(lambda: logged(facts, pattern), ())


def logged(facts: HostFacts, pattern: str) -> Tuple[str, ...]:
    """As ``messages``; raises UndecidedError where the messages are unknown."""
    lines = [line for line in facts.kernel.messages if re.search(pattern, line)]
    return with_source(facts.kernel.log.source, lines[-LINES:])


def mount(mounted: Mount) -> Tuple[str, ...]:
    return with_source(MOUNTINFO, [mounted.line])


def setting(facts: HostFacts, section: str, key: str) -> Tuple[str, ...]:
    """A setting of cufile.json by file and line, as it is written there; else of the file that is laid over it."""
    value = known(lambda: facts.cufile.setting(section, key, None))
    if isinstance(value, Unknown):
        return ()
    over = if_known(lambda: facts.cufile.overlay, None)
    if over and over.value(section, key) is not None:
        shown = json.dumps(over.value(section, key))
        return (f"{over.path}: {section}: {key}: {shown}"[:WIDTH], *variable(over.variable))
    if facts.cufile.path != CUFILE:
        shown = json.dumps(value)
        return (f"{facts.cufile.path}: {section}: {key}: {shown}"[:WIDTH],)
    text = if_known(lambda: facts.document.text(CUFILE), None)
    if text is None:
        return ()
    for number, line in enumerate(text.splitlines(), 1):
        if f'"{key}"' in line:
            shown = line.strip() if len(line) < WIDTH else f'"{key}": {json.dumps(value)}'
            return (f"{CUFILE}:{number}: {shown}"[:WIDTH],)
    return (f"{CUFILE}: no {section}.{key}",)


def variable(named: Variable) -> Tuple[str, ...]:
    """How its place sets it."""
    return with_source(named.place, [named.line])


def with_source(source: str, lines: Iterable[str]) -> Tuple[str, ...]:
    """The first lines that aren't blank, shortened, each after its source."""
    return tuple(f"{source}: {line.strip()}"[:WIDTH] for line in lines if line.strip())[:LINES]
