"""The pages keep the rules of docs/style.md, and the linter finds what breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import docs_prose
from tests.unit.docs_prose import Problem, check_page

LONG = " ".join(["word"] * 36)
FITS = " ".join(["word"] * 35)


@pytest.mark.parametrize("page", docs_prose.pages(), ids=lambda page: str(page.relative_to(docs_prose.ROOT)))
def test_page_has_no_problem(page: Path) -> None:
    problems = check_page(page.read_text(encoding="utf-8"))
    assert not problems, "\n" + "\n".join(f"{page}:{problem.line}: {problem.text}" for problem in problems)


@pytest.mark.parametrize("page", docs_prose.pages(), ids=lambda page: str(page.relative_to(docs_prose.ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert docs_prose.broken_links(page) == []


def test_broken_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# What `verify` does, and why\n", encoding="utf-8")
    page.write_text(
        "# A cufile.json here\n\n[a](other.md) [b](other.md#what-verify-does-and-why) [c](#a-cufilejson-here)\n"
        "[d](https://example.com/#x) [e](..)\n\n| |\n|---|\n| [f](none.md) [g](other.md#what) [h](#none) |\n",
        encoding="utf-8",
    )
    broken = ("none.md", "other.md#what", "#none")
    assert docs_prose.broken_links(page) == [Problem(8, f"broken link: {link}") for link in broken]


def test_every_kind_of_page_is_among_them() -> None:
    names = {str(page.relative_to(docs_prose.ROOT)) for page in docs_prose.pages()}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= names
    assert {"docs/style.md", "docs/adr.md"} <= names


@pytest.mark.parametrize(
    ("markdown", "line"),
    [
        (f"{LONG}.", 1),
        (f"# Title\n\nShort. {LONG}.", 3),
        (f"Short.\nShort.\n{LONG}", 3),
        (f"- one\n- {LONG}\n", 2),
        (f"> {LONG}", 1),
        (f"| a | b |\n|---|---|\n| {' '.join(['w'] * 36)} | c |", 3),
        (f"`a b c` {FITS}", 1),
        (f"{FITS[:80]} e.g. {FITS[80:]}", 1),
        (f"[{LONG}](page.md)", 1),
    ],
)
def test_long_sentence(markdown: str, line: int) -> None:
    [problem] = check_page(markdown)
    assert problem.line == line
    assert problem.text.startswith("sentence of 3")


@pytest.mark.parametrize(
    "markdown",
    [
        f"{FITS}.",
        f"{FITS}. {FITS}! {FITS}? {FITS}.",
        f'{FITS}." {FITS}.) {FITS}',
        f"```\n{LONG}\n```\n",
        f"    {LONG}\n",
        f"<!-- {LONG} -->\n",
        f"`{LONG}`",
        f"[{FITS}](a-b-c.md#{'x' * 300})",
        f"{FITS} – → :",
    ],
)
def test_sentences_that_fit(markdown: str) -> None:
    assert check_page(markdown) == []


def test_long_cell() -> None:
    table = "| a |\n|---|\n| {} |\n"
    assert check_page(table.format("x" * 200)) == []
    assert check_page(table.format("x" * 201)) == [Problem(3, "table cell of 201 characters (at most 200)")]
    assert check_page(table.format("`" + "x" * 201 + "`")) == [Problem(3, "table cell of 201 characters (at most 200)")]
    assert check_page("x" * 201) == []


def test_refused_phrases() -> None:
    assert check_page("It works.\nThat is a key of One’s\nown.") == [Problem(2, "refused phrase: one's own")]
    assert check_page("Refused, for it is old.") == [Problem(1, "refused phrase: , for it")]
    assert check_page("Room, for items. `nobody` knows nobodyness.\n\n    nobody\n") == []
    assert docs_prose.refused_phrases("ask nobody, and build anew") == ["nobody", "anew"]
    assert docs_prose.refused_phrases("ask the host again") == []


def test_the_list_of_phrases_is_read_from_the_page() -> None:
    listed = docs_prose.phrases()
    assert len(listed) == len(set(listed)) > 40
    assert {"one's own", "is no terminal", ", for it", "easily"} <= set(listed)
    assert not any(docs_prose.refused_phrases(f"x {phrase} x") != [phrase] for phrase in listed)


def test_the_command_prints_page_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tmp_path / "bad.md", tmp_path / "good.md"
    bad.write_text("# Page\n\nBuild it anew.\n", encoding="utf-8")
    good.write_text("# Page\n", encoding="utf-8")
    assert docs_prose.main([str(good)]) == 0
    assert docs_prose.main([str(good), str(bad)]) == 1
    assert capsys.readouterr().out == f"{bad}:3: refused phrase: anew\n"
