"""The page of symptoms is made of the tables, and every row of them is on it."""

from __future__ import annotations

from pathlib import Path

from docs.gen import tickets
from gdsdeploy.host.logs.signs import signs
from gdsdeploy.host.model import causes

PAGE = Path(__file__).parents[3] / "docs" / "tickets.md"


def test_the_page_is_made_of_the_tables() -> None:
    assert PAGE.read_text() == tickets.page(), "write it again: python -m docs.gen.tickets > docs/tickets.md"


def test_every_sign_with_a_cause_or_without_need_is_on_the_page() -> None:
    text = PAGE.read_text()
    for sign in signs():
        if sign.cause or sign.harmless:
            assert " ".join(sign.sample.replace("`", "'").replace("|", "\\|").split()) in text, sign.id
        if sign.cause:
            assert f"`{sign.cause}`. *Fix:*" in text
            assert causes.row(sign.cause).reference in text
