"""The walk through combinations: it misses none, and does not try what cannot matter."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from gdsdeploy.host.model.compat import Rule, judge
from gdsdeploy.lock.resolve import options as searching
from gdsdeploy.lock.resolve.dependencies import Provider, Unsolvable, exactly, solve
from gdsdeploy.lock.resolve.options import Option, Search, Subject
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.packages import Candidate, Origin, PackageList, Relation, Universe
from tests.repos.stack import Stanza, package, text

DEBIAN = stack_platform_for("debian-13")

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


# -- The packages of one choice.


def solver(stanzas: Iterable[Stanza], root: str) -> tuple[Provider, Candidate]:
    """The search in an archive of these packages, and the newest file of the one that it is for."""
    where = Origin("debian", "trixie", "main", "debian", ("amd64", "all"), "https://mirror.example")
    offered = Universe([PackageList(text(stanzas), where)])
    newest = max(offered.named(root), key=lambda candidate: candidate.version)
    return Provider(offered, DEBIAN, driver=newest, kernel_package="", excluded=(), preferred=frozenset()), newest


def piece(name: str, version: str, **fields: str) -> Stanza:
    """A package of the stack, which a driver doesn't move."""
    return package(name, version, source="nvidia-support", **fields)


ARCHIVES: dict[str, tuple[list[Stanza], list[str]]] = {
    "packages that need one another are given up": (
        [
            piece("driver", "1", depends="libgl"),
            piece("libgl", "1"),
            piece("libgl", "2", depends="libegl", provides="vendor-gl"),
            piece("libegl", "2", depends="egl-common"),
            piece("egl-common", "2", depends="libegl", conflicts="vendor-gl"),
        ],
        ["driver 1", "libgl 1"],
    ),
    "what a system package breaks": (
        [piece("driver", "1", depends="libsys"), package("libsys", "2", conflicts="driver (<< 2)")],
        ["libsys 2 conflicts with driver (<< 2)", "the stack needs driver (= 1)"],
    ),
    "what another version of a system package breaks": (
        [
            piece("driver", "1", depends="libsys"),
            package("libsys", "2", conflicts="driver (<< 2)"),
            package("libsys", "1", conflicts="libother"),
        ],
        ["driver 1", "libsys 1"],
    ),
    "a driver that an alternative of its own dependency needs older": (
        [piece("driver", "1", depends="b"), piece("b", "1", depends="c | d"), piece("d", "1", depends="b (= 2)")],
        ["d 1 needs b (= 2), of which the repositories have b 1", "driver 1 needs b"],
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_an_archive_allows(name: str) -> None:
    """The packages of the answer, or the reasons against each."""
    stanzas, expected = ARCHIVES[name]
    provider, root = solver(stanzas, "driver")
    try:
        found = list(map(str, solve(provider, [exactly(root)]).packages.values()))
    except Unsolvable as error:
        found = error.reasons
    assert sorted(found) == expected


def test_an_archive_with_a_long_chain_is_walked_without_recursion() -> None:
    """It is longer than Python's stack is deep, and its last link is missing."""
    chain = [piece(f"p{n}", "1", depends=f"p{n + 1}") for n in range(1500)]
    provider, root = solver([piece("driver", "2", depends="p0 | other"), piece("other", "1"), *chain], "driver")
    assert sorted(map(str, solve(provider, [exactly(root)]).packages.values())) == ["driver 2", "other 1"]


def random_archive(dice: Random) -> list[Stanza]:
    names, virtual = "abcdef", ("v", "w")

    def relation() -> str:
        name = dice.choice([*names, *virtual])
        bound = f" ({dice.choice(['=', '>=', '<<', '<=', '>>'])} {dice.randint(1, 3)})"
        return name + (bound if name not in virtual and dice.random() < 0.5 else "")

    return [
        piece(
            name,
            str(version),
            depends=", ".join(
                " | ".join(relation() for _ in range(dice.choice((1, 1, 2)))) for _ in range(dice.randint(0, 2))
            ),
            conflicts=relation() if dice.random() < 0.3 else "",
            provides=", ".join(f"{each} (= {dice.randint(1, 3)})" for each in virtual if dice.random() < 0.3),
        )
        for name in names
        for version in range(1, dice.randint(1, 3) + 1)
    ]


def is_installable(files: Sequence[Candidate]) -> bool:
    def there(relation: Relation, *but: Candidate) -> bool:
        return any(other.answers(relation) for other in files if other not in but)

    return all(
        all(any(map(there, group)) for group in each.depends) and not any(there(r, each) for r in each.conflicts)
        for each in files
    )


#: Of the latter, the answer needs another file of a package that was chosen for something else.
SEEDS = (*range(120), 315, 605, 1429, 1522, 2195)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_archive_is_solved_if_anything_solves_it(seed: int) -> None:
    """Held against every set of its files."""
    stanzas = random_archive(Random(seed))
    provider, root = solver(stanzas, "a")
    others = [[None, *provider.universe.named(name)] for name in "bcdef"]
    sets = ([root, *filter(None, chosen)] for chosen in itertools.product(*others))
    try:
        answer = list(solve(provider, [exactly(root)]).packages.values())
    except Unsolvable:
        assert not any(map(is_installable, sets))
    else:
        assert is_installable(answer)
