"""``gdsdeploy diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import GdsError, ReportsDiffer
from gdsdeploy.host.io import reading
from gdsdeploy.report import changes


@click.command()
@click.argument("before", type=options.PATH)
@click.argument("after", type=options.PATH)
@options.as_json()
def command(before: Path, after: Path, as_json: bool) -> None:
    """Say what changed between two runs of validate, given the JSON of each.

    Hosts that came or went, verdicts of hosts and checks, parts of the stack, the lock, and a check that does not pass
    for another reason than before. When a run was, how long it took and which boot it saw are no changes; hosts that
    were rebooted in between are named.

    \b
    Exit code:
      33    there are changes
      0     there are none

    \b
    Examples:
      gdsdeploy validate fleet.yml --json > before.json
      gdsdeploy diff before.json after.json
      gdsdeploy diff before.json after.json --json | jq -r '.changes[] | [.host, .what] | @tsv'
    """
    found = changes.compare(_read(before), _read(after))
    console.data(changes.to_json(found) if as_json else changes.to_text(found))
    if found.changes:
        raise ReportsDiffer("")


def _read(path: Path) -> dict[str, Any]:
    try:
        return changes.report_from(reading.whole(str(path), changes.LIMIT).decode())
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise GdsError(f"{path}: cannot be read: {words}", hint=reading.look(str(path))) from None
    except ValueError as error:
        raise GdsError(f"{path}: {error}", hint="Write one with: gdsdeploy validate FLEET --json > FILE") from None
