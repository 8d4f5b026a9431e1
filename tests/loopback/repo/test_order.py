"""Version order equals dpkg's own: differential, against the real program."""

from __future__ import annotations

import re
import subprocess
from random import Random

import pytest

from gdsdeploy.repo.packages import deb, holds, upstream

#: Relation → how a version compares to its bound; ``<`` and ``>`` are the old spellings of "or equal".
_SIGNS = {"<<": {-1}, "<=": {-1, 0}, "=": {0}, ">=": {0, 1}, ">>": {1}, "<": {-1, 0}, ">": {0, 1}}

#: Versions as archives have them, pasted together from what makes the order hard: epochs, tildes, zeros, letters.
_PIECES = ["0", "1", "10", "09", "2", "550", "~", ".", "+", "a", "b", "rc", "deb", "bpo"]


def _near(random: Random, version: str) -> str:
    """The same version with one piece put in, taken out or doubled: pairs that differ where it is hard to see."""
    at = random.randrange(len(version) + 1)
    change = random.choice(["", *_PIECES, "-", "-1", "0", version[max(0, at - 1) : at]])
    return version[:at] + change + version[at + random.randrange(2) :]


def _valid(version: str) -> bool:
    """What dpkg takes without a word, which is less than what it compares."""
    return re.fullmatch(r"(?:[0-9]:)?[0-9][0-9a-z.+~]*(?:-[0-9a-z.+~]+)*", version) is not None


def test_thousands_of_pairs_sort_as_the_real_dpkg_sorts_them() -> None:
    """In one shell, so that what takes time is dpkg itself."""
    random = Random(20261121)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 2000:
        upstream_part = str(random.randrange(999)) + "".join(random.choices(_PIECES, k=random.randrange(6)))
        revision = random.choice(["", "-1", "-0ubuntu1", "-2+deb13u1", "-1~bpo12+1"])
        one = random.choice(["", "0:", "1:", "3:"]) + upstream_part + revision
        other = _near(random, one)
        if _valid(one) and _valid(other):
            pairs.append((one, other))
    script = (
        'while read -r a b; do if dpkg --compare-versions "$a" lt "$b"; then echo -1; '
        'elif dpkg --compare-versions "$a" eq "$b"; then echo 0; else echo 1; fi; done'
    )
    text = "".join(f"{a} {b}\n" for a, b in pairs)
    done = subprocess.run(["sh", "-c", script], input=text, capture_output=True, text=True, check=True)
    assert not done.stderr, done.stderr
    theirs = [int(line) for line in done.stdout.split()]
    ours = [(deb(a) > deb(b)) - (deb(a) < deb(b)) for a, b in pairs]
    assert [pair for pair, x, y in zip(pairs, ours, theirs, strict=True) if x != y] == []
    assert {-1, 0, 1} == set(theirs)
    for pair, sign in zip(pairs, theirs, strict=True):
        assert {name for name in _SIGNS if holds(pair[0], name, pair[1])} == {n for n in _SIGNS if sign in _SIGNS[n]}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.12.94-1", "6.12.107-1"),
        ("6.12.107-1~deb12u1", "6.12.107-1"),
        ("535.261.03-1", "535.309.01-0+deb12u1"),
        ("2.19.7~12.4.1-2", "2.19.7-1"),
        ("1.9.1.3~12.4.1-8.2", "1.9.1.3~12.4.1-8.2+b1"),
        ("570.133.20-1", "3:550.54.15-1"),
        ("6.12~rc7-1~exp1", "6.12-1"),
    ],
)
def test_order_of_versions_of_this_stack(older: str, newer: str) -> None:
    assert deb(older) < deb(newer)
    subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


@pytest.mark.parametrize("text", ["", "a b", "1:2:3 4"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        deb(text)


def test_upstream_keeps_what_is_neither_epoch_nor_revision() -> None:
    assert upstream("1:2.10-3-4") == "2.10-3"
    assert upstream("20240109+1") == "20240109+1"
