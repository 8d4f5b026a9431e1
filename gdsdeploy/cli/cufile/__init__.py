"""``gdsdeploy cufile``: one file per verb, each exporting ``command``, imported when it is used."""

from __future__ import annotations

import importlib

import click

#: Verb → what it does, in the order of use.
VERBS: dict[str, str] = {
    "render": "Make the cufile.json of a host from the fleet, its lock and what the host is",
    "check": "Report every problem of a cufile.json, and what a release of libcufile would do with it",
    "effective": "Ask a real libcufile what it works with under a cufile.json",
    "migrate": "Move a cufile.json from one release of libcufile to another",
}


class CufileVerbs(click.Group):
    """A group that imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        found: click.Command = importlib.import_module(f"gdsdeploy.cli.cufile.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=CufileVerbs)
def command() -> None:
    """What cufile.json says to libcufile, release by release, from 1.4 to 1.20.

    The library ignores a misspelt key without a word, and refuses every cuFile call of every process over one bad
    value. docs/cufile.md tells what each of these verbs knows about it.
    """
