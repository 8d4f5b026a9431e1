"""The site's navigation has every page, links lead there from GitHub and from the site, and the tutorial can be run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from docs.gen import site_hooks
from docs.gen.site_hooks import JOINED, rewritten, slug
from tests.unit import docs_prose

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
TUTORIAL = (DOCS / "tutorial.md").read_text()
#: What stands before a block: why a test must not run it, or the exit code of its last command.
MARK = re.compile(r"<!-- (?:not executed: .+|exits with [0-9]+) -->\n")


def places(nav: object) -> Iterator[str]:
    """Every page of the navigation, in order."""
    if isinstance(nav, str):
        yield nav
    for below in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from places(below)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(places(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) == pages | {place for place in JOINED.values() if place.endswith(".md")}


def test_the_tabs_are_those_that_readers_look_for() -> None:
    tabs = [next(iter(entry)) for entry in CONFIG["nav"]]
    assert tabs == ["Home", "Tutorial", "How-to guides", "Reference", "Explanation", "Contributing"]


def test_the_site_loads_nothing_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert not {"repo_url", "edit_uri", "site_url", "extra_javascript", "extra_css"} & set(CONFIG)
    assert "analytics" not in CONFIG["extra"]
    assert CONFIG["plugins"] == ["search"]


def test_every_problem_of_a_link_fails_the_build() -> None:
    assert CONFIG["strict"] is True
    assert {level for part in CONFIG["validation"].values() for level in part.values()} == {"warn"}


def test_joined_files_exist() -> None:
    assert [source for source in JOINED if not (ROOT / source).is_file()] == []
    assert [page for page in site_hooks.FOLDERS.values() if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize(
    ("source", "place", "before", "after"),
    [
        ("docs/security.md", "security.md", "[a](../SECURITY.md)", "[a](project/security-policy.md)"),
        ("docs/howto/x.md", "howto/x.md", "[a](../lock.md#b)", "[a](../lock.md#b)"),
        ("SECURITY.md", "project/security-policy.md", "[a](docs/security.md#b)", "[a](../security.md#b)"),
        ("CONTRIBUTING.md", "project/contributing.md", "[a](CHANGELOG.md)", "[a](changelog.md)"),
        ("CONTRIBUTING.md", "project/contributing.md", "[a](docs/howto)", "[a](../index.md)"),
        ("benchmarks/README.md", "project/benchmarks.md", "[a](lock/run.py)", "a"),
        ("benchmarks/README.md", "project/benchmarks.md", "[a](../docs/scale.md)", "[a](../scale.md)"),
        ("docs/kernels.md", "kernels.md", "[a](../examples/lab.yml)", "[a](examples/lab.yml)"),
        ("docs/lock.md", "lock.md", "[a](https://x.example/y) [b](#c)", "[a](https://x.example/y) [b](#c)"),
    ],
)  # fmt: skip
def test_links_between_the_pages_and_the_rest(source: str, place: str, before: str, after: str) -> None:
    assert rewritten(before, source, place) == after


def test_bars_in_tables() -> None:
    table = "| a | b |\n|---|---|\n| `x \\| y` | c \\| d |\n\n`\\|`\n"
    assert site_hooks.without_escapes(table) == table.replace("`x \\| y`", "`x | y`")


@pytest.mark.parametrize("page", docs_prose.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_are_those_of_github(page: Path) -> None:
    """So a link to a heading works in both places."""
    text = page.read_text(encoding="utf-8")
    tokens = docs_prose.parse(text)
    titles = [
        "".join(child.content for child in after.children or [] if child.type in ("text", "code_inline"))
        for token, after in pairwise(tokens)
        if token.type == "heading_open"
    ]
    assert {slug(title, "-") for title in titles} == docs_prose.anchors(text)


def _blocks() -> list[tuple[str, str, str]]:
    """(language, text, the comment before it) of each block of the tutorial."""
    lines = TUTORIAL.splitlines(keepends=True)
    fences = [token for token in MarkdownIt().parse(TUTORIAL) if token.type == "fence" and token.map]
    return [(token.info, token.content, lines[token.map[0] - 1]) for token in fences if token.map]


def test_a_program_can_read_the_tutorial() -> None:
    """``$ `` begins a command; what isn't run has another language, and says why."""
    blocks = _blocks()
    assert len([text for language, text, _ in blocks if language == "console"]) >= 12
    for language, text, before in blocks:
        if language == "console":
            assert text.startswith("$ "), text
            assert "not executed" not in before
        else:
            assert before.startswith("<!-- not executed: "), text
        assert not before.startswith("<!--") or MARK.fullmatch(before), before


def test_the_tutorial_cleans_up() -> None:
    commands = [
        line[2:]
        for language, text, _ in _blocks()
        if language == "console"
        for line in text.splitlines()
        if line[:2] == "$ "
    ]
    verbs = [command.split()[1] for command in commands if command.startswith("gdsdeploy ")]
    assert set(verbs) == {"--version", "lab", "lock", "plan", "provision", "validate"}
    assert commands[-1] == "gdsdeploy lab down --lab tutorial"
