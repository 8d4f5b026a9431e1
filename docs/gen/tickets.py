"""The page of symptoms, causes and fixes."""

from __future__ import annotations

import re

from docs.gen import table_row
from gdsdeploy.host.logs.parts import Sign, signs
from gdsdeploy.host.model import causes
from gdsdeploy.host.model.causes import KnownCause

HEAD = """\
# From a line of a log to its cause

Search this page for a few words of your line. Or give gdsdeploy all of your text. It also uses the versions and
devices that the text shows, and it says what it doesn't know ([logs.md](logs.md)).

    gdsdeploy explain --log cufile.log dmesg.txt make.log

Each cause has the lines that show it. Numbers and names in a line are examples. *likely* and *possible* say how sure
the line makes the cause. Without such a word, the line names it. *with* is a condition that other lines have to show.
*Decide* is the command whose output tells whether it is this cause. Root causes come first.

Rows of libcufile's log are for its ERROR, WARN and NOTICE lines. `gdsdeploy explain` on a host finds the same causes by
other evidence; [explain.md](explain.md) lists all of its causes.
"""
COLUMNS = "\n| a line such as | from | means |\n| --- | --- | --- |\n"
PARTS = {
    "cufile": "libcufile's log", "gdscheck": "gdscheck", "kernel": "the kernel's log", "build": "a build",
    "modprobe": "modprobe", "packages": "apt or dnf", "lspci": "lspci", "smi": "nvidia-smi",
    "stats": "/proc/driver/nvidia-fs", "program": "a program", "service": "a service or pod",
}  # fmt: skip
#: What a value stands in for: its name, on this page.
_NAMES = re.compile(r"\{(\w+)[^}]*\}")
HARMLESS = "\n## Lines that need nothing\n"


def page() -> str:
    """Markdown: a heading for each cause that a line shows, in the order of their ranks, then the harmless lines."""
    rows = sorted((causes.row(ident) for ident in {sign.cause for sign in signs()} - {""}), key=_place)
    parts = [HEAD, "\n## Causes\n", *(_section(row) for row in rows), HARMLESS, COLUMNS]
    return "".join([*parts, *(_row(sign, "") for sign in signs() if sign.harmless)])


def _place(row: KnownCause) -> tuple[int, str]:
    return row.rank, row.id


def _section(row: KnownCause) -> str:
    lines = [
        f"\n### {_cell(row.title)}\n",
        f"\n`{row.id}`. *Fix:* {_cell(row.fix)}.\n",
        f"\n*Read:* {row.reference}.\n",
    ]
    if row.decide:
        lines.append(f"\n*Decide:* `{row.decide}`\n")
    shown = [
        _row(sign, sign.certainty or ("likely" if sign.others else "")) for sign in signs() if sign.cause == row.id
    ]
    others = [_row(sign, "possible") for sign in signs() if row.id in sign.others]
    return "".join([*lines, COLUMNS, *shown, *others])


def _row(sign: Sign, certainty: str) -> str:
    means = _cell(_NAMES.sub(r"\1", sign.means))
    when = ", ".join(f"{subject} {text}" for subject, text in sign.when.items())
    text = ": ".join(filter(None, (certainty and f"*{certainty}*", means)))
    return table_row(_code(sign.sample), PARTS[sign.part], text + (f" (with {_cell(when)})" if when else ""))


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _cell(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
