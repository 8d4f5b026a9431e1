"""No answer contradicts itself."""

from __future__ import annotations

import re
from functools import cache

import pytest

from gdsdeploy.host.logs.judge import Answer, Quote, answer_to, render
from tests.tickets.scores import TICKETS
from tests.unit.host.test_log_tables import SIGNS, pasted

TEXTS = {
    **{number: ticket["pasted"].encode() for number, ticket in TICKETS.items()},
    **{row["id"]: pasted(row) for row in SIGNS},
}
MODULE = r"(nvidia[-_]fs|nvidia[-_]peermem|peer memory module|nouveau|driver)"
ABSENT = re.compile(
    rf"{MODULE} (?:is not|isn't) loaded|\bno {MODULE} is loaded|{MODULE}, which (?:is not|isn't) loaded"
)
PRESENT = re.compile(rf"(?<!no ){MODULE} is loaded")


@cache
def answered(name: str) -> Answer:
    return answer_to([("paste", TEXTS[name])])


def lines(quotes: tuple[Quote, ...]) -> set[int]:
    return {quote.line.number for quote in quotes}


def modules(pattern: re.Pattern[str], words: list[str]) -> set[str]:
    """What the words say to be loaded, or not."""
    found = (name for text in words for match in pattern.finditer(text) for name in match.groups() if name)
    return {name.replace("_", "-") for name in found}


@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_both_a_cause_and_harmless_or_unknown(name: str) -> None:
    answer = answered(name)
    shown = lines(tuple(quote for cause in answer.causes for quote in cause.quotes))
    assert not shown & lines(answer.harmless)
    assert not shown & lines(answer.unknown)


@pytest.mark.parametrize("name", TEXTS)
def test_no_module_is_both_loaded_and_not_loaded(name: str) -> None:
    answer = answered(name)
    quotes = [*answer.harmless, *answer.notes, *(quote for cause in answer.causes for quote in cause.quotes)]
    words = [*(cause.title for cause in answer.causes), *(quote.means for quote in quotes)]
    assert not modules(ABSENT, words) & modules(PRESENT, words)


@pytest.mark.parametrize("name", TEXTS)
def test_no_heading_denies_what_is_below_it(name: str) -> None:
    shown = render(answered(name))
    if answered(name).causes:
        assert "No line shows" not in shown
        assert "not shown:" not in shown


def test_words_for_a_module_that_is_loaded_or_not() -> None:
    words = ["nvidia_fs isn't loaded, or isn't visible", "no peer memory module is loaded, so"]
    assert modules(ABSENT, words) == {"nvidia-fs", "peer memory module"}
    assert modules(PRESENT, words) == set()
    assert modules(PRESENT, ["although a peer memory module is loaded"]) == {"peer memory module"}
