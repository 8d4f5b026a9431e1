"""Version expressions: pins and conditions share them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.host.build import run
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import Rule, kernel_version, parse_versions, undecided, version_order
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


#: A kernel's release and its package's version → bounds that admit it, and bounds that don't.
KERNELS = {
    ("6.8.0-90-generic", "6.8.0-90.91"): (
        ("<=6.8.0-90 >=6.8.0-90 >=6.8.0-60 <6.8.0-100 <6.8.0-100-generic >=6.8.0-90-generic <=6.8.0-90.91 >6.8.0-90.50 "
        "<=6.8.0 ==6.8.0-90 6.8.0-90"),
        "<6.8.0-90 <=6.8.0-60 <6.8.0-31 >6.8.0-90 >6.8.0-90.91 <=6.8.0-90.90 <6.8.0-90-generic >6.8.0 ==6.8.0-9",
    ),
    ("6.1.0-40-amd64", "6.1.153-1"): (
        ">=6.1.0-40 <=6.1.0-40 <6.1.0-50 >6.1.0-9 >=6.1.153-1 <6.1.153-2 >=6.1.100 >6.1.0 <6.1.0-40.1 <=6.1.0-40-amd64",
        "<6.1.0-40 >6.1.0-40 <6.1.0-9 >6.1.153-1 <6.1.153 <6.1.100-1 ==6.1.0",
    ),
    ("6.12.94+deb13-amd64", "6.12.94-1"): (
        ">=6.12.94+deb13 <=6.12.94+deb13 <=6.12.94 >=6.12.94-1 >=6.12.94+deb13-amd64 >=6.1.0-40 <6.12.107+deb13",
        "<6.12.94+deb13 >6.12.94 >6.12.94+deb13 >6.12.94-1 <6.1.0-40 >=6.12.107+deb13-amd64",
    ),
    ("5.14.0-503.15.1.el9_5.x86_64", "5.14.0-503.15.1.el9_5"): (
        (">=5.14.0-503.15.1.el9_5 <=5.14.0-503.15.1.el9_5 <=5.14.0-503.15.1 >5.14.0-503 <=5.14.0 >5.14.0-427.el9 "
        "==5.14.0-503.15.1 ==5.14.0-503.15.1.el9_5.x86_64 <5.14.0-503.20.1.el9_5 5.14.0-503"),
        "<=5.14.0-503 >5.14.0 <5.14.0-503.15.1.el9_5 >5.14.0-503.15.1 >=5.14.0-611.5.1.el9 ==5.14.0-503",
    ),
}  # fmt: skip
#: The same of packages: upstream's version, which is a pin's other name for it, and the package's.
PACKAGES = {
    ("580.95.05", "580.95.05-0ubuntu1"): (
        ">=580.95.05-0ubuntu1 <=580.95.05 >=580.95.05-0ubuntu0 ==580.95.05 ==580.95.05-0ubuntu1 580.95.05-0ubuntu1",
        ">580.95.05 <580.95.05-0ubuntu1 >580.95.05-0ubuntu1 ==580.95.05-0ubuntu2",
    ),
    ("580.95.05", "3:580.95.05-1.el9"): (
        ">=3:580.65.06 <4:1 >=580.65.06 <=580.95.05-1 >=580.95.05-1.el9 ==3:580.95.05-1.el9 580.95.05 3:580",
        ">=3:580.95.06 <3:580 <580.95.05-1.el9 >3:580.95.05-1.el9 2:580 ==580.95.05-2",
    ),
    ("550.163.01", "3:550.163.01-1.amzn2023"): ("<=550.163.01-4 >=0 550 ==550.163.01", "<550.163.01-1 >550.163.01-4"),
    ("2.19.7", "2.19.7~12.4.1-2"): (
        ">=2.19.7 <=2.19.7~12.4.1-2 <=2.19.7 2.19.7 >2.19.6-9",
        "<2.19.7~12.4.1-2 >2.19.7",
    ),
}
BOUNDS = [
    (names, text, admits)
    for names, texts in [(kernel_version(*k), texts) for k, texts in KERNELS.items()] + list(PACKAGES.items())
    for admits, line in zip((True, False), texts, strict=True)
    for text in line.split()
]


@pytest.mark.parametrize(("names", "text", "admits"), BOUNDS)
def test_a_version_is_compared_by_the_name_that_is_written(names: tuple[str, ...], text: str, admits: bool) -> None:
    assert parse_versions(text).admits(*names) is admits


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<6.8.0-60", None), ("==6.8.0-60", None), ("6.8.0-60", None), ("<6.9.0-60", True), ("6.9.0-60", False)],
)
def test_a_version_without_a_name_that_tells_leaves_it_open(text: str, answer: bool | None) -> None:
    assert parse_versions(text).admits("6.8.0") is answer
    rule = Rule("a", "", "source", "", refuses={"kernel": (text,)})
    assert [v.allowed for v in compat.judge({"kernel": "6.8.0"}, [rule])] == ([] if answer is None else [not answer])
    assert bool(list(undecided({"kernel": "6.8.0"}, set(), [rule]))) is (answer is None)


@pytest.mark.parametrize("text", ["", "five", ">=", "1,,2", ">= a b", "><1", "<1-"])
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
