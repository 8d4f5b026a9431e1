"""What a shell completes: hosts of the fleet file, and checks.

A line that isn't complete has no errors, so what can't be read completes nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from gdsdeploy import paths
from gdsdeploy.errors import GdsError


def hosts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Hosts and builders, for the last name of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names(context) if name.startswith(last)]


def host_or_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Hosts; where the word can't be one, files."""
    if "/" not in incomplete and (names := hosts(context, parameter, incomplete)):
        return [click.shell_completion.CompletionItem(name) for name in names]
    return [click.shell_completion.CompletionItem(incomplete, type="file")]


def checks(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Checks, with what they mean."""
    # Checks import what facts are made of, which other verbs do without.
    from gdsdeploy.host.checks import listed

    return [
        click.shell_completion.CompletionItem(check.id, help=check.title)
        for check in listed()
        if check.id.startswith(incomplete)
    ]


def _names(context: click.Context) -> list[str]:
    from gdsdeploy.fleetfile.load import load_fleet

    # Behind an option that lacks its value, click leaves arguments unparsed.
    unparsed = next((Path(word) for word in context.args if word.endswith((".yml", ".yaml"))), None)
    with contextlib.suppress(GdsError):
        return list(load_fleet(context.params.get("fleet") or unparsed or paths.default_fleet()).everyone())
    return []
