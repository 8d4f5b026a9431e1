"""``lock --prove`` and ``kmod preflight``: which stacks are tried, what failures teach, what the lock says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gdsdeploy.errors import ChecksUnknown, FleetInvalid, GdsError, ModuleBuildFailed, NoSolution
from gdsdeploy.fleetfile.load import own_blocks
from gdsdeploy.fleetfile.rules import own_rules_of, rules_of, write_own
from gdsdeploy.host.model.compat import UNKNOWN, Verdict, rules_with
from gdsdeploy.lock import compat, lockfile
from gdsdeploy.lock.resolve import resolve
from gdsdeploy.lock.resolve_fleet import Resolved
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.preflight import prove, record, trial
from gdsdeploy.preflight.record import Answer, ModuleResult
from gdsdeploy.preflight.trial import Cell, StackCandidate, StackChoices, _cell, candidates
from gdsdeploy.repo.fetch import Fetcher
from tests.repos.dkmspackages import sources
from tests.repos.stack import TRIXIE, Stanza, gds, kernel, package, without
from tests.unit.lock.test_resolve import DEBIAN, TWO_DRIVERS, target, universe
from tests.unit.preflight.test_preflight_record import make_record

BASE = ("bash", "binutils", "coreutils", "dash", "diffutils", "findutils", "gcc", "grep", "libpython3-stdlib", "mawk")
TOOLS = [package(name, "1") for name in (*BASE, "python3-minimal", "sed", "xz-utils", "zstd")]


def stacks(
    choices: StackChoices, locked: Target | None = None, stanzas: object = TWO_DRIVERS, **wish: object
) -> list[StackCandidate]:
    profile = Profile.model_validate({"os": "debian-13", **wish})
    offered = universe(stanzas)  # type: ignore[arg-type]
    return candidates("gds", profile, DEBIAN, offered, [], sources, locked, choices, rules_with(()))


def test_every_combination_is_tried_also_what_a_rule_forbids() -> None:
    stack = stacks(StackChoices(("6.12.94", "6.12.107"), ("550", "570")))
    assert [(c.kernel, c.driver) for c in stack] == [
        ("6.12.94+deb13-amd64", "550.163.01"),
        ("6.12.94+deb13-amd64", "570.133.07"),
        ("6.12.107+deb13-amd64", "550.163.01"),
        ("6.12.107+deb13-amd64", "570.133.07"),
    ]
    forbidden = {(c.kernel, c.driver): [v.rule for v in c.against] for c in stack if c.against}
    assert forbidden[("6.12.107+deb13-amd64", "550.163.01")] == ["driver-550-pci-resize"]
    assert all(c.target is not None for c in stack)


def test_what_is_not_named_is_as_it_is_locked() -> None:
    locked = target(TRIXIE)
    (same,) = stacks(StackChoices(), locked)
    assert same.target is locked
    (other,) = stacks(StackChoices(kernels=("newest",)), locked)
    assert (other.kernel, other.driver) == ("6.12.107+deb13-amd64", locked.driver.version)
    assert other.target is not None
    assert {p.package for p in other.target.packages} >= {"linux-headers-6.12.107+deb13-amd64"}


def test_without_a_lock_the_pins_decide() -> None:
    (stack,) = stacks(StackChoices(), driver="550", kernel="6.12.94")
    assert (stack.kernel, stack.driver) == ("6.12.94+deb13-amd64", "550.163.01")


def test_without_nvidia_fs_there_is_none_to_try() -> None:
    (stack,) = stacks(StackChoices(), mode="p2pdma", kernel="6.12.94", driver="550")
    assert stack.nvidia_fs == ""
    assert stack.target is not None
    assert stack.target.nvidia_fs is None


def test_a_kernel_without_headers_is_refused_by_name() -> None:
    with pytest.raises(NoSolution) as error:
        stacks(StackChoices(("6.12.100+deb13-amd64",)))
    assert "no linux-headers-6.12.100+deb13-amd64" in error.value.message
    assert "6.12.107+deb13-amd64, 6.12.96+deb13-amd64, 6.12.94+deb13-amd64" in str(error.value.hint)


def test_a_driver_that_is_not_on_offer_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoSolution) as error:
        stacks(StackChoices(drivers=("580",)))
    assert "the repositories have no driver 580" in error.value.message
    assert error.value.hint == "They have 570.133.07-1, 550.163.01-2"


def test_what_is_no_version_is_a_mistake_of_the_users() -> None:
    with pytest.raises(GdsError, match="not a version expression"):
        stacks(StackChoices(kernels=("the new one",)))


def test_packages_that_do_not_go_together_are_a_row_of_the_table() -> None:
    (stack,) = stacks(StackChoices(("6.12.94",), ("550",)), stanzas=without(TRIXIE, "firmware-nvidia-gsp"))
    assert stack.target is None
    assert "firmware-nvidia-gsp" in stack.problem


def test_the_compiler_comes_with_what_it_needs_and_without_the_kernel_itself() -> None:
    stanzas = [*without(TRIXIE, "gcc-14", "libc6"), package("gcc-14", "14", depends="libgcc"), package("libgcc", "14"),
               package("libc6", "2.41-12", depends="libgcc"), *TOOLS]  # fmt: skip
    locked = target(stanzas)
    names = [c.package for c in trial.toolchain(locked, DEBIAN, universe(stanzas))]
    assert {"gcc-14", "libgcc", "libc6", "pahole", "kmod", "python3-minimal"} <= set(names)
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith("linux-") and name != "linux-base"]
    # An image needs this only to boot.
    assert "initramfs-tools" not in names


def test_a_repository_without_a_compiler_is_refused() -> None:
    with pytest.raises(NoSolution, match="the repositories have no bash, which building modules needs"):
        trial.toolchain(target(TRIXIE), DEBIAN, universe(TRIXIE))


#: Kernels that the shipped rules admit with the driver, and two versions of nvidia-fs.
OFFERED: list[Stanza] = [
    *TRIXIE, *kernel("6.12.95+deb13", "6.12.95-1"), *kernel("6.12.96+deb13", "6.12.96-1"),
    *gds("2.19.8", "1.9.1.3", "12.4.2", "1"),
]  # fmt: skip
FLEET = Fleet.model_validate({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}})
BROKEN = "driver doesn't build: nvidia/nv-pci.c:237: too few arguments"
#: (kernel, nvidia-fs) → module that fails
Failing = Callable[[str, str], str]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "fleet.yml"


def solve(fleet: Fleet = FLEET) -> Resolved:
    wish = FLEET.profiles["gds"]
    offered = universe(OFFERED)
    result = resolve("gds", wish, DEBIAN, offered, [], sources, rules=rules_of(fleet))
    doubts = [
        Verdict(f"{part}-unknown", UNKNOWN, "Unknown.", frozenset(("driver", part))) for part in ("kernel", "cuda")
    ]
    return Resolved(lockfile.build({"gds": result.target}), tuple(("gds", doubt) for doubt in doubts))


def run(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: Failing,
    *,
    tries: int = 5,
    loads: Answer = Answer.YES,
    fails: Answer = Answer.NO,
) -> tuple[prove.Proven, list[tuple[str, str]]]:
    """What came of it, and the (kernel, nvidia-fs) that were tried."""
    tried: list[tuple[str, str]] = []

    def build(_fleet: Fleet, lock: Lock, names: Sequence[str], *_: Any, **__: Any) -> list[Cell]:
        target = lock.targets[names[0]]
        assert target.nvidia_fs is not None
        packages = {package.part: package.version for package in target.packages}
        tried.append((target.kernel.release, target.nvidia_fs.version))
        candidate = StackCandidate(
            profile=names[0],
            kernel=target.kernel.release,
            kernel_package=target.kernel.version,
            driver=target.driver.version,
            driver_package=packages["driver-source"],
            flavour=target.driver.flavour,
            nvidia_fs=target.nvidia_fs.version,
            nvidia_fs_package=packages["nvidia-fs-source"],
            target=target,
        )
        bad = failing(*tried[-1])
        answer, worst = (fails, fails) if bad else (Answer.YES, loads)
        module = ModuleResult(bad or "nvidia", answer, worst, error=BROKEN if bad else "")
        result = make_record(target, builds=answer, loads=worst, modules=(module,))
        return [Cell(candidate, result, is_earlier=False)]

    monkeypatch.setattr(prove, "preflight", build)
    with Fetcher(path.parent / "cache", apt={}) as fetcher:
        return prove.prove(FLEET, path, solve, tries=tries, fetcher=fetcher), tried


def test_the_newest_stack_that_builds_is_proven(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven, tried = run(path, monkeypatch, lambda *_: "")
    assert tried == [("6.12.96+deb13-amd64", "2.19.8")]
    target = proven.resolved.lock.targets["gds"]
    assert target.proof == compat.ingredients(target)
    assert compat.is_proven(target)
    assert [verdict.rule for _, verdict in proven.resolved.warnings] == ["cuda-unknown"]
    assert not own_rules_of(path).exists()


def test_a_driver_that_fails_teaches_about_that_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: str, _: str) -> str:
        return "driver" if kernel == "6.12.96+deb13-amd64" else ""

    proven, tried = run(path, monkeypatch, fails)
    assert tried == [("6.12.96+deb13-amd64", "2.19.8"), ("6.12.95+deb13-amd64", "2.19.8")]
    (rule,) = own_blocks(path)
    assert rule.when["kernel_package"] == ("==6.12.96-1",)
    assert rule.refuses == {"driver_package": ("==550.163.01-2",)}
    assert (BROKEN in rule.source, "sha256:" in rule.source) == (True, True)
    target = proven.resolved.lock.targets["gds"]
    assert (rule.id in {one.rule for one in target.refused}, compat.is_proven(target)) == (True, True)
    assert [(each.rule, each.record.failed) for each in proven.attempts] == [(rule.id, True), ("", False)]
    # The next run doesn't try that again.
    assert run(path, monkeypatch, fails)[1] == [("6.12.95+deb13-amd64", "2.19.8")]


def test_an_nvidia_fs_that_fails_alone_is_exchanged_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tried = run(path, monkeypatch, lambda _, fs: "nvidia_fs" if fs == "2.19.8" else "")
    assert tried == [("6.12.96+deb13-amd64", "2.19.8"), ("6.12.96+deb13-amd64", "2.19.7")]
    (rule,) = own_blocks(path)
    assert rule.refuses == {"nvidia_fs_package": ("==2.19.8~12.4.2-1",)}


def test_it_gives_up_after_some_and_goes_on_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(kernel: str, _: str) -> str:
        return "" if kernel == "6.12.94+deb13-amd64" else "driver"

    with pytest.raises(ModuleBuildFailed, match=r"none of 2 stacks builds(.|\n)*6\.12\.96(.|\n)*6\.12\.95"):
        run(path, monkeypatch, old, tries=2)
    assert len(own_blocks(path)) == 2
    assert run(path, monkeypatch, old, tries=2)[1] == [("6.12.94+deb13-amd64", "2.19.8")]


def test_what_no_build_decides_gets_no_proof(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven, _ = run(path, monkeypatch, lambda *_: "", loads=Answer.UNKNOWN)
    assert proven.resolved.lock.targets["gds"].proof == ""
    assert [verdict.rule for _, verdict in proven.resolved.warnings] == ["kernel-unknown", "cuda-unknown"]
    assert [each.profile for each in proven.undecided] == ["gds"]


def test_trouble_of_this_machine_teaches_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChecksUnknown, match=BROKEN):
        run(path, monkeypatch, lambda *_: "driver", fails=Answer.UNKNOWN)
    assert not own_rules_of(path).exists()
    assert run(path, monkeypatch, lambda *_: "")[1] == [("6.12.96+deb13-amd64", "2.19.8")], (
        "the next run tries it again"
    )


@pytest.mark.parametrize(("builds", "is_kept"), [(Answer.UNKNOWN, False), (Answer.NO, True), (Answer.YES, True)])
def test_a_preflight_keeps_what_it_has_decided(
    builds: Answer, is_kept: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = solve().lock.targets["gds"]
    monkeypatch.setattr(trial, "require_machine", lambda _: None)
    monkeypatch.setattr(trial, "layers", lambda *_: [])
    monkeypatch.setattr(trial, "trial", lambda *_: make_record(target, builds=builds, loads=builds))
    candidate: Any = SimpleNamespace(target=target, label="it")
    with Fetcher(path.parent / "cache", apt={}) as fetcher:
        _cell(candidate, DEBIAN, universe(OFFERED), again=False, fetcher=fetcher)
    assert (record.find(target) is not None) is is_kept


def test_a_proof_stays_with_its_packages_alone() -> None:
    target = solve().lock.targets["gds"]
    proven = target.model_copy(update={"proof": compat.ingredients(target)})
    assert compat.keep_proof(target, proven).proof == proven.proof
    other = [p.model_copy(update={"sha256": "0" * 64}) if p.part == "kernel-image" else p for p in target.packages]
    moved = target.model_copy(update={"packages": tuple(other)})
    assert compat.keep_proof(moved, proven).proof == ""
    assert not compat.is_proven(moved.model_copy(update={"proof": proven.proof}))


def test_a_lock_without_a_proof_has_no_key_for_it(tmp_path: Path) -> None:
    target = solve().lock.targets["gds"]
    assert "proof" not in target.model_dump()
    lock = lockfile.build({"gds": target.model_copy(update={"proof": compat.ingredients(target)})})
    lockfile.write(tmp_path / "gdsdeploy.lock", lock)
    assert lockfile.read(tmp_path / "gdsdeploy.lock").targets["gds"].proof == compat.ingredients(target)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": rules_with(())[0].id}, "rules.0.id: another rule has the id"),
        ({"id": "No id"}, "rules.0.id: an id has a-z, 0-9, dots and dashes"),
        ({"when": {"gpu": "h100"}}, "fleet.compat.yml:9:5: rules.0.when: gpu: there is no 'h100'; there are maxwell,"),
    ],
)
def test_rules_of_people_are_read_with_every_problem(path: Path, change: dict[str, Any], problem: str) -> None:
    rule = {"id": "ours", "says": "s", "known": "measured", "source": "s", "refuses": {"kernel": "6.12.96"}}
    beside = own_rules_of(path)
    beside.write_text(yaml.safe_dump({"rules": [rule]}))
    assert [one.id for one in own_blocks(path)] == ["ours"]
    beside.write_text(yaml.safe_dump({"rules": [{**rule, **change}]}))
    with pytest.raises(FleetInvalid) as error:
        own_blocks(path)
    assert problem in error.value.message
    assert str(beside) in error.value.message


def test_rules_are_written_as_people_write_them(path: Path) -> None:
    beside = own_rules_of(path)
    rule = {"id": "ours", "says": "s", "known": "measured", "source": "s", "refuses": {"kernel": ["6.1", "6.2"]}}
    beside.write_text(yaml.safe_dump({"rules": [{**rule, "when": {"os": "debian-13"}}]}))
    rules = own_blocks(path)
    write_own(path, rules)
    assert own_blocks(path) == rules
    assert yaml.safe_load(beside.read_text())["rules"][0]["when"] == {"os": "debian-13"}
