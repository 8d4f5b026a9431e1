"""Boolean dependencies: read as what they mean, and satisfied as dnf satisfies them."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdsdeploy.lock.resolve.dependencies import Provider, Unsolvable, solve
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import RPM, Candidate, Order
from gdsdeploy.repo.rpm import MAX_DEPTH, Repository, read, rich_groups, rpm_relation
from tests.repos.archive import Key
from tests.repos.rpmarchive import Rpm, RpmArchive, build

Meaning = Callable[[bool, bool, bool], bool]

#: What an expression over a, b and c says, by libsolv's documentation of rich dependencies.
MEANINGS: dict[str, Meaning] = {
    "(a and b)": lambda a, b, c: a and b,
    "(a or b or c)": lambda a, b, c: a or b or c,
    "(a if b)": lambda a, b, c: a or not b,
    "(a if b else c)": lambda a, b, c: a if b else c,
    "(a unless b)": lambda a, b, c: a and not b,
    "(a unless b else c)": lambda a, b, c: c if b else a,
    "((a or b) and c)": lambda a, b, c: (a or b) and c,
    "((a and b) or c)": lambda a, b, c: (a and b) or c,
    "(a if (b and c))": lambda a, b, c: a or not (b and c),
    "(a if (b or c))": lambda a, b, c: a or not (b or c),
    "((a if b) and (b if c))": lambda a, b, c: (a or not b) and (b or not c),
    "(a or (b unless c))": lambda a, b, c: a or (b and not c),
    "(a)": lambda a, b, c: a,
}


@pytest.mark.parametrize("expression", MEANINGS)
@pytest.mark.parametrize("negate", [False, True])
def test_groups_mean_what_the_expression_means(expression: str, negate: bool) -> None:
    alternatives = rich_groups(expression, negate=negate)
    for truth in itertools.product((False, True), repeat=3):
        installed = dict(zip("abc", truth, strict=True))
        holds = all(any(installed[r.package] is not r.negated for r in group) for group in alternatives)
        assert holds is (MEANINGS[expression](*truth) is not negate), (truth, alternatives)


def test_names_and_versions_are_read() -> None:
    text = "(libc.so.6(GLIBC_2.34)(64bit) >= 1:2.3-1 if /usr/bin/x)"
    assert rich_groups(text) == (
        (rpm_relation("libc.so.6(GLIBC_2.34)(64bit)", ">=", "1:2.3-1"), rich_groups("(/usr/bin/x)", negate=True)[0][0]),
    )
    ((requirement,),) = rich_groups("(a >= 1 with a < 2 with b)")
    assert (str(requirement), requirement.also) == (
        "a (>= 1) with a (< 2) with b",
        (rpm_relation("a", "<", "2"), rpm_relation("b")),
    )
    ((requirement,),) = rich_groups("(a without b)", negate=True)
    assert requirement.negated
    assert [other.negated for other in requirement.also] == [True]


@pytest.mark.parametrize(
    "text",
    ["(", "()", "(a", "(a and)", "(a nor b)", "(a and b or c)", "(a if b if c)", "(a >= )", "(a) b", "(a else b)",
     "((a or b) with c)", "(" * (MAX_DEPTH + 2) + "a" + ")" * (MAX_DEPTH + 2),
     "(" + " or ".join(f"(a{n} and b{n} and c{n})" for n in range(8)) + ")"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        rich_groups(text)


CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "and": {"requires": ("(a and b)",)},
    "or": {"requires": ("(a or missing)",)},
    "or-second": {"requires": ("(missing or b)",)},
    "if-not": {"requires": ("(a if b)",)},
    "if": {"requires": ("(a if b)", "b")},
    "if-else": {"requires": ("(a if b else c)", "b")},
    "if-else-not": {"requires": ("(a if b else c)",), "conflicts": ("b",)},
    "either-is-there": {"requires": ("(a or b)", "needs-b")},
    "if-and": {"requires": ("(a if (b and c))", "b")},
    "if-or": {"requires": ("(a if (b or c))", "c")},
    "if-missing": {"requires": ("(missing if b)",)},
    "if-impossible": {"requires": ("(missing if b)", "b")},
    "nested": {"requires": ("((a and b) or missing)",)},
    "with": {"requires": ("(v >= 2 with v < 3)",)},
    "with-range": {"requires": ("(cap = 2 with special)",)},
    "without": {"requires": ("(v without special)",)},
    "deep": {"requires": ("needs-a-if-b", "b")},
    "conflict": {"requires": ("(a or b)",), "conflicts": ("a",)},
    "conflict-unless": {"requires": ("(a and b)",), "conflicts": ("(a unless b)",)},
    "conflict-unless-not": {"requires": ("a",), "conflicts": ("(a unless b)",)},
    "conflict-version": {"requires": ("v",), "conflicts": ("v >= 3",)},
    "obsolete": {"requires": ("v",), "obsoletes": ("v > 2.5",)},
    "obsolete-capability": {"requires": ("x",), "obsoletes": ("cap",)},
    "any-version": {"requires": ("unversioned >= 7",)},
    "release-left-open": {"requires": ("v = 2.5",)},
    "path": {"requires": ("/opt/only-in-name", "/opt/only-in-lists")},
    "path-impossible": {"requires": ("/opt/only",)},
    "epoch": {"requires": ("e >= 9",)},
    "epoch-impossible": {"requires": ("e >= 2:1",)},
    "conflict-impossible": {"requires": ("(a or missing)",), "conflicts": ("a",)},
}
_BASE = (
    Rpm("a", "1-1"),
    Rpm("b", "1-1"),
    Rpm("c", "1-1"),
    Rpm("v", "1-1"),
    Rpm("v", "2.5-1", provides=("cap = 2",)),
    Rpm("v", "3-1", provides=("special",)),
    Rpm("x", "1-1", provides=("cap = 2", "special")),
    Rpm("needs-a-if-b", "1-1", requires=("(a if b)",)),
    Rpm("needs-b", "1-1", requires=("b",)),
    Rpm("u", "1-1", provides=("unversioned",)),
    Rpm("e", "1:1-1"),
    Rpm("p", "1-1", provides=("/opt/only-in-name",)),
    Rpm("q", "1-1", files=("/opt/only-in-lists",)),
)

#: Debian's dnf, for the system's Python: what it would install for each package alone.
_DNF = """
import dnf, json, sys
folder, uri = sys.argv[1:]
base = dnf.Base()
conf = base.conf
conf.installroot, conf.cachedir, conf.logdir = folder + "/root", folder + "/cache", folder
conf.reposdir, conf.install_weak_deps, conf.pluginpath = [], False, []
conf.substitutions.update({"arch": "x86_64", "basearch": "x86_64", "releasever": "9"})
base.repos.add_new_repo("test", conf, baseurl=[uri])
base.fill_sack(load_system_repo=False)
answers = {}
for name in json.load(sys.stdin):
    base.reset(goal=True)
    base.install(name)
    try:
        base.resolve()
        answers[name] = sorted(f"{p.name} {p.evr}" for p in base.transaction.install_set)
    except dnf.exceptions.DepsolveError:
        answers[name] = None
