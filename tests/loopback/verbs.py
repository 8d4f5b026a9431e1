"""Every verb of the command line, for tests that have something to say about each."""

from __future__ import annotations

from collections.abc import Iterator

import click


def verbs(command: click.Command, name: str = "") -> Iterator[str]:
    """The words of each verb below ``command``."""
    if not isinstance(command, click.Group):
        yield name.strip()
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        subcommand = command.get_command(context, inner)
        assert subcommand is not None
        yield from verbs(subcommand, f"{name} {inner}")
