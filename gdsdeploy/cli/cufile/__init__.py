"""``gdsdeploy cufile``: one file per verb, each exporting ``command``, imported when it is used."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS = {
    "render": "Make a host's cufile.json from the fleet, its lock and the host's facts",
    "check": "Report every problem of a cufile.json, and how a release of libcufile would treat it",
}


@click.group(cls=Verbs, verbs=below(__name__, VERBS, {}))
def command() -> None:
    """Work with cufile.json, for each release of libcufile from 1.4 to 1.20.

    The library silently ignores a misspelt key, and one bad value makes it refuse every cuFile call of every process.
    docs/cufile.md describes these verbs.
    """