print(json.dumps(answers))
"""


@dataclass
class Everything:
    """A platform for which everything is in the stack, and nothing is of a driver."""

    order: Order = RPM

    def in_stack(self, candidate: Candidate) -> bool:
        return True

    def follows_driver(self, candidate: Candidate) -> bool:
        return False

    def of_driver(self, candidate: Candidate) -> bool:
        return False

    def upstream_version(self, version: str) -> str:
        return version


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, key: Key) -> RpmArchive:
    folder = tmp_path_factory.mktemp("relations") / "www"
    cases = [Rpm(f"case-{name}", "1-1", **relations) for name, relations in CASES.items()]
    repository = RpmArchive(build([*_BASE, *cases], folder))
    repository.publish(key)
    return repository


def test_dependencies_are_satisfied_as_dnf_satisfies_them(archive: RpmArchive, key: Key, tmp_path: Path) -> None:
    argv = ["/usr/bin/python3", "-c", _DNF, str(tmp_path), archive.root.as_uri()]
    names = [f"case-{name}" for name in CASES]
    done = subprocess.run(argv, input=json.dumps(names), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    repository = Repository("test", archive.root.as_uri(), key.keyring, (key.fingerprint,), "/k")
    ours = {}
    with Fetcher(apt={}) as fetcher:
        universe, _ = read(fetcher, [repository], "x86_64")
        anything = universe.named("a")[0]
        for name in names:
            provider = Provider(
                universe, Everything(), driver=anything, kernel_package="", excluded=(), preferred=frozenset()
            )
            try:
                ours[name] = sorted(map(str, solve(provider, [provider.need(name)]).packages.values()))
            except Unsolvable:
                ours[name] = None
    assert ours == theirs
    assert sum(answer is None for answer in ours.values()) == 4
    assert all(re.match(r"\S+ \S+$", row) for answer in ours.values() for row in answer or ())
