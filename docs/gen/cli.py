"""The page of commands: ``python -m docs.gen.cli > docs/cli.md``."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from docs.gen import table_row
from gdsdeploy.cli import group
from gdsdeploy.cli.kmod import VERBS as KMOD_VERBS
from gdsdeploy.cli.kmod import local
from gdsdeploy.host.cli import kmod

HEAD = """\
# Commands

`python -m docs.gen.cli > docs/cli.md` writes this page from the command line itself. `gdsdeploy VERB --help` prints the
same.

Every verb ends with one of these [exit codes](exit-codes.md). `--quiet` stands before the verb:
`gdsdeploy --quiet plan fleet.yml`.

"""
#: Environment variables that the program reads, with the pages that describe them.
VARIABLES = {
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
    "NO_COLOR": ("no colours", "[Output](output.md#while-work-is-under-way)"),
}
TAIL = """
## Environment variables

No option reads its value from a variable. These variables change how every verb works:

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
    rows = [f"- [`{name}`](#{_anchor(name)}): {_summary(name, command)}\n" for name, command, _ in commands[1:]]
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
            yield from _commands(below, f"{name} {verb}", click.Context(below, parent=context, info_name=verb))


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(name: str, command: click.Command) -> str:
    if command in local.commands.values():
        return f"{KMOD_VERBS[name.rpartition(' ')[2]]}."
    text = inspect.cleandoc(command.help or "").partition("\n\n")[0].partition("\f")[0]
    return _prose(" ".join(text.split()))


def _section(name: str, command: click.Command, context: click.Context) -> str:
    if command in local.commands.values():
        return _host_section(name)
    lines = [f"\n## {name}\n", f"\n    {' '.join([name, *command.collect_usage_pieces(context)])}\n\n"]
    lines += [_paragraph(text) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    options = [text for parameter in command.get_params(context) if (text := _option(parameter, context))]
    return "".join(lines).rstrip("\n") + "\n" + ("\n" + "".join(options) if options else "")


def _host_section(name: str) -> str:
    """A verb of the host program that runs on this machine, too; argparse has its arguments."""
    verb = name.rpartition(" ")[2]
    parser = _host_parsers()[verb]
    text = " ".join((parser.description or KMOD_VERBS[verb]).split())
    sentence = f"{text[0].upper()}{text[1:]}" + ("" if text.endswith((".", "?")) else ".")
    lines = [f"\n## {name}\n\n    {name} [OPTIONS] …\n\n{_prose(sentence)}\n"]
    before, _, examples = inspect.cleandoc(parser.epilog or "").partition("examples:\n")
    if before.strip():
        lines.append(f"\n{_prose(' '.join(before.split()))}\n")
    if examples:
        text = textwrap.dedent(examples.rstrip()).replace("%(prog)s", name)
        # Two blanks and more are before the explanation.
        block = (re.sub(r"(?<=\S)(\s{2,})(?=\S)", r"\1# ", line, count=1) for line in text.splitlines())
        lines.append("\nExamples:\n\n" + "".join(f"    {line}\n" for line in block))
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return "".join([*lines, "\n", *(_host_option(action) for action in actions if action.help != argparse.SUPPRESS)])


def _host_parsers() -> dict[str, argparse.ArgumentParser]:
    top = argparse.ArgumentParser(prog="gdsdeploy").add_subparsers()
    kmod.add_parsers(top)
    (below,) = (action for action in top.choices["kmod"]._actions if isinstance(action, argparse._SubParsersAction))
    return dict(below.choices)


def _host_option(action: argparse.Action) -> str:
    metavar = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    metavar = "|".join(map(str, action.choices)) if action.choices else str(metavar)
    *others, last = action.option_strings or [""]
    words = [*others, f"{last} {metavar}".strip()]
    text = " ".join((action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%").split())
    return f"- {', '.join(f'`{word}`' for word in words)}" + (f": {_prose(text)}\n" if text else "\n")


def _paragraph(text: str) -> str:
    """A paragraph of help; one of examples becomes a block of code."""
    if not text.startswith(_VERBATIM):
        return _prose(" ".join(text.split())) + "\n\n"
    lines = text.removeprefix(_VERBATIM).strip("\n").splitlines()
    heading = f"{lines.pop(0)}\n\n" if lines and lines[0].rstrip().endswith(":") else ""
    return heading + "".join(f"    {line.strip() if heading else line}\n" for line in lines) + "\n"


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


if __name__ == "__main__":
    print(page(), end="")
