"""The page of commands has every option and every variable."""

from __future__ import annotations

import re
from pathlib import Path

import click

from docs.gen import cli
from gdsdeploy.cli import group

ROOT = Path(__file__).parents[3]
#: Variables that gdsdeploy sets for programs that it starts.
INTERNAL = {"GDSDEPLOY_EVENTS"}


def test_every_option_is_on_the_page() -> None:
    commands = list(cli._commands(group, "gdsdeploy", click.Context(group, info_name="gdsdeploy")))
    assert len(commands) > 50
    text = cli.page()
    for name, command, context in commands:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and "--help" not in parameter.opts and not parameter.hidden:
                assert all(f"`{word}" in section for word in parameter.opts), (name, parameter.opts)


def test_every_variable_is_on_the_page() -> None:
    sources = [path.read_text() for folder in ("gdsdeploy", "lab") for path in (ROOT / folder).rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bGDSDEPLOY_[A-Z_]+\b", text)}
    assert used - INTERNAL == {name for name in cli.VARIABLES if name.startswith("GDSDEPLOY_")}
