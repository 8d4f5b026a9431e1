"""The command line: modules of verbs, and the only place that turns errors into exit codes."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import click

from gdsdeploy import __version__, cancel, console
from gdsdeploy.cli.verbs import Verbs, below, early, quiet_option
from gdsdeploy.errors import ChecksUnknown, GdsError, Interrupted
from gdsdeploy.files import rights
from gdsdeploy.host.errors import UndecidedError
from gdsdeploy.host.io import streams

#: Verb → what it does, in the order of use.
VERBS = {
    "init": "Write a first fleet file from what hosts run",
    "lock": "Resolve the fleet's pins into gdsdeploy.lock",
    "mirror": "Write the lock's files to a folder as a local signed repository",
    "plan": "Show what provision would change on each host, and why, without touching it",
    "provision": "Converge hosts to the lock: pin, build, install, configure, reboot",
    "rollout": "Upgrade a fleet wave by wave",
    "inventory": "Write a static Ansible inventory for AWX, ansible-runner or ansible-pull",
    "validate": "Prove on each host what its stack is and which path its storage takes",
    "diff": "Show what changed between two runs of validate",
    "support-bundle": "Pack evidence from the hosts into one file, with addresses, serials and secrets replaced",
    "remove": "Undo what provision changed on a host",
    "sudoers": "Print the rule of sudo that lets a user read hosts and do nothing else as root",
    "cufile": "Render and check cufile.json for a release of libcufile",
    "explain": "Explain why a mount doesn't take the direct path, and what a cuFile error means",
    "fits": "Tell whether versions of driver, kernel, nvidia-fs and libcufile go together",
    "doctor": "Show on one screen what stands between this machine's storage and its GPUs",
    "watch": "Show which processes do I/O through cuFile now, and which of it bounces through CPU memory",
    "kmod": "Audit and build kernel modules, and predict which will load",
    "topology": "Show the distances between GPUs, disks and network adapters, and what has moved",
    "gdscheck": "Parse the output of NVIDIA's gdscheck, of any release",
    "prometheus": "Print alert rules and a dashboard for the series that hosts export",
    "lab": "Disposable hosts to rehearse on",
    "help": "Show the help of a verb",
}
#: Verb → its module, where that isn't named as the verb.
_MODULES = {
    "diff": "validate",
    "support-bundle": "validate",
    "help": "verbs",
    "mirror": "lock",
    "gdscheck": "explain",
    "doctor": "explain",
    **dict.fromkeys(("plan", "remove", "inventory"), "provision"),
    **dict.fromkeys(("topology", "prometheus"), "watch"),
}
#: Heading of the help → verbs.
SECTIONS = {
    "Everyday": ("init", "lock", "plan", "provision", "validate", "remove"),
    "Upgrade": ("rollout", "inventory", "diff"),
    "Diagnose": ("fits", "doctor", "explain", "watch", "topology", "cufile", "kmod", "gdscheck", "support-bundle"),
    "Offline": ("mirror",),
    "Monitoring": ("prometheus",),
    "Rights": ("sudoers",),
    "Rehearse and learn": ("lab", "help"),
}


@click.group(
    cls=Verbs,
    verbs=below(__name__, VERBS, _MODULES),
    sections=SECTIONS,
    params=[quiet_option(default=False), early("--json"), early("-v", "--verbose")],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version")
def group() -> None:
    """Provision, upgrade and validate GPUDirect Storage on bare Linux hosts.

    The usual order is: init, lock, provision, validate. FLEET is ./fleet.yml, or the file that $GDSDEPLOY_FLEET names,
    unless a command names another. docs/exit-codes.md lists the exit codes.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    end_with(group, "gdsdeploy", argv)


@cancel.whole_process()
def end_with(command: click.Command, name: str, argv: list[str] | None = None) -> NoReturn:
    """Run the command line of ``name``; end the process with its exit code, or die by the signal that ended it."""
    with streams.guarded():
        sys.exit(streams.end(_run(command, name, argv)))


def _run(command: click.Command, name: str, argv: list[str] | None) -> int:
    try:
        status = command.main(args=argv, prog_name=name, standalone_mode=False)
    except (GdsError, OSError) as error:
        known = error if isinstance(error, GdsError) else rights.refusal(error)
        if known is None:
            raise
        if known.message:
            console.error(known.message, known.hint)
        return known.exit_code
    except UndecidedError as error:
        console.error(f"could not tell: {error}", error.hint)
        return ChecksUnknown.exit_code
    except click.ClickException as error:
        usage = io.StringIO()
        error.show(usage)
        console.usage(usage.getvalue().rstrip("\n"))
        return error.exit_code
    except (Exception, KeyboardInterrupt) as error:
        if not isinstance(error, click.Abort) and not cancel.is_interruption(error):
            raise
        console.error("interrupted", "Run the same command again: it resumes after the finished work")
        return Interrupted.exit_code
    return status if isinstance(status, int) else 0
