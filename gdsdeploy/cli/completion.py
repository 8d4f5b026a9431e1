"""``gdsdeploy completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gdsdeploy import console

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
def command(shell: str) -> None:
    """Print a script with which SHELL (bash, zsh or fish) completes verbs, options, hosts of the fleet file and checks.

    \b
    Examples:
      gdsdeploy completion bash > ~/.local/share/bash-completion/completions/gdsdeploy
      gdsdeploy completion zsh > ~/.zfunc/_gdsdeploy       # with fpath+=~/.zfunc before compinit
      gdsdeploy completion fish > ~/.config/fish/completions/gdsdeploy.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has all three"
    root = click.get_current_context().find_root().command
    console.data(kind(root, {}, "gdsdeploy", "_GDSDEPLOY_COMPLETE").source())
