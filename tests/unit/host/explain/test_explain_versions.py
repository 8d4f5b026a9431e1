"""The numbers of a version, whatever a host says that its version is."""

from __future__ import annotations

import pytest

from gdsdeploy.host.explain.cause import numbers


@pytest.mark.parametrize(
    ("version", "pair"),
    [
        ("6.12.94+deb13-amd64", (6, 12)),
        ("6", (6,)),
        ("", ()),
        ("v6.x", (6,)),
        ("9" * 5000, ()),
        (f"6.{'9' * 5000}", (6,)),
        ("²", ()),
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_first_two_numbers(version: str, pair: tuple[int, ...]) -> None:
    assert numbers(version) == pair
