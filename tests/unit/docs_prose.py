"""Checks prose by the rules of docs/style.md: ``python -m tests.unit.docs_prose PAGE...`` prints the problems."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
STYLE = ROOT / "docs" / "style.md"
MAX_WORDS = 35
MAX_CELL = 200

#: Stands for a code span: one word, and never part of a refused phrase.
_CODE = "\ufffc"
#: The end of a sentence.  A full stop inside "e.g." or "1.4" does not end one.
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!vs)[.!?][\"')\]]*(?=\s|$)")
_WORD = re.compile(rf"[^\W_]|{_CODE}")


@dataclass(frozen=True)
class Problem:
    """One broken rule; ``line`` counts from 1."""

    line: int
    text: str


@dataclass(frozen=True)
class Block:
    """The text of a paragraph, heading, list entry or table cell.

    ``prose`` has a placeholder for each code span, ``text`` has its content. Lines end as in the page.
    """

    line: int
    is_cell: bool
    prose: str
    text: str


def pages() -> list[Path]:
    """Every page that the linter holds to the rules."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def check_page(markdown: str) -> list[Problem]:
    """All problems of a page, by line."""
    problems: list[Problem] = []
    for block in blocks(markdown):
        if block.is_cell and len(block.text) > MAX_CELL:
            problems.append(Problem(block.line, f"table cell of {len(block.text)} characters (at most {MAX_CELL})"))
        for offset, sentence in _sentences(block.prose):
            line = block.line + block.prose.count("\n", 0, offset)
            words = sum(1 for word in sentence.split() if _WORD.search(word))
            if words > MAX_WORDS:
                problems.append(Problem(line, f"sentence of {words} words (at most {MAX_WORDS}): {_start(sentence)}"))
        for offset, phrase in _matches(block.prose):
            problems.append(Problem(block.line + block.prose.count("\n", 0, offset), f"refused phrase: {phrase}"))
    return sorted(problems, key=lambda problem: problem.line)


def broken_links(page: Path) -> list[Problem]:
    """Links of a page to files and headings that don't exist; addresses of other sites aren't followed."""
    problems: list[Problem] = []
    for block, token in _inlines(page.read_text(encoding="utf-8")):
        for child in token.children or []:
            path, _, anchor = str(child.attrGet("href") or "").partition("#")
            target = (page.parent / path).resolve() if path else page
            if child.type != "link_open" or ":" in path:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                problems.append(Problem(block.line, f"broken link: {child.attrGet('href')}"))
    return problems


def anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings: words in lower case, without punctuation, joined by "-"."""
    tokens = parse(markdown)
    titles = [_inline(after, code=True) for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def refused_phrases(text: str) -> list[str]:
    """The refused phrases in any text, such as a message or the help of a command."""
    return [phrase for _, phrase in _matches(text)]


@cache
def phrases() -> tuple[str, ...]:
    """The refused phrases: code spans in the first column of the last table of docs/style.md."""
    section = STYLE.read_text(encoding="utf-8").partition("\n## Refused phrases\n")[2]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return tuple(phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split("|")[1]))


def blocks(markdown: str) -> Iterator[Block]:
    """Every block of prose; fenced and indented code, and HTML, have none."""
    return (block for block, _ in _inlines(markdown))


def _inlines(markdown: str) -> Iterator[tuple[Block, Token]]:
    line, is_cell = 1, False
    for token in parse(markdown):
        if token.map:
            line = token.map[0] + 1
        if token.type in ("td_open", "th_open"):
            is_cell = True
        elif token.type in ("td_close", "th_close"):
            is_cell = False
        elif token.type == "inline":
            yield Block(line, is_cell, _inline(token, code=False), _inline(token, code=True)), token


@cache
def parse(markdown: str) -> list[Token]:
    """A page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(markdown)


def _inline(token: Token, *, code: bool) -> str:
    parts: list[str] = []
    for child in token.children or []:
        if child.type == "code_inline":
            parts.append(child.content if code else _CODE)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type in ("text", "image"):
            parts.append(child.content)
    return "".join(parts)


def _sentences(prose: str) -> Iterator[tuple[int, str]]:
    """(offset, sentence) of each."""
    start = 0
    for end in [*(match.end() for match in _END.finditer(prose)), len(prose)]:
        sentence = prose[start:end]
        if sentence.strip():
            yield start + len(sentence) - len(sentence.lstrip()), sentence.strip()
        start = end


def _matches(text: str) -> Iterator[tuple[int, str]]:
    for match in _pattern().finditer(text.replace("’", "'")):
        yield match.start(), " ".join(match.group().lower().split())


@cache
def _pattern() -> re.Pattern[str]:
    words = (r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases())
    return re.compile(rf"(?:(?<!\w)(?=\w)|(?=,))(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)


def _start(sentence: str) -> str:
    text = " ".join(sentence.replace(_CODE, "`…`").split())
    return text if len(text) <= 80 else text[:79] + "…"


def main(arguments: list[str]) -> int:
    """Print ``page:line: problem`` for each problem of the pages named, or of every page."""
    count = 0
    for page in map(Path, arguments) if arguments else pages():
        for problem in [*check_page(page.read_text(encoding="utf-8")), *broken_links(page)]:
            sys.stdout.write(f"{page}:{problem.line}: {problem.text}\n")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
