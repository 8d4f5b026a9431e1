"""Every reader of what others wrote survives hostile inputs, up to a thousand; ``make fuzz`` gives each 100,000."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Reader
from tests.fuzz.readers import READERS

INPUTS = 1000
#: Of readers whose inputs are whole logs, hosts or libraries.
FEWER = {
    "pasted logs": 300,
    "evidence, judged and reported": 300,
    "evidence: mode, explain, topology": 300,
    "symbols of a libcufile": 100,
}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_nothing_but_its_own_errors(reader: Reader) -> None:
    inputs = FEWER.get(reader.name, INPUTS)
    outcome = campaign.run(reader, inputs)
    assert not outcome.bugs, "\n".join(f"{place}: {words}" for place, words in outcome.bugs.items())
    assert outcome.read + outcome.refused == inputs
    assert outcome.refused or reader.errors == ()
    assert outcome.memory < campaign.MEMORY


def hanging(data: bytes) -> None:
    while data != b"a: 1\n":
        pass


@pytest.mark.parametrize(
    ("read", "bug"),
    [
        (lambda data: data.index(b"a: 1"), "ValueError"),
        (hanging, "Hang"),
        (lambda data: data == b"a: 1\n" or bytes(2**40), "MemoryError"),
    ],
)
def test_a_reader_that_fails_is_found(
    read: Callable[[bytes], object], bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "SECONDS", 0.05)
    outcome = campaign.run(Reader("bad", lambda: [b"a: 1\n"], read, (KeyError,)), 10)
    assert outcome.refused == 0
    assert any(place.startswith(bug) for place in outcome.bugs), outcome.bugs


def test_memory_is_measured() -> None:
    outcome = campaign.run(Reader("large", lambda: [b"a"], lambda _: bytearray(b"x") * (64 << 20), ()), 1)
    assert outcome.memory > 60 << 20


def test_inputs_are_the_same_each_time() -> None:
    for reader in READERS[:3]:
        assert campaign.input_of(reader, 7) == campaign.input_of(reader, 7)
        assert campaign.input_of(reader, 7) != campaign.input_of(reader, 8)
