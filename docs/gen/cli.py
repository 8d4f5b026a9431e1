"""The page of commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from docs.gen import table_row, unexecuted
from gdsdeploy.cli import group, lab

HEAD = """\
# Commands

This page is made from the command line itself. `gdsdeploy VERB --help` prints the same.

Every verb ends with one of these [exit codes](exit-codes.md). [The command line](command-line.md) says what all verbs
have in common.

"""
#: Environment variables that the program reads, with the pages that describe them.
VARIABLES = {
    "GDSDEPLOY_FLEET": ("the fleet file of commands that name none", "[The command line](command-line.md#fleet)"),
    "GDSDEPLOY_STATE_DIR": (
        "the folder of labs, journals, records and kept locks",
        "[The lab](lab.md#what-it-needs-and-what-it-leaves)",
    ),
    "GDSDEPLOY_CACHE_DIR": ("the folder of downloads, builds and base systems", "[Built once](build-once.md)"),
    "GDSDEPLOY_BUILD_CACHE_SIZE": ("how large the cache of built modules may become", "[Built once](build-once.md)"),
    "GDSDEPLOY_HOST_PROGRAM": (
        "for the roles: a host program that is already packed",
        "[The Ansible collection](collection.md)",
    ),
    "GDSDEPLOY_LAB_ACCEL": ("`kvm` or `tcg`: how VM hosts of a lab run", "[The lab](lab.md#the-two-kinds-of-host)"),
    "GDSDEPLOY_LAB_LIGHT": (
        "`namespace`: light hosts of a lab without systemd",
        "[The lab](lab.md#the-two-kinds-of-host)",
    ),
    "NO_COLOR": ("no colours", "[Output](command-line.md#while-work-is-under-way)"),
}
TAIL = """
## Environment variables

These variables change how every verb works:

| variable | what it sets | described in |
| --- | --- | --- |
"""
LAST = """
[What a run takes from your shell](fleet.md#what-a-run-takes-from-your-shell) lists the variables of Ansible and of
OpenSSH.
"""
#: A page that help names.
_PAGE = re.compile(r"\bdocs/((?:[\w-]+/)*[\w-]+\.md)\b")
#: The mark of a paragraph whose lines stay as they are.
_VERBATIM = "\b"


def page() -> str:
    """Markdown: every verb with its arguments and options, in the order of ``--help``."""
    commands = list(_commands(group, "gdsdeploy", click.Context(group, info_name="gdsdeploy")))
    rows = [f"- [`{name}`](#{_anchor(name)}): {_summary(command)}\n" for name, command, _ in commands[1:]]
    variables = [table_row(f"`{name}`", *cells) for name, cells in VARIABLES.items()]
    return "".join([HEAD, *rows, *(_section(*entry) for entry in commands), TAIL, *variables, LAST])


def _commands(
    command: click.Command, name: str, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield name, command, context
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            assert below is not lab.absent, "gdslab isn't installed here: make setup"
            yield from _commands(below, f"{name} {verb}", click.Context(below, parent=context, info_name=verb))


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").partition("\n\n")[0].partition("\f")[0]
    return _prose(" ".join(text.split()))


def _section(name: str, command: click.Command, context: click.Context) -> str:
    lines = [f"\n## {name}\n", f"\n    {' '.join([name, *command.collect_usage_pieces(context)])}\n\n"]
    lines += [_paragraph(text) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    options = [text for parameter in command.get_params(context) if (text := _option(parameter, context))]
    return "".join(lines).rstrip("\n") + "\n" + ("\n" + "".join(options) if options else "")


def _paragraph(text: str) -> str:
    """A paragraph of help; one of examples becomes a block of code."""
    if not text.startswith(_VERBATIM):
        return _prose(" ".join(text.split())) + "\n\n"
    lines = text.removeprefix(_VERBATIM).strip("\n").splitlines()
    heading = f"{lines.pop(0)}\n\n" if lines and lines[0].rstrip().endswith(":") else ""
    marks = unexecuted.marks([line.strip() for line in lines]) if heading else ""
    code = "".join(f"    {line.strip() if heading else line}\n" for line in lines)
    return heading + (f"{marks}\n" if marks else "") + code + "\n"


def _prose(text: str) -> str:
    """Text of help as Markdown: links to pages, and code spans where help has an asterisk or an angle bracket."""
    text = re.sub(r"(?<![\w`])(--[a-z][\w-]*)", r"`\1`", text) if "`" not in text else text
    linked = _PAGE.sub(r"[\1](\1)", text)
    return re.sub(r"\[(?![^\]]*\]\()", r"\\[", linked).replace("<", "&lt;")


def _option(parameter: click.Parameter, context: click.Context) -> str:
    """A line of the list of options; arguments are part of the usage line."""
    if not isinstance(parameter, click.Option) or parameter.hidden or "--help" in parameter.opts:
        return ""
    metavar = "" if parameter.is_flag else f" {_metavar(parameter, context)}"
    names = ", ".join(f"`{name}`" for name in [*parameter.opts[:-1], parameter.opts[-1] + metavar])
    help_text, _, written = (parameter.help or "").partition("  [default: ")
    notes = [f"default: {written.removesuffix(']')}"] if written else []
    notes += [text for text in (_default(parameter, context), _range(parameter)) if text]
    notes += ["repeatable"] if parameter.multiple and "repeatable" not in help_text else []
    notes += ["required"] if parameter.required else []
    notes += [f"environment variable `{parameter.envvar}`"] if parameter.envvar else []
    sentence = _prose(" ".join(help_text.split()))
    return f"- {names}: {sentence} ({'; '.join(notes)})\n" if notes else f"- {names}: {sentence}\n"


def _metavar(parameter: click.Option, context: click.Context) -> str:
    return "N" if _range(parameter) and not parameter.metavar else parameter.make_metavar(context)


def _default(parameter: click.Option, context: click.Context) -> str:
    extra = parameter.get_help_extra(context)
    return f"default: `{extra['default'].removesuffix('.0')}`" if extra.get("default") else ""


def _range(parameter: click.Option) -> str:
    kind = parameter.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    return f"{kind.min} to {kind.max}" if kind.max is not None else f"at least {kind.min}"
