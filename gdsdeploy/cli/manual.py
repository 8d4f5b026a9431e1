"""Manual pages of all verbs, from their help: one ``.1`` file for each, for man(1)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from gdsdeploy import __version__, atomic

#: A line that roff(7) would read as a request.
_REQUEST = re.compile(r"^([.'])", re.MULTILINE)


def write(root: click.Group, folder: Path) -> list[Path]:
    """Write every page into ``folder``, made if it is missing; returns their paths.  Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for context in _contexts(click.Context(root, info_name="gdsdeploy", max_content_width=78, terminal_width=78)):
        path = folder / f"{context.command_path.replace(' ', '-')}.1"
        atomic.write(path, page(context))
        written.append(path)
    return written


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None, "it is listed"
            yield from _contexts(click.Context(command, info_name=name, parent=context))


def page(context: click.Context) -> str:
    """The page of one verb, as text for man(1)."""
    command, name = context.command, context.command_path.replace(" ", "-")
    first, _, rest = inspect.cleandoc(command.help or "").partition("\n\n")
    summary = " ".join(first.split()).rstrip(".")
    parts = [
        f'.TH "{name.upper()}" "1" "" "gdsdeploy {__version__}" "gdsdeploy"',
        ".SH NAME",
        _text(f"{name} - {summary[:1].lower()}{summary[1:]}"),
        ".SH SYNOPSIS",
        _text(" ".join([context.command_path, *command.collect_usage_pieces(context)])),
    ]
    if rest:
        parts += [".SH DESCRIPTION", *_paragraphs(rest)]
    flags = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    options = [record for each in flags if (record := each.get_help_record(context))]
    if options:
        parts.append(".SH OPTIONS")
        parts += [f".TP\n\\fB{_text(names)}\\fR\n{_text(' '.join(text.split()))}" for names, text in options]
    if isinstance(command, click.Group):
        parts.append(".SH SEE ALSO")
        parts.append(", ".join(f"\\fB{_text(f'{name}-{verb}')}\\fR(1)" for verb in command.list_commands(context)))
    return "\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs; those behind click's mark \\b have their own lines."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":
            body = "\n".join(lines[1:])
            yield f".PP\n.nf\n{_text(body)}\n.fi"
        elif block.strip():
            yield f".PP\n{_text(' '.join(block.split()))}"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return _REQUEST.sub(r"\\&\1", escaped)
