"""Every reader of what others wrote survives a thousand hostile inputs; ``make fuzz`` gives each a hundred thousand."""

from __future__ import annotations

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Reader
from tests.fuzz.readers import READERS

INPUTS = 1000


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_nothing_but_its_own_errors(reader: Reader) -> None:
    outcome = campaign.run(reader, INPUTS)
    assert not outcome.bugs, "\n".join(f"{place}: {words}" for place, words in outcome.bugs.items())
    assert outcome.read + outcome.refused == INPUTS
    assert outcome.refused or reader.errors == ()
    assert outcome.memory < campaign.MEMORY


def test_a_reader_that_fails_is_found() -> None:
    def read(data: bytes) -> None:
        if data != b"a: 1\n":
            while data.count(b"a") > 2:
                pass
            [][data.count(b"1")]

    outcome = campaign.run(Reader("bad", lambda: [b"a: 1\n"], read, ()), 30)
    assert outcome.refused == 0
    assert any(place.startswith("IndexError") for place in outcome.bugs)


def test_inputs_are_the_same_each_time() -> None:
    for reader in READERS[:3]:
        assert campaign.input_of(reader, 7) == campaign.input_of(reader, 7)
        assert campaign.input_of(reader, 7) != campaign.input_of(reader, 8)
