"""``gdsdeploy help``."""

from __future__ import annotations

import click

from gdsdeploy import console


@click.command()
@click.argument("verbs", metavar="[VERB]...", nargs=-1)
def command(verbs: tuple[str, ...]) -> None:
    """Show the help of VERB, such as `gdsdeploy help rollout start`; without VERB, the list of verbs."""
    context = click.get_current_context().find_root()
    words = list(verbs)
    while words:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no verbs: leave out {' '.join(words)}")
        name, verb, words = group.resolve_command(context, words)
        assert verb is not None, "resolve_command has ended the program"
        context = click.Context(verb, info_name=name, parent=context)
    console.data(context.get_help())
