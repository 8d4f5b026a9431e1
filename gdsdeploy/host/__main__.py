"""``gdsdeploy-host.pyz evidence|facts|validate|explain|…``: the program on the host, usable without any controller.

Exit status of validate and doctor: 0 every check passed; 30 one failed; 31 none failed, but one could not tell; 2
unusable arguments.  The other commands: 0 done, 2 unusable arguments.

Python compiles a zipapp again at every start, so each command imports only what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from functools import partial
from typing import Optional, Sequence

from . import trail
from .cli.parsers import PROGRAM, UNDECIDED, UNUSABLE
from .errors import UndecidedError, UsageError
from .io import streams
from .io.streams import Printable

#: Command → the module that has it, and its help.
COMMANDS = {
    "hello": ("cli.validate", "print Python's version, the user's id, the kernel, the machine and its identity"),
    "evidence": ("cli.validate", "collect what this host's files and programs say"),
    "facts": ("cli.validate", "print the facts that the evidence yields"),
    "validate": ("cli.validate", "compare this host with its expectation"),
    "apply": ("cli.apply", "make this host what a desired state describes"),
    "remove": ("cli.apply", "take back what was applied here"),
    "kmod": ("cli.kmod", "kernel modules: audit, build, pack, install"),
    "boot": ("cli.boot", "what the next boot starts, and whether one is needed"),
    "guard": ("cli.boot", "which kernels may boot by default, and why not"),
    "gate": ("cli.gate", "judge this boot, and keep the host out of its scheduler unless it passes"),
    "gdscheck": ("cli.gdscheck", "what gdscheck -p prints, from libcufile alone"),
    "explain": ("cli.explain", "why mounts do not take the direct path"),
    "doctor": ("cli.explain", "a first look: versions, paths, what bounces, and what to do first"),
    "odirect": ("cli.trials", "whether direct I/O on a mount bypasses the page cache"),
    "proof": ("cli.trials", "which path a read through cuFile takes, with each GPU"),
    "rdma": ("cli.trials", "whether RDMA adapters register memory of the GPUs"),
    "packages": ("cli.packages", "which packages are installed here"),
    "pins": ("cli.packages", "which packages stay out of this host"),
    "peermem": ("cli.peermem", "nvidia-peermem: load, unload"),
    "topology": ("cli.explain", "how far GPUs, disks and network adapters are apart"),
    "rollout": ("cli.rollout", "steps of a rollout: snapshot, boot once, reboot, reload, space"),
    "watch": ("cli.watch", "which processes do I/O through cuFile now, and which way it takes"),
    "serve": ("cli.serve", "answer one question that only reads, for users with the rule of sudo"),
    "load": ("cli.trials", "how fast a mount reads under load, from a scratch file"),
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status; what it prints can't drive a terminal.

    argv: None: those of this process, whose run is recorded in the audit trail.
    """
    _drop_folders_of_others()
    with streams.guarded(Printable):
        return trail.record(sys.argv[1:], partial(_run, None)) if argv is None else _run(argv)


def _drop_folders_of_others() -> None:
    """Keep root and its programs from making temporary files in a folder whose owner could exchange them."""
    named = [name for name in ("TMPDIR", "TEMP", "TMP") if name in os.environ]
    if named and os.geteuid() == 0:
        from .process import of_root

        for name in named:
            place = of_root(os.environ.pop(name), for_all=True)
            if place:
                os.environ[name] = place


def _run(argv: Optional[Sequence[str]]) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(words[0] if words else "")
    # ``serve`` answers with another command.
    arguments = parser.parse_args(words, argparse.Namespace(answer=_run))
    run = getattr(arguments, "run", None)
    if run is None:
        parser.print_help(sys.stderr)
        return UNUSABLE
    try:
        return streams.end(run(arguments))
    except UsageError as error:
        print(f"gdsdeploy-host: {error}", file=sys.stderr)
        return UNUSABLE
    except UndecidedError as error:
        print(f"gdsdeploy-host: could not tell: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return UNDECIDED
    except BrokenPipeError:
        return streams.UNREAD
    except KeyboardInterrupt:
        return 130


def _parser(verb: str) -> argparse.ArgumentParser:
    """The parser of ``verb`` alone, since each costs a third of a millisecond; of all verbs for any other word."""
    parser = argparse.ArgumentParser(prog="gdsdeploy-host.pyz", description="gdsdeploy's program on a GPU host.")
    commands = parser.add_subparsers(metavar="COMMAND")
    if verb in COMMANDS:
        importlib.import_module(f".{COMMANDS[verb][0]}", __package__)
        PROGRAM.add(verb, commands)
        return parser
    # On a host, the package around this one has nothing but the version.
    version = getattr(sys.modules[str(__package__).partition(".")[0]], "__version__", "of an unknown version")
    parser.add_argument("--version", action="version", version=f"gdsdeploy-host {version}")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
