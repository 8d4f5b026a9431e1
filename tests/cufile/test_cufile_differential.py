"""What each released libcufile does with generated documents is what our verdict says that it does."""

from __future__ import annotations

import pytest

from gdsdeploy.cufile.check import judge
from gdsdeploy.cufile.model import EXAMINED_RELEASES, release_of
from tests.cufile.compare import differences, look
from tests.cufile.differential import Deviation, deviations, disagreements, generated
from tests.cufile.libraries import SOURCES, library

SEED = 20261121
#: Generated ones for each library, besides the fixed ones and each key at its edges (130 to 230): few enough for the
#: suite.  A thousand each were asked while this was written: `python -m tests.cufile.differential SEED COUNT`.
COUNT = 120


def test_every_judged_release_has_a_library() -> None:
    assert {release_of(version) for version in SOURCES} == set(EXAMINED_RELEASES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", SOURCES)
def test_verdict_and_effective_values_are_the_librarys(version: str) -> None:
    unexcused, outcomes = disagreements(version, generated(SEED, version, COUNT))
    assert not unexcused, "\n".join(map(str, unexcused))
    # A generator that makes nothing but one kind of document would show nothing.
    assert outcomes["taken"] > COUNT / 4
    assert outcomes["refused"] > COUNT / 4
    assert outcomes["aborts"] >= 10


@pytest.mark.parametrize("deviation", deviations(), ids=lambda deviation: deviation.id)
def test_known_deviations_still_deviate_and_only_where_it_is_said(deviation: Deviation) -> None:
    text = deviation.document.encode()
    parted = []
    for version in SOURCES:
        release = release_of(version)
        verdict = judge(text, release, look)
        others = [other for other in deviations() if other is not deviation and other.concerns(version)]
        unexcused = differences(text, release, verdict, library(version).ask(text))
        if any(not any(other.excuses(difference, verdict) for other in others) for difference in unexcused):
            parted.append(version)
    assert parted == [version for version in SOURCES if deviation.concerns(version)]
