"""Groups that import a verb's module only when the verb runs, so that `--help` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click


class Verbs(click.Group):
    """A group over modules that export ``command``, or ``commands`` by verb; verbs defined in place come first."""

    def __init__(self, *args: object, verbs: Mapping[str, tuple[str, str]], **settings: object) -> None:
        """verbs: verb → (module that exports it, what it does), in the order of use."""
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(self._verbs[cmd_name][0])
        commands: Mapping[str, click.Command] = getattr(module, "commands", {})
        return commands[cmd_name] if commands else module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        defined = [(name, self.commands[name].get_short_help_str(200)) for name in super().list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([*defined, *((name, text) for name, (_, text) in self._verbs.items())])


def below(package: str, texts: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The ``verbs`` of a package that has a module for each, named as the verb with ``_`` for ``-``."""
    return {name: (f"{package}.{name.replace('-', '_')}", text) for name, text in texts.items()}
