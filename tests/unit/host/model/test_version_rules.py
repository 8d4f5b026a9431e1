"""Version expressions: pins and conditions share them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.host.build import run
from gdsdeploy.host.model.compat import parse_versions, version_order
from gdsdeploy.lock import compat
from gdsdeploy.repo.packages import deb


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
    assert parse_versions(text).admits(*names) is admitted


@pytest.mark.parametrize("text", ["", "five", ">=", "1,,2", ">= a b", "><1", ">=1_2", "<1-"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_versions(text)


#: Condition, version, whether the condition holds: the edges of ranges, where ``~`` comes before the end.
EDGES = [
    ("<6.12", "6.12~rc1", True),
    ("<=6.12", "6.12~rc1", True),
    (">=6.12", "6.12~rc1", False),
    (">6.12", "6.12~rc1", False),
    (">=6.12~rc1", "6.12~rc1", True),
    (">=6.12~rc2", "6.12~rc1", False),
    (">=6.12~rc1", "6.12", True),
    (">=6.12~rc2", "6.12~rc10", True),
    (">=6.12~~", "6.12~rc1", True),
    ("<6.12", "6.12.0~rc1", False),
    (">=6.19", "6.19~rc3", False),
    (">=6.12.107, <6.13", "6.13~rc1", True),
    (">=535, <535.309.01", "535.309.01~beta", True),
    (">=6.12", "6.12-rc1", True),
    (">=6.12", "6.12+rc1", True),
    ("6.12", "6.12~rc1", True),
    ("!=6.12", "6.12~rc1", False),
    ("==6.12", "6.12~rc1", False),
    ("6.1", "6.12~rc1", False),
    ("<6.12", "6.9", True),
    (">=6.12", "6.12", True),
]


@pytest.mark.parametrize(("text", "version", "holds"), EDGES)
def test_the_lock_and_a_failed_build_read_a_rule_alike(text: str, version: str, holds: bool) -> None:
    for subject in ("driver", "kernel", "nvidia_fs"):
        rule = compat.Rule(id="a-rule", says="", known="source", source="", refuses={subject: (text,)})
        (verdict,) = compat.judge({subject: version}, [rule])
        assert (not verdict.allowed, run.broken(rule, {subject: version})) == (holds, holds)


VERSIONS = st.from_regex(r"(?a:([0-9]{1,2}:)?[0-9][0-9a-cZ.+~-]{0,7}[0-9a-c.+~])", fullmatch=True)


@given(VERSIONS, VERSIONS)
def test_the_order_is_dpkgs(one: str, other: str) -> None:
    have, expected = (version_order(one), version_order(other)), (deb(one), deb(other))
    assert (have[0] < have[1], have[0] == have[1]) == (expected[0] < expected[1], expected[0] == expected[1])


@pytest.mark.parametrize(("one", "other"), [("1", "1-0"), ("0", "00"), ("1.0", "1.00"), ("1a", "1a0"), ("0:1", "1")])
def test_different_texts_of_one_version_are_equal(one: str, other: str) -> None:
    assert version_order(one) == version_order(other)
    assert deb(one) == deb(other)
