"""The pages of the documentation, also those that are made with the site: their links, and phrases that they avoid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs import gen
from docs.gen.site_hooks import slug

ROOT = Path(__file__).parents[2]
#: Pages that only the site has → their names there.
GENERATED = {f"docs/{name}": name for name in gen.PAGES}
#: Stands for a code span, which is never part of a refused phrase.
_CODE = "\ufffc"


@cache
def pages() -> tuple[str, ...]:
    """Every page: its path from the root of the repository."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return (*(path.relative_to(ROOT).as_posix() for path in files), *GENERATED)


@cache
def text(page: str) -> str:
    """The Markdown of a page."""
    return gen.text(GENERATED[page]) if page in GENERATED else (ROOT / page).read_text(encoding="utf-8")


@cache
def parse(markdown: str) -> list[Token]:
    """A page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(markdown)


def broken_links(page: str, markdown: str) -> list[str]:
    """``line: target`` of links to files and headings that don't exist; addresses of other sites aren't followed."""
    return [
        f"{line}: {href}"
        for line, token in _inlines(markdown)
        for child in token.children or []
        if child.type == "link_open" and not _leads_somewhere(page, markdown, href := str(child.attrGet("href")))
    ]


def _leads_somewhere(page: str, markdown: str, href: str) -> bool:
    path, _, anchor = href.partition("#")
    if ":" in path:
        return True
    target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    name = target.relative_to(ROOT).as_posix()
    # Only the site has the generated pages, and only docs/ is read there.
    is_generated = page.startswith("docs/") and (name in GENERATED or name == f"docs/{gen.SCHEMA}")
    if path and not is_generated and not target.exists():
        return False
    return not anchor or anchor in anchors(text(name) if path else markdown)


def anchors(markdown: str) -> set[str]:
    """The anchors of a page's headings."""
    tokens = parse(markdown)
    return {slug(_words(after, code=True), "-") for token, after in pairwise(tokens) if token.type == "heading_open"}


def refused_on(markdown: str) -> list[str]:
    """``line: phrase`` of each refused phrase in a page's paragraphs, headings, lists and tables, but not in code."""
    return [
        f"{line}: {phrase}"
        for line, token in _inlines(markdown)
        for phrase in refused_phrases(_words(token, code=False))
    ]


def refused_phrases(words: str) -> list[str]:
    """The refused phrases in any text, such as a message or the help of a command."""
    return [" ".join(match.group().lower().split()) for match in _pattern().finditer(words.replace("’", "'"))]


@cache
def phrases() -> tuple[str, ...]:
    """The refused phrases: code spans in the first column of the last table of docs/style.md."""
    section = text("docs/style.md").partition("\n## Refused phrases\n")[2]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return tuple(phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split("|")[1]))


@cache
def _pattern() -> re.Pattern[str]:
    words = (r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases())
    return re.compile(rf"(?:(?<!\w)(?=\w)|(?=,))(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)


def _inlines(markdown: str) -> Iterator[tuple[int, Token]]:
    """(line, text) of each paragraph, heading, list entry and table cell."""
    line = 1
    for token in parse(markdown):
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            yield line, token


def _words(token: Token, *, code: bool) -> str:
    parts: list[str] = []
    for child in token.children or []:
        if child.type == "code_inline":
            parts.append(child.content if code else _CODE)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type in ("text", "image"):
            parts.append(child.content)
    return "".join(parts)
