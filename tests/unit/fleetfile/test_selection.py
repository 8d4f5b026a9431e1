"""--limit: names and patterns; a typing error is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.errors import NameUnknown
from gdsdeploy.fleetfile.selection import select

HOSTS = ["gpu1", "gpu2", "build1"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, HOSTS),
        ("gpu2", ["gpu2"]),
        ("build1,gpu1", ["gpu1", "build1"]),
        ("gpu*", ["gpu1", "gpu2"]),
        ("gpu1, gpu1", ["gpu1"]),
        ("gpu[12]", ["gpu1", "gpu2"]),
        ("gpu[2-40],build1", ["gpu2", "build1"]),
        ("*[1,2]", HOSTS),
    ],
)
def test_selection(limit: str | None, expected: list[str]) -> None:
    assert select(limit, HOSTS, Path("fleet.yml")) == expected


@pytest.mark.parametrize("limit", ["gpu3", "", "gpu1,", "*9", "gpu[5-7]", "gpu[0-9999999]"])
def test_what_selects_nothing_is_an_error(limit: str) -> None:
    with pytest.raises(NameUnknown, match=r"--limit: fleet.yml has no host") as caught:
        select(limit, HOSTS, Path("fleet.yml"))
    assert caught.value.hint == "It has: build1, gpu[1-2]"


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(NameUnknown, match="did you mean 'build1'"):
        select("biuld1", HOSTS, Path("fleet.yml"))
