"""``gdsdeploy diff``."""

from __future__ import annotations

import shlex
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
    """Show what changed between two runs of validate, from the JSON of each.

    Changes are: added and removed hosts, verdicts of hosts and checks, parts of the stack, the lock, and a new reason
    for a check that doesn't pass. A run's time, duration and boot don't count; hosts that rebooted are listed.

    \b
    Exit code:
      33    there are changes
      0     there are no changes

    \b
    Examples:
      gdsdeploy validate fleet.yml --json > before.json
      gdsdeploy diff before.json after.json
      gdsdeploy diff before.json after.json --json | jq -r '.changes[] | [.host, .what] | @tsv'
    """
    comparison = changes.compare(_read(before), _read(after))
    console.data(changes.to_json(comparison) if as_json else changes.to_text(comparison))
    if comparison.changes:
        raise ReportsDiffer("")


def _read(path: Path) -> dict[str, Any]:
    try:
        return changes.report_from(reading.whole(str(path), changes.LIMIT).decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise GdsError(f"{path}: cannot be read: {reason}", hint=reading.look(str(path))) from None
    except ValueError as error:
        raise GdsError(
            f"{path}: {error}", hint=f"Write it again: gdsdeploy validate fleet.yml --json > {shlex.quote(str(path))}"
        ) from None
