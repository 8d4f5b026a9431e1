"""Version order and relations equal rpm's own: differential, against the real rpm, each in one process."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.apply.packages.versions import rpm, vercmp
from gdsdeploy.platform import stack_platform_for, version_order
from gdsdeploy.repo.packages import DEB, RPM, RPM_RELATIONS

#: Versions as rpm repositories have them, pasted together from what makes the order hard.
_PIECES = (
    "0", "1", "10", "09", "007", "2", "550", "~", "^", ".", "..", "+", "_", "a", "A", "b", "rc", "el9", "~~", "^^",
)  # fmt: skip
PAIRS = 8000

_LUA = """for line in io.lines('%s') do
local a, b = line:match('^(%%S+) (%%S+)$') print(rpm.vercmp(a, b) .. ' ') end"""

#: rpm's own bindings are Debian's, for the system's Python.
_DS = """
import json, rpm, sys
sign = {"": 0, "<": rpm.RPMSENSE_LESS, ">": rpm.RPMSENSE_GREATER, "=": rpm.RPMSENSE_EQUAL}
sign["<="], sign[">="] = sign["<"] | sign["="], sign[">"] | sign["="]
def ds(tag, relation, version):
    return rpm.ds(("x", sign[relation], version), tag)
cases = json.load(sys.stdin)
print(json.dumps([bool(ds(rpm.RPMTAG_PROVIDENAME, a, b).Compare(ds(rpm.RPMTAG_REQUIRENAME, c, d)))
                  for a, b, c, d in cases]))
"""


def _word(dice: random.Random, most: int = 6) -> str:
    return "".join(dice.choices(_PIECES, k=dice.randint(1, most)))


def _evr(dice: random.Random) -> str:
    epoch = dice.choice(("", "", "0:", "1:", "3:"))
    return epoch + _word(dice, 3) + (f"-{_word(dice, 3)}" if dice.random() < 0.6 else "")


def _real(pairs: list[tuple[str, str]], file: Path) -> list[int]:
    file.write_text("".join(f"{a} {b}\n" for a, b in pairs))
    argv = ["rpm", "--eval", "%{lua: " + _LUA % file + "}"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def test_order_of_texts_equals_rpms(tmp_path: Path) -> None:
    dice = random.Random(20261121)
    pairs = [(_word(dice), _word(dice)) for _ in range(PAIRS)]
    # Half of the pairs differ in one place only, where the rules are hard.
    pairs += [(stem + _word(dice, 1), stem + _word(dice, 1)) for stem in (_word(dice, 4) for _ in range(PAIRS))]
    assert [vercmp(*pair) for pair in pairs] == _real(pairs, tmp_path / "pairs")


def test_order_of_whole_versions_equals_rpms(tmp_path: Path) -> None:
    dice = random.Random(20261122)
    pairs = [(_evr(dice), _evr(dice)) for _ in range(PAIRS)]
    ours = [(rpm(a) > rpm(b)) - (rpm(a) < rpm(b)) for a, b in pairs]
    assert ours == _real(pairs, tmp_path / "pairs")
    assert all((rpm(a) == rpm(b)) is (sign == 0) for (a, b), sign in zip(pairs, ours, strict=True))


def test_relations_equal_rpms() -> None:
    dice = random.Random(20261123)
    signs = ["", *sorted(RPM_RELATIONS)]
    versions = [_evr(dice) for _ in range(40)] + ["3:580.95.05", "3:580.95.05-1.el9", "580.95.05", "3:580.95.05~rc1-1"]

    def pick() -> tuple[str, str]:
        sign = dice.choice(signs)
        return sign, dice.choice(versions) if sign else ""

    cases = [(*pick(), *pick()) for _ in range(PAIRS)]
    argv = ["/usr/bin/python3", "-c", _DS]
    done = subprocess.run(argv, input=json.dumps(cases), check=True, capture_output=True, text=True)
    assert [RPM.meets(*case) for case in cases] == json.loads(done.stdout)
    exact = [case for case in cases if case[0] == "=" and case[2]]
    assert all(RPM.holds(have, sign, need) is RPM.meets("=", have, sign, need) for _, have, sign, need in exact)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("5.14.0-503.15.1.el9_5", "5.14.0-503.40.1.el9_5"),
        ("5.14.0-503.40.1.el9_5", "5.14.0-570.12.1.el9_6"),
        ("580.126.09-1.el9", "3:470.1-1.el9"),
        ("3:580.95.05~rc1-1.el9", "3:580.95.05-1.el9"),
        ("3:580.95.05-1.el9", "3:580.95.05^20261101-1.el9"),
        ("2.9-1", "2.26.6-1"),
    ],
)
def test_order_of_versions_of_this_stack(older: str, newer: str) -> None:
    assert rpm(older) < rpm(newer)


@pytest.mark.parametrize("text", ["", "a b", "1:2:3", "x:1", "1-2-3", "-1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an rpm version"):
        rpm(text)


def test_each_platform_has_its_own_order() -> None:
    assert stack_platform_for("debian-13").order is DEB
    assert {stack_platform_for(f"{name}-9").order for name in ("rhel", "rocky", "almalinux")} == {RPM}
    assert version_order("rocky-10") is RPM
    assert version_order("plan9-4") is DEB
    # They differ: what only separates numbers is nothing to rpm, and sorts for dpkg.
    assert RPM.key("1.0+1") == RPM.key("1.0.1")
    assert DEB.key("1.0+1") != DEB.key("1.0.1")
