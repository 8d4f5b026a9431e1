"""Every row of the tables is on the page of symptoms."""

from __future__ import annotations

from docs.gen import tickets
from gdsdeploy.host.logs.signs import signs
from gdsdeploy.host.model import causes


def test_every_sign_with_a_cause_or_without_need_is_on_the_page() -> None:
    text = tickets.page()
    for sign in signs():
        if sign.cause or sign.harmless:
            assert " ".join(sign.sample.replace("`", "'").replace("|", "\\|").split()) in text, sign.id
        if sign.cause:
            assert f"`{sign.cause}`. *Fix:*" in text
            assert causes.row(sign.cause).reference in text
