"""The command line: one file per verb, and the only place that turns errors into exit codes."""

from __future__ import annotations

import io
import sys

import click

from gdsdeploy import __version__, console
from gdsdeploy.cli.verbs import Verbs, below
from gdsdeploy.errors import GdsError, Interrupted

#: Verb → what it does, in the order of use.
VERBS = {
    "lock": "Resolve the fleet's pins into gdsdeploy.lock",
    "mirror": "Write the lock's files to a folder as a signed repository of one's own",
    "plan": "Show what provision would change on each host, and why, without touching it",
    "provision": "Converge hosts to the lock: pin, build, install, configure, reboot",
    "rollout": "Upgrade a fleet wave by wave, or have an engine that it has already do so",
    "validate": "Prove on each host what its stack is and which path its storage takes",
    "verify": "Verify signed locks, archives of modules and validations, without a network",
    "diff": "Say what changed between two runs of validate",
    "support-bundle": "Pack what hosts say of themselves into one file, with addresses, serials and secrets replaced",
    "remove": "Take back what provision changed on a host",
    "cufile": "Render, check and migrate cufile.json, and ask a real libcufile what it works with",
    "explain": "Say why a mount does not take the direct path, and what an error of cuFile means",
    "kmod": "Audit and build kernel modules, and know beforehand what will load",
    "topology": "Show how far GPUs, disks and network adapters are from each other, and what has moved",
    "mode": "Say which peer-to-peer mechanisms hosts offer, which one to choose, and what a change takes",
    "gdscheck": "Read what NVIDIA's gdscheck printed, of any release",
    "lab": "Disposable hosts to rehearse on",
}


@click.group(
    cls=Verbs,
    verbs=below(__name__, VERBS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
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
        words = io.StringIO()
        error.show(words)
        console.usage(words.getvalue().rstrip("\n"))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        console.error("interrupted", "Run the same command again: it goes on from what is done")
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
