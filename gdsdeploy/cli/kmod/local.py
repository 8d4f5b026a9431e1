"""Commands of the host program that also work on this machine: same arguments and code, the controller's exit codes."""

from __future__ import annotations

import argparse

import click

from gdsdeploy.errors import ChecksUnknown, GdsError, ModuleBuildFailed
from gdsdeploy.host.cli import kmod
from gdsdeploy.host.errors import AuditError, BuildError, HostError


def _command(name: str) -> click.Command:
    """The command ``name``, which passes all its arguments, ``--help`` too, to the host program's parser."""

    @click.command(name, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def run(words: tuple[str, ...]) -> None:
        parser = argparse.ArgumentParser(prog="gdsdeploy")
        kmod.add_parsers(parser.add_subparsers())
        arguments = parser.parse_args(["kmod", name, *words])
        try:
            status = arguments.unguarded(arguments)
        except (BuildError, AuditError) as error:
            raise ModuleBuildFailed(error.message, hint=error.hint) from None
        except HostError as error:
            raise GdsError(error.message, hint=error.hint) from None
        if status == kmod.FAILED:
            raise ModuleBuildFailed("")
        if status == kmod.UNDECIDED:
            raise ChecksUnknown("")

    return run


#: Verb → command
commands = {name: _command(name) for name in ("audit", "build", "sign", "keygen", "enrol", "unenrol", "trees")}
