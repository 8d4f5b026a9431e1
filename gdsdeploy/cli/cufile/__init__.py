"""``gdsdeploy cufile``: one file per verb, each exporting ``command``, imported when it is used."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS: dict[str, str] = {
    "render": "Make the cufile.json of a host from the fleet, its lock and what the host is",
    "check": "Report every problem of a cufile.json, and what a release of libcufile would do with it",
    "effective": "Ask a real libcufile what it works with under a cufile.json",
    "migrate": "Move a cufile.json from one release of libcufile to another",
}


@click.group(cls=Verbs, verbs=below(__name__, VERBS))
def command() -> None:
    """What cufile.json says to libcufile, release by release, from 1.4 to 1.20.

    The library ignores a misspelt key without a word, and refuses every cuFile call of every process over one bad
    value. docs/cufile.md tells what each of these verbs knows about it.
    """
