"""Commands of the host program that also work on this machine: same arguments and code, the controller's exit codes."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import Any

import click

from gdsdeploy.cli.verbs import early_flags
from gdsdeploy.errors import ChecksUnknown, GdsError, ModuleBuildFailed
from gdsdeploy.host.cli import kmod
from gdsdeploy.host.errors import AuditError, BuildError, HostError

_EXPLAINED = re.compile(r"(\S)(\s{2,})(?=\S)")
#: Key of a context for the words of a command, which the host program's parser takes.
_WORDS = "gdsdeploy.cli.kmod.words"


class _Mirror(click.Command):
    """A command of the host program, whose parser decides; click shows its help and completes its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = (word for word in args if word not in ("-q", "--quiet"))
        ctx.meta[_WORDS] = [self.name, *early_flags(ctx), *words]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        arguments = _parser().parse_args(["kmod", *ctx.meta[_WORDS]])
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gdsdeploy")
    kmod.add_parsers(parser.add_subparsers())
    return parser


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Name → parser of the commands below ``parser``."""
    (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(below.choices)


def _mirrored(name: str, parser: argparse.ArgumentParser) -> click.Command:
    """The command ``name`` with the parameters and the help of ``parser``."""
    paragraphs = textwrap.dedent(parser.epilog or "").strip("\n").replace("%(prog)s", f"gdsdeploy kmod {name}")
    text = "\n\n".join([_description(parser), *map(_paragraph, paragraphs.split("\n\n"))]).rstrip()
    parameters = [_parameter(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return _Mirror(name, params=parameters, help=text)


def _description(parser: argparse.ArgumentParser) -> str:
    text = _sentence((parser.description or "").strip())
    return text if text.endswith((".", "?")) else f"{text}."


def _paragraph(text: str) -> str:
    """A paragraph as click has it; an example's explanation, which blanks precede, becomes a comment."""
    if not text.startswith("examples:"):
        return text
    lines = (_EXPLAINED.sub(r"\1\2# ", line, count=1) for line in text.splitlines()[1:])
    return "\n".join(["\b", "Examples:", *lines])


def _parameter(action: argparse.Action) -> click.Parameter:
    several = action.nargs in ("*", "+")
    hidden = action.help == argparse.SUPPRESS
    settings: dict[str, Any] = {"metavar": _metavar(action), "expose_value": False}
    if not action.option_strings:
        return click.Argument(
            [action.dest], nargs=-1 if several else 1, required=action.nargs not in ("*", "?"), **settings
        )
    if action.choices is not None and action.metavar is None:
        settings |= {"type": click.Choice([str(choice) for choice in action.choices]), "metavar": None}
    is_flag = action.nargs == 0
    repeats = isinstance(action, argparse._AppendAction)
    return click.Option(
        [*action.option_strings, action.dest],
        is_flag=is_flag,
        multiple=repeats and not is_flag,
        required=action.required,
        hidden=hidden,
        help=None if hidden else _sentence((action.help or "") % {**vars(action), "prog": "gdsdeploy"}),
        **({**settings, "metavar": None} if is_flag else settings),
    )


def _sentence(text: str) -> str:
    """The text with a capital letter, unless it begins with the name of a module."""
    return text if "-" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def _metavar(action: argparse.Action) -> str | None:
    if isinstance(action.metavar, str):
        endings = {"*": f"[{action.metavar}]...", "+": f"{action.metavar}..."}
        return action.metavar if action.option_strings else endings.get(str(action.nargs), action.metavar)
    return None


_PARSERS = _choices(_choices(_parser())["kmod"])
#: Verb → command
commands = {
    name: _mirrored(name, _PARSERS[name]) for name in ("audit", "build", "sign", "keygen", "enrol", "unenrol", "trees")
}
