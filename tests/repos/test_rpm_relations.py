"""What rpm says of versions and relations, and what is stated about the systems that have it."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

import pytest

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.apply.packages.versions import rpm, segments
from gdsdeploy.host.model.compat import parse_versions
from gdsdeploy.lock.resolve.dependencies import Provider, Unsolvable, exactly, solve
from gdsdeploy.platform import stack_platform_for, supported_systems, version_order
from gdsdeploy.platform.base import Flavour, KernelImage
from gdsdeploy.platform.rhel import Rhel
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import DEB, RPM, RPM_RELATIONS, Candidate
from gdsdeploy.repo.repository import Repository
from gdsdeploy.repo.rpm import MAX_DEPTH, read, rich_groups, rpm_relation
from tests.repos.archive import Key
from tests.repos.rpmarchive import Rpm, RpmArchive, build
from tests.repos.test_apt_agrees import SEEDS, Everything

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
    "if-own": {"requires": ("(k if own)",), "provides": ("own",)},
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
    Rpm("k", "1-1", conflicts=("case-if-own",)),
    Rpm("k", "2-1", provides=("own",)),
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

#: Debian's dnf, for the system's Python: what it would install for each word alone, or for each few packages together.
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
    for word in name.split():
        base.install(word)
    try:
        base.resolve()
        answers[name] = sorted(f"{p.name} {p.evr}" for p in base.transaction.install_set)
    except dnf.exceptions.DepsolveError:
        answers[name] = None
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, key: Key) -> RpmArchive:
    folder = tmp_path_factory.mktemp("relations") / "www"
    cases = [Rpm(f"case-{name}", "1-1", **relations) for name, relations in CASES.items()]
    repository = RpmArchive(build([*_BASE, *cases], folder))
    repository.publish(key)
    return repository


def by_dnf(archive: RpmArchive, folder: Path, words: list[str]) -> dict[str, list[str] | None]:
    argv = ["/usr/bin/python3", "-c", _DNF, str(folder), archive.root.as_uri()]
    done = subprocess.run(argv, input=json.dumps(words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[str] | None] = json.loads(done.stdout)
    return answers


def by_us(archive: RpmArchive, key: Key, names: list[str]) -> dict[str, list[str] | None]:
    """The same for names of packages, or names with a version behind ``=``."""
    repository = Repository("test", archive.root.as_uri(), key.keyring, (key.fingerprint,), "/k")
    answers: dict[str, list[str] | None] = {}
    with Fetcher(apt={}) as fetcher:
        universe, _ = read(fetcher, [repository], "x86_64")
        for word in names:
            name, _, version = word.partition("=")
            driver = universe.named(name)[0]
            provider = Provider(
                universe, Everything(RPM), driver=driver, kernel_package="", excluded=(), preferred=frozenset()
            )
            exact = [exactly(each) for each in universe.named(name) if each.version == version]
            try:
                answers[word] = sorted(map(str, solve(provider, exact or [provider.need(name)]).packages.values()))
            except Unsolvable:
                answers[word] = None
    return answers


def test_dependencies_are_satisfied_as_dnf_satisfies_them(archive: RpmArchive, key: Key, tmp_path: Path) -> None:
    names = [f"case-{name}" for name in CASES]
    ours = by_us(archive, key, names)
    assert ours == by_dnf(archive, tmp_path, names)
    assert sum(answer is None for answer in ours.values()) == 4
    assert all(re.match(r"\S+ \S+$", row) for answer in ours.values() for row in answer or ())


def random_packages(seed: int) -> Iterator[Rpm]:
    """Packages that need and exclude one another, and no others."""
    dice = random.Random(seed)
    names, offers = [f"{letter}{seed}" for letter in "abcdef"], [f"v{seed}", f"w{seed}"]

    def relation(among: list[str], chance: float = 0.4) -> str:
        sign = f" {dice.choice(('<', '<=', '=', '>=', '>'))} {dice.randint(1, 3)}" if dice.random() < chance else ""
        return dice.choice(among) + sign

    def need() -> str:
        form = dice.choice(("{}", "{}", "{}", "({} and {})", "({} or {})", "({} if {})", "({} if {} else {})",
                            "({} with {})", "({} without {})"))  # fmt: skip
        return form.format(*(relation(names + offers) for _ in range(3)))

    for name, version in itertools.product(names, (1, 2)):
        # dnf drops what excludes the package itself, if no other package could be an exception.
        others = [each for each in names if each != name]
        excluded = dice.choice((relation(others), f"({relation(others)} unless {relation(names)})"))
        yield Rpm(
            name, f"{version}-1",
            requires=tuple(need() for _ in range(dice.randint(0, 2))),
            provides=tuple(relation([offer], 0.5) for offer in offers if dice.random() < 0.3),
            conflicts=(excluded,) if dice.random() < 0.3 else (),
        )  # fmt: skip


def test_random_packages_are_installed_as_dnf_installs_them(key: Key, tmp_path: Path) -> None:
    """The same can be installed, and dnf accepts what the resolver takes; see tests.repos.test_apt_agrees."""
    rpms = [rpm for seed in SEEDS for rpm in random_packages(seed)]
    archive = RpmArchive(build(rpms, tmp_path / "www"))
    archive.publish(key)
    ours = by_us(archive, key, [f"{rpm.name}={rpm.version}" for rpm in rpms])
    theirs = by_dnf(archive, tmp_path, [word.replace("=", "-") for word in ours])
    can_be = {word.replace("=", "-"): answer is not None for word, answer in ours.items()}
    assert can_be == {word: answer is not None for word, answer in theirs.items()}
    assert 0 < sum(can_be.values()) < len(can_be)
    sets = {" ".join(row.replace(" ", "-") for row in answer): answer for answer in ours.values() if answer}
    assert by_dnf(archive, tmp_path, list(sets)) == sets


# -- Version order and relations equal rpm's own: differential, against the real rpm, each in one process.


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
    keys = [(segments(one), segments(other)) for one, other in pairs]
    assert [(one > other) - (one < other) for one, other in keys] == _real(pairs, tmp_path / "pairs")


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


@pytest.mark.parametrize("text", ["", "a b", "1:2:3", "x:1", "-1"])
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


# -- What is stated about RHEL and its equals.


RHEL_9 = cast("Rhel", stack_platform_for("rhel-9"))


def candidate(package: str, version: str = "1-1") -> Candidate:
    where = (f"{package}.rpm", 1, "0" * 64, "cuda", "", "", "cuda")
    return Candidate(package, version, "x86_64", package, version, (), (), (), (), *where)


#: Pins within one branch, and pins of several.
PINS = {
    "580": ["580", "580.95.05", "==580.95.05", "= 580.95.05-1.el9", "==3:580.95.05-1.el9", ">=580.65.06, <581",
            ">580.65.06, <=580.95.05", ">= 580, < 580.95", ">=3:580.65.06, <3:581"],
    "": ["newest", ">=3:570.1, <3:581", ">=580", ">=580, <590", "<580", ">=570.1, <=580"],
}  # fmt: skip


@pytest.mark.parametrize(("branch", "pin"), [(branch, pin) for branch, pins in PINS.items() for pin in pins])
def test_a_pin_names_its_stream(branch: str, pin: str) -> None:
    open_stream, proprietary_stream = (f"{branch}-open", f"{branch}-dkms") if branch else ("open-dkms", "latest-dkms")
    assert RHEL_9.module_streams(pin, "open") == {"nvidia-driver": open_stream}
    assert RHEL_9.module_streams(pin, "proprietary") == {"nvidia-driver": proprietary_stream}
    assert not stack_platform_for("rocky-10").module_streams(pin, "open")


@pytest.mark.parametrize(
    ("version", "release", "first"),
    [
        ("5.14.0-503.15.1.el9_5", "5.14.0-503.15.1.el9_5.x86_64", "5.14.0-503.15.1"),
        ("6.12.0-55.9.1.el10_0", "6.12.0-55.9.1.el10_0.x86_64", "6.12.0-55.9.1"),
        ("5.14.0-687.42.1.el9_8.0.1", "5.14.0-687.42.1.el9_8.0.1.x86_64", "5.14.0-687.42.1"),
        ("5.14.0-687.42.1+2.1.el9_8_ciq", "5.14.0-687.42.1+2.1.el9_8_ciq.x86_64", "5.14.0-687.42.1+2.1"),
        ("1:6.18.35-68.127.amzn2023", "6.18.35-68.127.amzn2023.x86_64", "6.18.35-68.127"),
    ],
)
def test_names_of_a_kernel(version: str, release: str, first: str) -> None:
    names = KernelImage(candidate("kernel", version), release, "kernel").names
    assert names == (version.split(":")[-1].split("-")[0], release, version.split(":")[-1])
    assert parse_versions(f"=={first}").admits(*names)


@pytest.mark.parametrize("name", ["rhel", "rocky", "almalinux", "oracle"])
def test_release_8_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(FleetInvalid, match=f"{name}-8 isn't supported: its Python is 3.6") as error:
        stack_platform_for(f"{name}-8")
    assert f"{name}-9 or {name}-10" in (error.value.hint or "")
    assert f"{name}-8" not in supported_systems()


#: (whether a package is in the stack, whether it follows the driver) → packages
PACKAGES = {
    (True, True): (
        "kmod-nvidia-open-dkms nvidia-kmod-common nvidia-driver-cuda-libs libnvidia-ml libnvidia-nscq cuda-drivers "
        "nvidia-fabricmanager nvidia-fabric-manager nvidia-imex-570 nvidia-driver-common"
    ),
    (True, False): (
        "nvidia-driver-selinux nvidia-fs-dkms libcufile-12-9 gds-tools-13-0 nvidia-gds-12-9 cuda-toolkit-12-9 dkms "
        "libcublas-13-0 nvlsm kernel kernel-modules-core kernel-devel kernel-devel-matched kernel-rt kernel-uek-core "
        "kernel-64k-modules-core kernel-64k-devel-matched kernel-uek-modules-core kernel6.18 kernel6.18-devel"
    ),
    (False, False): (
        "nvidia-driver-assistant libnvidia-container1 nvidia-container-toolkit kernel-headers kernel-debug-core "
        "kernel-rt-kvm kernel-64k-debug-core kernel-uek-debug kernel6.18-headers glibc linux-firmware"
    ),
}


@pytest.mark.parametrize(
    ("package", "answer"), [(package, answer) for answer, names in PACKAGES.items() for package in names.split()]
)
def test_what_is_locked_and_what_is_of_the_driver(package: str, answer: tuple[bool, bool]) -> None:
    choice = candidate(package)
    assert (RHEL_9.in_stack(choice), RHEL_9.follows_driver(choice)) == answer


@pytest.mark.parametrize(
    ("flavour", "out", "packages"),
    [
        ("open", False, "kmod-nvidia-open-dkms cuda-toolkit-12-9 nvidia-driver-cuda"),
        ("open", True, "kmod-nvidia-latest-dkms kmod-nvidia-580.95.05-5.14.0-503.15.1 akmod-nvidia"),
        ("open", True, "cuda-drivers cuda-drivers-580 cuda-12-9"),
        ("proprietary", False, "kmod-nvidia-latest-dkms"),
        ("proprietary", True, "kmod-nvidia-open-dkms nvidia-open-580"),
    ],
)  # fmt: skip
def test_the_other_flavour_and_what_pulls_a_driver_stay_out(flavour: Flavour, out: bool, packages: str) -> None:
    packaging = RHEL_9.packaging(candidate("kmod-nvidia-open-dkms"), flavour)
    patterns = (*packaging.excluded, *packaging.umbrellas)
    for package in packages.split():
        assert any(pattern.fullmatch(package) for pattern in patterns) is out, package


@pytest.mark.parametrize(
    ("excluded", "packages"),
    [
        (True, "kmod-nvidia-open-dkms cuda-drivers-580 nvidia-fabric-manager nvidia-fs-dkms libcufile-13-0"),
        (False, "nvidia-container-toolkit libnvidia-container1 cuda-toolkit-12-9 kernel-core"),
    ],
)
def test_what_a_host_refuses_outside_of_the_lock(excluded: bool, packages: str) -> None:
    for package in packages.split():
        assert any(fnmatch(package, glob) for glob in RHEL_9.kept_out) is excluded, package


def test_parts() -> None:
    parts = {name: RHEL_9.part(candidate(name)) for name in ("kernel-core", "kernel-devel", "nvidia-kmod-common")}
    assert parts == {"kernel-core": "kernel-image", "kernel-devel": "kernel-headers", "nvidia-kmod-common": "companion"}
    assert RHEL_9.part(candidate("libnvidia-ml")) == "driver-userland"
    assert RHEL_9.part(candidate("cuda-nvcc-12-9")) == "cuda"
    assert RHEL_9.cuda_version(candidate("libcufile-12-9")) == "12.9"
