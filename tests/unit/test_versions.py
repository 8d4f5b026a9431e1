"""Version expressions: pins and conditions share them."""

from __future__ import annotations

import pytest

from gdsdeploy.versions import parse


@pytest.mark.parametrize(
    ("text", "names", "admitted"),
    [
        ("newest", ("1",), True),
        ("550", ("550.163.01", "550.163.01-2"), True),
        ("550", ("5500.1",), False),
        ("550.163", ("550.163.01",), True),
        ("550.16", ("550.163.01",), False),
        ("550.163.01", ("550.163.01",), True),
        ("550.163.01-2", ("550.163.01", "550.163.01-2"), True),
        ("==550.163", ("550.163.01",), False),
        ("==2.25.6", ("2.25.6", "2.25.6-1"), True),
        ("=2.25.6-1", ("2.25.6", "2.25.6-1"), True),
        ("!=2.25.6", ("2.25.6",), False),
        ("!=2.25.6", ("2.25.7",), True),
        (">=550, <560", ("550.163.01",), True),
        (">=550, <560", ("565.57.01",), False),
        (">=550,<560,!=550.54", ("550.54.14",), False),
        ("<6.12.107", ("6.12.94",), True),
        ("<6.12.107", ("6.12.107",), False),
        ("<=6.12.107", ("6.12.107",), True),
        (">6.12.107", ("6.12.107",), False),
        ("6.12.94+deb13-amd64", ("6.12.94", "6.12.94+deb13-amd64"), True),
        ("6.1.0-50", ("6.1.176", "6.1.0-50-amd64"), True),
        ("6.1", ("6.1.176", "6.1.0-50-amd64"), True),
        ("6.1", ("6.12.94", "6.12.94+deb13-amd64"), False),
    ],
)
def test_what_an_expression_admits(text: str, names: tuple[str, ...], admitted: bool) -> None:
    assert parse(text).admits(*names) is admitted


@pytest.mark.parametrize("text", ["", "five", ">=", "1,,2", ">= a b", "><1"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
