"""Commands in the blocks of pages: which of them a test executes, with what result, and why not the others.

A comment before a block has what the block itself doesn't show::

    <!-- not executed: needs your own hosts -->
    <!-- not executed, lines 2-3, 5: needs root -->
    <!-- exits with 33 -->
    <!-- exits with 30, line 1 -->

``exits with`` without a line is about the last command of the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from tests.unit import docs_pages
from tests.unit.docs_pages import parse

#: Languages of blocks that a shell reads; in ``console``, commands begin with a prompt, and output follows.
SHELLS = ("sh", "bash", "console")
_LINES = r"(?P<lines>\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)"
_MARK = re.compile(rf"<!-- not executed(?:, lines? {_LINES})?: (?P<reason>[^\s].*?) -->")
_STATUS = re.compile(r"<!-- exits with (?P<status>\d+)(?:, line (?P<line>\d+))? -->")
#: A comment that has to be one of these.
_COMMENT = re.compile(r"<!--\s*(?:not.executed|exits).*")
#: Programs that begin a command; a block without a language that has none of them at the beginning of a line is output.
_PROGRAMS = (
    r"gdsdeploy(?:-host\.pyz)?|python3?|gdscheck|dmesg|git|make|\.venv/bin/\S+|ansible[-\w]*|pip|pipx|uv|openssl|gpg"
    r"|molecule|tar|rsync|kubectl|scontrol|squeue|pytest|sqlite3|unzip|dpkg-deb|rpm2archive|journalctl|mount|cd|cat"
    r"|export|install -\S+|rm"
)
_COMMAND = re.compile(rf"(?:sudo )?(?:[A-Z_]+=\S* )*(?:(?:{_PROGRAMS})(?: |$)|\w+=\$\(|… \|)")
#: How help summarises the words of a command.
_SUMMARY = "[OPTIONS]"
_ELLIPSIS = "…"


@dataclass(frozen=True)
class Command:
    """A command with the output that the page shows, and its exit code there.

    line: of the page; reason: why no test executes it, empty: one does.
    """

    text: str
    shown: tuple[str, ...] = ()
    status: int = 0
    line: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Block:
    """The commands of a block; ``line`` is that of its first text, ``problems`` are wrong comments before it."""

    line: int
    commands: tuple[Command, ...]
    problems: tuple[str, ...] = ()


def pages() -> list[str]:
    """Pages whose commands are executed or marked."""
    return [page for page in docs_pages.pages() if page in ("README.md", "CONTRIBUTING.md") or page.startswith("docs/")]


def blocks(markdown: str) -> Iterator[Block]:
    """Every block of a page that a shell reads."""
    lines = markdown.splitlines()
    for token in parse(markdown):
        if token.type in ("fence", "code_block") and token.map and _is_shell(token):
            yield _block(token, list(_comments(lines, token.map[0])))


def executed(markdown: str) -> list[Command]:
    """The commands of a page that aren't marked, in order."""
    return [command for block in blocks(markdown) for command in block.commands if not command.reason]


def stray_comments(markdown: str) -> list[str]:
    """``line: comment`` of each mark that no block follows."""
    lines = markdown.splitlines()
    ends = {
        token.map[0]
        for token in parse(markdown)
        if token.type in ("fence", "code_block") and token.map and (_is_shell(token) or token.type == "fence")
    }
    before = {place for end in ends for place, _ in _comments(lines, end)}
    matches = ((number, _COMMENT.match(line)) for number, line in enumerate(lines))
    return [f"{number + 1}: {match[0]}" for number, match in matches if match and number not in before]


def missing(shown: tuple[str, ...], output: str) -> str:
    """The first line that the page shows and the output doesn't have behind those before; empty: it has all.

    An ellipsis in a line stands for any text.
    """
    place = 0
    for line in (line for line in shown if line.strip() not in ("", _ELLIPSIS)):
        pattern = r"\s*".join(map(re.escape, line.split())).replace(re.escape(_ELLIPSIS), r".*?")
        match = re.compile(pattern).search(output, place)
        if match is None:
            return line
        place = match.end()
    return ""


def _is_shell(token: Token) -> bool:
    language = token.info.strip()
    if language in SHELLS:
        return True
    return not language and any(_COMMAND.match(line) and _SUMMARY not in line for line in token.content.splitlines())


def _comments(lines: list[str], start: int) -> Iterator[tuple[int, str]]:
    """(index, line) of the comments before the block that begins at ``start``; blank lines may stand between."""
    place = start - 1
    while place >= 0 and (not lines[place].strip() or lines[place].startswith("<!--")):
        if lines[place].startswith("<!--"):
            yield place, lines[place]
        place -= 1


def _block(token: Token, comments: list[tuple[int, str]]) -> Block:
    assert token.map is not None
    first = token.map[0] + 1 + (token.type == "fence")
    texts = list(_typed(token.content) if token.info.strip() == "console" else _logical(token.content))
    numbers = [number for number, _, _ in texts]
    reasons: dict[int, str] = {}
    statuses: dict[int, int] = {}
    problems: list[str] = []
    for place, comment in comments:
        mark, status = _MARK.fullmatch(comment), _STATUS.fullmatch(comment)
        if mark:
            chosen = _numbers(mark["lines"]) if mark["lines"] else numbers
            reasons.update(dict.fromkeys(chosen, mark["reason"]))
        elif status and numbers:
            chosen = [int(status["line"]) if status["line"] else numbers[-1]]
            statuses.update(dict.fromkeys(chosen, int(status["status"])))
        else:
            problems += [f"{place + 1}: {comment}: this is no mark"] if _COMMENT.match(comment) else []
            continue
        if not set(chosen) <= set(numbers):
            problems.append(f"{place + 1}: {comment}: a line that it names has no command")
    commands = [
        Command(text, shown, statuses.get(number, 0), first + number - 1, reasons.get(number, ""))
        for number, text, shown in texts
    ]
    return Block(first, tuple(commands), tuple(problems))


def _numbers(text: str) -> list[int]:
    """``1-3, 5``: 1, 2, 3, 5."""
    ranges = (part.split("-") for part in text.split(", "))
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def _typed(text: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(number of the line, command, output) of each command behind a prompt."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield start + 1, lines[start][2:], tuple(lines[start + 1 : end])


def _logical(text: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(number of the line, command, no output) of each line; a backslash continues it, and comments are left out."""
    number = 1
    for whole in re.split(r"(?<!\\)\n", text):
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield number, whole.strip(), ()
        number += whole.count("\n") + 1
