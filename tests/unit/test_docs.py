"""Every page of the documentation: its links, commands and marks are right, and it avoids the refused phrases."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from docs.gen import site_hooks
from docs.gen.site_hooks import rewritten
from tests.unit import docs_blocks, docs_commands, docs_pages
from tests.unit.docs_blocks import blocks, stray_comments
from tests.unit.docs_pages import ROOT, broken_links, refused_on, refused_phrases, text

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.mark.parametrize("page", docs_pages.pages())
def test_a_page(page: str) -> None:
    assert broken_links(page, text(page)) == []
    assert docs_commands.problems(text(page)) == []
    assert refused_on(text(page)) == []


@pytest.mark.parametrize("page", docs_blocks.pages())
def test_commands_are_executed_or_marked(page: str) -> None:
    assert stray_comments(text(page)) == []
    for block in blocks(text(page)):
        assert block.problems == ()
        assert block.commands, f"{page}:{block.line}: a block of a shell has commands"
        for command in block.commands:
            # A test that a mark names is there.
            for path in re.findall(r"tests/[\w/.]+", command.reason):
                assert (ROOT / path).exists(), command


def test_the_readers_of_pages_see_what_is_there() -> None:
    """An error in them would find nothing that is wrong."""
    counts = {page: len(docs_blocks.executed(text(page))) for page in docs_blocks.pages()}
    assert sum(counts.values()) > 100
    assert counts["docs/cli.md"] >= 40
    assert sum(len(docs_commands.shown_commands(text(page))) for page in docs_pages.pages()) > 400
    for wrong in (
        "lok fleet.yml",
        "lock --upgrad fleet.yml",
        "plan fleet.yml another.yml",
        "validate --connections 0",
    ):
        assert len(docs_commands.problems(f"    gdsdeploy {wrong}\n")) == 1, wrong
    assert stray_comments("<!-- not executed: why -->\n\ntext\n") != []
    (block,) = blocks("<!-- exits with one -->\n\n    gdsdeploy plan\n")
    assert block.problems


def test_every_path_on_the_page_of_the_architecture_exists() -> None:
    folders = "gdsdeploy|playbooks|plugins|roles|templates|tests|docs"
    paths = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text("docs/architecture.md")))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_broken_links() -> None:
    markdown = (
        "# A cufile.json here\n\n[a](lock.md) [b](checks.md#checks) [c](#a-cufilejson-here) [d](fleet.schema.json)\n"
        "[e](https://example.com/#x) [f](..)\n\n| |\n|---|\n| [g](none.md) [h](checks.md#what) [i](#none) |\n"
    )
    assert broken_links("docs/lock.md", markdown) == ["8: none.md", "8: checks.md#what", "8: #none"]
    # GitHub shows the README, and has no generated page.
    assert broken_links("README.md", "[a](docs/lock.md) [b](docs/checks.md)") == ["1: docs/checks.md"]


def test_refused_phrases() -> None:
    assert refused_on("It works.\nThat is a key of One’s\nown.") == ["1: one's own"]
    assert refused_on("Refused, for it is old.\n\n| a |\n|---|\n| anew |") == ["1: , for it", "5: anew"]
    assert refused_on("Room, for items. `nobody` knows nobodyness.\n\n    nobody\n") == []
    assert len(docs_pages.phrases()) > 40
    assert not any(refused_phrases(f"x {phrase} x") != [phrase] for phrase in docs_pages.phrases())


@pytest.mark.parametrize(
    ("source", "place", "before", "after"),
    [
        ("docs/security.md", "security.md", "[a](../SECURITY.md)", "[a](project/security-policy.md)"),
        ("docs/guides/x.md", "guides/x.md", "[a](../lock.md#b)", "[a](../lock.md#b)"),
        ("SECURITY.md", "project/security-policy.md", "[a](docs/security.md#b)", "[a](../security.md#b)"),
        ("CONTRIBUTING.md", "project/contributing.md", "[a](CHANGELOG.md)", "[a](changelog.md)"),
        ("CONTRIBUTING.md", "project/contributing.md", "[a](docs/guides)", "[a](../index.md)"),
        ("benchmarks/README.md", "project/benchmarks.md", "[a](lock/run.py)", "a"),
        ("docs/kernels.md", "kernels.md", "[a](../examples/lab.yml)", "[a](examples/lab.yml)"),
        ("docs/lock.md", "lock.md", "[a](https://x.example/y) [b](#c)", "[a](https://x.example/y) [b](#c)"),
    ],
)  # fmt: skip
def test_links_between_the_pages_and_the_rest(source: str, place: str, before: str, after: str) -> None:
    assert rewritten(before, source, place) == after


def test_bars_in_tables() -> None:
    table = "| a | b |\n|---|---|\n| `x \\| y` | c \\| d |\n\n`\\|`\n"
    assert site_hooks.without_escapes(table) == table.replace("`x \\| y`", "`x | y`")


def test_every_problem_of_a_link_fails_the_build_of_the_site() -> None:
    assert CONFIG["strict"] is True
    assert {level for part in CONFIG["validation"].values() for level in part.values()} == {"warn"}
