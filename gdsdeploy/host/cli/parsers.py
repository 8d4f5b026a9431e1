"""What the parsers of commands have in common."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ..io.wording import joined

Run = Callable[[argparse.Namespace], int]
#: Names and settings of an option, as ``add_argument`` takes them.
Option = Tuple[Tuple[str, ...], Dict[str, Any]]


def option(*names: str, **settings: Any) -> Option:
    """An option or an argument of :func:`command`."""
    return names, settings


#: Of commands that look at other systems, too.
ROOT = option("--root", default="/", metavar="DIR", help="a root folder that need not be running")


def group(commands: Any, name: str, text: str) -> Any:
    """Add a command that consists of others; returns the argparse object that takes them."""
    verbs = commands.add_parser(name, help=text, description=text).add_subparsers(metavar="COMMAND")
    verbs.required = True
    return verbs


def command(
    commands: Any, name: str, run: Run, text: str, *options: Option, with_json: bool = True, **settings: Any
) -> argparse.ArgumentParser:
    """Add a command with ``--json`` and its options; settings: for its ArgumentParser."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, **{"description": text, **settings})
    as_json = option("--json", action="store_true", help="print one JSON object")
    for names, words in [*([as_json] if with_json else []), *options]:
        parser.add_argument(*names, **words)
    parser.set_defaults(run=run)
    return parser


def show(arguments: argparse.Namespace, value: Any, lines: Iterable[str], *, indent: Optional[int] = None) -> int:
    """Print an answer as JSON or in lines, as the caller asked; returns 0.  Nothing is printed without a line."""
    text = json.dumps(value, indent=indent, sort_keys=True) if arguments.json else joined(lines)
    if text:
        print(text)
    return 0


#: For answers that people read as JSON, too.
show_indented = partial(show, indent=2)


def trial(commands: Any, name: str, run: Run, text: str, timeout: float) -> None:
    """Add a command that tries something in a scratch file in each PATH, for ``--timeout`` seconds."""
    from ..gdscheck.live import seconds

    words = "for each try (%(default)g)"
    command(
        commands,
        name,
        run,
        text,
        option("path", nargs="+", metavar="PATH", help="a folder on the mount; a new file in it is tried"),
        option("--timeout", type=seconds, default=timeout, metavar="SECONDS", help=words),
    )


def target(check: str = "") -> Tuple[Option, ...]:
    """``--kernel`` and ``--root``, and ``--check`` with the help ``check``."""
    kernel = option("--kernel", default="", metavar="REL", help="kernel release (default: the running one)")
    return (kernel, ROOT, *([option("--check", action="store_true", help=check)] if check else []))


def driver(flavour: str = "open", version: str = "the driver's version") -> Tuple[Option, Option]:
    """``--driver-version`` and ``--driver-flavour``."""
    return (
        option("--driver-version", default="", metavar="V", help=version),
        option("--driver-flavour", choices=("open", "proprietary"), default=flavour),
    )
