"""What the parsers of commands have in common."""

from __future__ import annotations

import argparse
from typing import Any, Callable

Run = Callable[[argparse.Namespace], int]
#: Adds a command of ``kmod``: commands, name, function, help, examples.
Add = Callable[..., argparse.ArgumentParser]


def group(commands: Any, name: str, text: str) -> Any:
    """Add a command that consists of others; returns the argparse object that takes them."""
    verbs = commands.add_parser(name, help=text, description=text).add_subparsers(metavar="COMMAND")
    verbs.required = True
    return verbs


def command(commands: Any, name: str, run: Run, text: str, *, json: bool = True, **options: Any) -> Any:
    """Add a command with ``--json``; options: for its ArgumentParser."""
    parser = commands.add_parser(name, help=text, **{"description": text, **options})
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def trial(commands: Any, name: str, run: Run, text: str, timeout: float) -> None:
    """Add a command that tries something in a scratch file in each PATH, for ``--timeout`` seconds."""
    from ..gdscheck.live import seconds

    parser = command(commands, name, run, text)
    parser.add_argument("path", nargs="+", metavar="PATH", help="a folder on the mount; a new file in it is tried")
    words = "for each try (%(default)g)"
    parser.add_argument("--timeout", type=seconds, default=timeout, metavar="SECONDS", help=words)


def add_target(parser: Any, *, check: str = "") -> None:
    """Add ``--kernel`` and ``--root``, and ``--check`` with the help ``check``."""
    parser.add_argument("--kernel", default="", metavar="REL", help="kernel release (default: the running one)")
    parser.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    if check:
        parser.add_argument("--check", action="store_true", help=check)


def add_driver(parser: Any, flavour: str = "open", version: str = "the driver's version") -> None:
    """Add ``--driver-version`` and ``--driver-flavour``."""
    parser.add_argument("--driver-version", default="", metavar="V", help=version)
    parser.add_argument("--driver-flavour", choices=("open", "proprietary"), default=flavour)
