"""The command line: one file per verb, and the only place that turns errors into exit codes.

A verb's module exports ``command``; it is imported only when that verb is used, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import sys

import click

from gdsdeploy import __version__, console
from gdsdeploy.errors import GdsError, Interrupted

#: Verb → what it does, in the order of use.
VERBS = {
    "lock": "Resolve the fleet's pins into gdsdeploy.lock",
    "mirror": "Write the lock's files to a folder as a signed repository of one's own",
    "plan": "Show what provision would change on each host, and why, without touching it",
    "provision": "Converge hosts to the lock: pin, build, install, configure, reboot",
    "validate": "Prove on each host what its stack is and which path its storage takes",
    "remove": "Take back what provision changed on a host",
    "cufile": "Render, check and migrate cufile.json, and ask a real libcufile what it works with",
    "explain": "Say why a mount does not take the direct path, and what an error of cuFile means",
    "gdscheck": "Read what NVIDIA's gdscheck printed, of any release",
    "lab": "Disposable hosts to rehearse on",
}


class Verbs(click.Group):
    """A group that imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"gdsdeploy.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and results.")
def group(quiet: bool) -> None:
    """Provision, upgrade and validate GPUDirect Storage on bare Linux hosts.

    The usual order is: lock, provision, validate. Exit codes are listed in docs/exit-codes.md.
    """
    console.configure(quiet=quiet)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    try:
        status = group.main(args=argv, prog_name="gdsdeploy", standalone_mode=False)
    except GdsError as error:
        if error.message:
            console.error(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        console.error("interrupted", "Run the same command again: it goes on from what is done")
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
