"""The commands of the program: a decorator gives a function its name on the command line and its options."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from functools import partial
from typing import Any, Callable, Dict, Iterable, Optional, Pattern, Tuple, Union

from ..io.wording import joined

Run = Callable[[argparse.Namespace], int]
#: Exit statuses, of what judges a host and of the program.
OK, UNUSABLE, FAILED, UNDECIDED = 0, 2, 30, 31
#: Adds an option or an argument to a parser.
Option = Callable[[Any], object]


def option(*names: str, **settings: Any) -> Option:
    """An option or an argument, with its names and settings as ``add_argument`` takes them."""
    return lambda parser: parser.add_argument(*names, **settings)


def one_of(*options: Option) -> Option:
    """Options of which exactly one has to be given."""

    def add(parser: Any) -> None:
        either = parser.add_mutually_exclusive_group(required=True)
        for each in options:
            each(either)

    return add


def matching(pattern: Union[str, Pattern[str]], words: str) -> Callable[[str], str]:
    """The type of an option that ``pattern`` matches as a whole; words: what is said of any other text."""

    def parse(text: str) -> str:
        if not (re.compile(pattern) if isinstance(pattern, str) else pattern).fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text!r} {words}")
        return text

    return parse


def number(fits: Callable[[float], bool], words: str) -> Callable[[str], float]:
    """The type of an option that is such a number; words: what any other text isn't."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if fits(float(text)):
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} isn't {words}")

    return parse


#: The type of an option that is a limit of time.
seconds = number(lambda value: 0 < value <= 3600, "a number of seconds above 0 and up to 3600")
#: Of commands that look at other systems, too.
ROOT = option("--root", default="/", metavar="DIR", help="a root folder that need not be running")
_JSON = option("--json", action="store_true", help="print one JSON object")


class Group:
    """Commands by their names.

    around: through what their functions are called.  settings: for each one's ArgumentParser.
    """

    def __init__(self, around: Callable[[Run], Run] = lambda run: run, **settings: Any) -> None:
        self._around, self._settings = around, settings
        self._commands: Dict[str, Callable[[Any], None]] = {}

    def add(self, name: str, commands: Any) -> None:
        """Add a command to an argparse subparsers object; it sets ``run``, a function of the parsed arguments."""
        self._commands[name](commands)

    def group(self, name: str, text: str, around: Callable[[Run], Run] = lambda run: run, **settings: Any) -> Group:
        """A command that consists of others."""
        below = Group(around, **settings)

        def add(commands: Any) -> None:
            verbs = commands.add_parser(name, help=text, description=text).add_subparsers(metavar="COMMAND")
            verbs.required = True
            for verb in below._commands:
                below.add(verb, verbs)

        self._commands[name] = add
        return below

    def command(
        self, name: str, text: str, *options: Option, with_json: bool = True, **settings: Any
    ) -> Callable[[Run], Run]:
        """Have the decorated function run a command with ``--json`` and its options; settings: as for the group."""

        def decorate(run: Run) -> Run:
            def add(commands: Any) -> None:
                parser = commands.add_parser(name, help=text, **{"description": text, **self._settings, **settings})
                for each in [*([_JSON] if with_json else []), *options]:
                    each(parser)
                parser.set_defaults(run=self._around(run), unguarded=run)

            self._commands[name] = add
            return run

        return decorate


#: The commands of modules that were imported.
PROGRAM = Group()


def show(arguments: argparse.Namespace, value: Any, lines: Iterable[str], *, indent: Optional[int] = None) -> int:
    """Print an answer as JSON or in lines, as the caller asked; returns 0.  Nothing is printed without a line."""
    text = json.dumps(value, indent=indent, sort_keys=True) if arguments.json else joined(lines)
    if text:
        print(text)
    return 0


#: For answers that people read as JSON, too.
show_indented = partial(show, indent=2)


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
