"""``gdsdeploy lab``, which another distribution brings, gdslab: by an entry point, so that nothing here imports it."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from gdsdeploy.errors import MissingProgram

#: The group of entry points for verbs that other distributions bring.
ENTRY_POINTS = "gdsdeploy.verbs"


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def absent(words: tuple[str, ...]) -> None:  # noqa: ARG001
    """Disposable hosts to rehearse on. gdslab brings them, and it isn't installed here."""
    raise MissingProgram(
        "gdsdeploy lab is part of gdslab, which isn't installed here",
        hint="In a checkout of gdsdeploy: pip install . ./lab",
    )


def _command() -> click.Command:
    for entry_point in entry_points(group=ENTRY_POINTS, name="lab"):
        installed: click.Command = entry_point.load()
        return installed
    return absent


command = _command()
