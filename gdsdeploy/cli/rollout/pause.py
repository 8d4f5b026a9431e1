"""``gdsdeploy rollout pause``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.model.events import RolloutPaused
from gdsdeploy.rollout import control, lookup
from gdsdeploy.rollout.report.events import sentence


@click.command()
@options.fleet
@options.reason
@options.as_json("Print one JSON object about the pause.")
def command(fleet: Path, reason: str, as_json: bool) -> None:
    """Start no more hosts of FLEET's rollout; hosts in progress finish their step.

    The process that runs it then ends with exit code 130. Ctrl-C in its terminal does the same.

    \b
    Exit code: 0 paused; 50 there is nothing to pause; 52 the process that runs it doesn't answer.

    \b
    Examples:
      gdsdeploy rollout pause fleet.yml --reason 'the file server is slow'
      gdsdeploy rollout resume fleet.yml
    """
    path = lookup.require_journal(fleet)
    event, by_driver = control.tell(path, RolloutPaused(reason or "by command"))
    if as_json:
        console.data(json.dumps({"event": event.as_json(), "by_driver": by_driver}))
    else:
        console.say(sentence(event))
        console.say(f"Next: gdsdeploy rollout resume {fleet}")
