"""The walk through combinations: it misses none, and does not try what cannot matter."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from gdsdeploy.host.model.compat import Rule, judge
from gdsdeploy.lock.resolve import options as searching
from gdsdeploy.lock.resolve.options import Option, Search, Subject

SUBJECTS: tuple[Subject, ...] = ("driver", "kernel", "nvidia-fs", "libcufile")
KEYS = ("driver", "kernel", "nvidia_fs", "libcufile")


def levels(*sizes: int) -> list[list[Option]]:
    """Options of each subject, versions from the size down to 1."""
    return [
        [Option(subject, f"{subject} {n}", {key: str(n)}, {}, str(n), (str(n),)) for n in range(size, 0, -1)]
        for subject, key, size in zip(SUBJECTS, KEYS, sizes, strict=True)
    ]


def refuses(name: str, **conditions: str) -> Rule:
    """A rule against versions that go together badly."""
    *when, last = ((subject, (text,)) for subject, text in conditions.items())
    return Rule(name, "X.", "source", "this test", when=dict(when), refuses=dict([last]))


@pytest.fixture
def judgements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each combination that is judged."""
    calls: list[int] = []

    def counted(combination: object, rules: object) -> object:
        calls.append(1)
        return judge(combination, rules)  # type: ignore[arg-type]

    monkeypatch.setattr(searching, "judge", counted)
    return calls


def test_every_admitted_combination_is_found_in_order_of_preference() -> None:
    """Held against trying them all, with rules made at random."""
    random = Random(7)
    for _ in range(60):
        options = levels(*(random.randrange(1, 5) for _ in KEYS))
        rules = []
        for number in range(random.randrange(6)):
            keys = random.sample(KEYS, random.randrange(1, 4))
            rules.append(refuses(f"r-{number}", **{key: f"=={random.randrange(1, 5)}" for key in sorted(keys)}))
        walked = Search({}, options, rules)
        choices = [tuple(o.label for o in choice) for choice in walked.choices()]
        everything = (
            choice for choice in itertools.product(*options)
            if all(v.allowed for v in judge({k: v for o in choice for k, v in o.facts.items()}, rules))
        )  # fmt: skip
        assert choices == [tuple(o.label for o in choice) for choice in everything]


def test_what_is_not_to_blame_is_not_tried_again(judgements: list[int]) -> None:
    """No libcufile goes with any driver: 150 × 30 × 60 × 40 combinations, of which the middle ones do not matter."""
    walked = Search({}, levels(150, 30, 60, 40), [refuses("never", driver=">=1", libcufile=">=1")])
    assert list(walked.choices()) == []
    assert len(judgements) < 150 * (40 + 3) + 1
    assert {choice[0].label for choice, _ in walked.against} == {f"driver {n}" for n in range(1, 151)}


def test_what_was_found_dead_is_passed_over_whatever_else_is_chosen(judgements: list[int]) -> None:
    options = levels(3, 30, 60, 40)
    walked = Search({}, options, [])
    choices = walked.choices()
    assert next(choices)[0].label == "driver 3"
    walked.dead.append((options[0][0],))
    assert next(choices)[0].label == "driver 2"
    assert len(judgements) < 300


def test_a_failure_among_very_many_is_explained_from_all_levels(judgements: list[int]) -> None:
    rules = [refuses("on-driver", driver=">=149"), refuses("on-kernel", kernel=">=1")]
    walked = Search({}, levels(150, 30, 60, 40), rules)
    nearest, reasons = walked.reasons()
    assert nearest == "driver 148, kernel 30, nvidia-fs 60, libcufile 40"
    assert [reason.split("]")[0] for reason in reasons] == ["[on-kernel", "[on-driver"]
    assert len(judgements) <= searching.EXPLAINED
