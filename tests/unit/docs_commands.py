"""Commands that pages show: each ``gdsdeploy …`` in a block of code or in a code span, and what is wrong with it.

Nothing runs: click's parsers judge the words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click

from gdsdeploy.cli import group
from tests.unit.docs_pages import parse

#: A command in a line: at its beginning, after a prompt, sudo, a variable or another command.
_COMMAND = re.compile(
    r"(?:^|[|;&(]\s*|\$ )(?:sudo )?(?:[A-Z_]+=\S* )*(?:\S*/)?gdsdeploy(?=\s)"
    r"(?P<words>(?:'[^']*'|\"[^\"]*\"|[^|;&#()>])*)"
)
#: What stands for words that a reader fills in.
_PLACEHOLDER = re.compile(r"^…$|^\.\.\.$|^<.*>$")
#: Words that may be left out: ``[--json]``.
_OPTIONAL = re.compile(r"(?<!\S)\[([^\[\]]*)\](?:\.\.\.)?(?!\S)")

#: Flags that ``provision`` and ``remove`` pass to ansible-playbook.
_OF_ANSIBLE = {"--check", "--diff", "-v", "-e", "--forks", "--tags"}


@dataclass(frozen=True)
class Shown:
    """A command on a page; ``is_whole``: of a block, so that required words are there."""

    line: int
    text: str
    is_whole: bool


def shown_commands(markdown: str) -> list[Shown]:
    """All commands of a page, without comments, redirections and what follows a pipe."""
    commands: list[Shown] = []
    for token in parse(markdown):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("fence", "code_block"):
            text = token.content.replace("\\\n", " ")
            first = line + (token.type == "fence")
            commands += _commands_of_block(text, first, prompt=token.info.strip() == "console")
        for child in token.children or []:
            if child.type == "code_inline":
                commands += [Shown(line, words, is_whole=False) for words in _in_line(child.content)]
    return commands


def _commands_of_block(text: str, first: int, *, prompt: bool) -> Iterator[Shown]:
    for number, line in enumerate(text.splitlines(), first):
        if not prompt or line.startswith("$ "):
            yield from (Shown(number, words, is_whole=True) for words in _in_line(line.strip()))


def _in_line(line: str) -> Iterator[str]:
    for match in _COMMAND.finditer(line):
        yield match["words"].strip()


def problem(shown: Shown) -> str:
    """Why the command line refuses these words; empty: it doesn't."""
    text = _OPTIONAL.sub(r"\1", shown.text.replace("[OPTIONS]", ""))
    try:
        spoken = shlex.split(text)
    except ValueError:
        spoken = text.split()
    words = [word for word in spoken if not _PLACEHOLDER.match(word)]
    is_whole = shown.is_whole and words == spoken
    command: click.Command = group
    context = _context(group, None, "gdsdeploy")
    while isinstance(command, click.Group):
        words = _without_options_of(command, context, words)
        if not words or words[0].endswith(":"):
            return ""
        verb = words.pop(0)
        below = command.get_command(context, verb)
        if below is None:
            return "" if _is_a_choice(verb, command, context) else f"{context.command_path} has no verb {verb}"
        command, context = below, _context(below, context, verb)
    return _problem_of_words(command, context, words, is_whole=is_whole)


def _context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    return click.Context(command, parent=parent, info_name=name, **command.context_settings)


def _without_options_of(command: click.Group, context: click.Context, words: list[str]) -> list[str]:
    names = {name for parameter in command.get_params(context) for name in parameter.opts}
    while words and words[0] in names:
        words = words[1:]
    return words


def _is_a_choice(word: str, command: click.Group, context: click.Context) -> bool:
    """Whether it is a placeholder for a verb, or a list of verbs: ``VERB``, ``pause|resume``."""
    return word.isupper() or all(command.get_command(context, part) for part in re.split(r"[|,]", word))


def _problem_of_words(command: click.Command, context: click.Context, words: list[str], *, is_whole: bool) -> str:
    if context.ignore_unknown_options:
        words = [word for word in words if word not in _OF_ANSIBLE]
        context.ignore_unknown_options = command.name == "ssh"
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        # In a sentence an option may stand without its value.
        return "" if not is_whole and isinstance(error, click.BadOptionUsage) else error.format_message()
    if rest:
        return f"{context.command_path}: too many words: {' '.join(rest)}"
    for parameter in command.get_params(context):
        if (text := _problem_of_value(parameter, values.get(str(parameter.name)), context)) and is_whole:
            return f"{context.command_path}: {text}"
    return ""


def _problem_of_value(parameter: click.Parameter, value: object, context: click.Context) -> str:
    missing = value is None or type(value).__name__ == "Sentinel" or value in ((), [])
    if missing:
        name = parameter.human_readable_name
        return f"missing argument {name}" if isinstance(parameter, click.Argument) and parameter.required else ""
    if isinstance(parameter.type, click.Choice | click.IntRange | click.FloatRange) and isinstance(value, str):
        if value.isupper():
            return ""
        try:
            parameter.type.convert(value, parameter, context)
        except click.BadParameter as error:
            return error.format_message()
    return ""


def problems(markdown: str) -> list[str]:
    """``line: command: problem`` of each command that the command line refuses."""
    shown = shown_commands(markdown)
    return [f"{each.line}: gdsdeploy {each.text}: {text}" for each in shown if (text := problem(each))]
