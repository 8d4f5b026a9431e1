"""The page of foreign installs."""

from __future__ import annotations

from collections.abc import Iterator

from docs.gen import table_row
from gdsdeploy.host.subjects.foreign import ADOPT, NOTE, REFUSE, TAKE_OVER, Kind, kinds

HEAD = """\
# What others have installed

A host may already have parts of the stack: a driver from a run file, modules without a package, pins, locks.
gdsdeploy looks for them, and changes nothing while it looks: it reads files and asks `ldconfig`, and `rpm` where that
is the package manager.

| where | what it shows |
| --- | --- |
| `gdsdeploy plan` | each kind, with evidence and the way out; with `--json` in `foreign` |
| `gdsdeploy provision` | refuses a host before the first change, for kinds that would win over the locked stack |
| `gdsdeploy validate` | the check `host.foreign`: it fails where such a kind is found, also when it came later |
| `gdsdeploy explain HOST` | each kind at the end, under *Installed by others* |

## Answers

| answer | meaning |
| --- | --- |
| refuse | provision wouldn't lead to the locked stack: do what the refusal says, then run `gdsdeploy plan` again |
| take over | provision does what the last column says; `gdsdeploy remove` takes it back unless it says otherwise |
| adopt | `gdsdeploy lock FLEET --adopt HOST` takes it into the lock |
| note | it may stay |

A refusal has the id `foreign.KIND`. Some kinds are refused only under a condition; otherwise they are notes.

## Kinds

| kind | what it is | recognized by | answer | way out |
| --- | --- | --- | --- | --- |
"""
SOURCES = """
## Sources

| kind | source |
| --- | --- |
"""
TAIL = """
## What gdsdeploy doesn't find

- A module file under a name that isn't NVIDIA's.
- The owner of a file if its package's list of files is lost. The check then can't tell.
- Repositories with a driver under an address that isn't known. gdsdeploy's pins keep their packages out all the same.
- What is inside a container. In a container, the check is not applicable, since its host's packages are not visible.
"""
WORDS = {REFUSE: "refuse", TAKE_OVER: "take over", ADOPT: "adopt", NOTE: "note"}


def page() -> str:
    """Markdown: one table row per kind, in the order of the table, and their sources."""
    return "".join([HEAD, *_rows(), SOURCES, *(table_row(f"`{row.id}`", row.source) for row in kinds().values()), TAIL])


def _rows() -> Iterator[str]:
    for row in kinds().values():
        yield table_row(f"`{row.id}`", row.title, row.recognized, _answer(row), _way_out(row))


def _answer(row: Kind) -> str:
    return (
        f"{WORDS[row.answer]}, if {row.refused_when}; else note: {row.harmless}"
        if row.refused_when
        else WORDS[row.answer]
    )


def _way_out(row: Kind) -> str:
    command = row.command.replace("{name}", "NAME")
    return (
        row.way_out.replace("{commands}", f"`{command}`").replace("{names}", "NAME …").replace("{release}", "RELEASE")
    )
