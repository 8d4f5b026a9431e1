"""``lock --prove``: build and audit what the resolver offers, newest first, until each profile has a proven stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.errors import ChecksUnknown, ModuleBuildFailed
from gdsdeploy.fleetfile.load import own_blocks, with_own_rules
from gdsdeploy.fleetfile.rules import Block, own_rules_of, write_own
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.resolve_fleet import Resolved
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight.record import NVIDIA_FS, Answer, PreflightRecord, path_of
from gdsdeploy.preflight.trial import Cell, StackChoices, preflight
from gdsdeploy.repo.fetch import Fetcher


@dataclass(frozen=True)
class Attempt:
    """One stack of a profile that was tried, or that an earlier preflight had tried."""

    profile: str
    #: its versions, in words
    label: str
    record: PreflightRecord
    #: whether the record is an earlier run's
    is_earlier: bool
    #: id of the rule that was learned; empty where nothing failed
    rule: str = ""


@dataclass(frozen=True)
class Proven:
    """The resolved lock with its proofs, and everything that was tried on the way."""

    resolved: Resolved
    attempts: tuple[Attempt, ...]

    @property
    def undecided(self) -> tuple[Attempt, ...]:
        """Stacks of the lock that nothing failed of, and that have no proof."""
        return tuple(each for each in self.attempts if not each.record.failed and not each.record.ok)


def prove(
    fleet: Fleet,
    path: Path,
    resolve: Callable[[Fleet], Resolved],
    *,
    tries: int,
    fetcher: Fetcher,
) -> Proven:
    """Resolve, build every profile's stack in full, and resolve again without what failed, until nothing fails.

    path: of the fleet file; each failure becomes a rule beside it at once, so that an interruption loses none.
    resolve: by the rules of the fleet that it gets.  tries: stacks that may fail for each profile.
    Raises ModuleBuildFailed after that many, ChecksUnknown for trouble of this machine, NoSolution where no stack is
    left, and what preflight raises.
    """
    failures: Counter[str] = Counter()
    attempts: list[Attempt] = []
    while True:
        fleet = with_own_rules(fleet, path)
        resolved = resolve(fleet)
        passed, failed = list[Attempt](), False
        for name in sorted(name for name, target in resolved.lock.targets.items() if not target.packaged):
            (cell,) = preflight(fleet, resolved.lock, [name], StackChoices(), again=False, fetcher=fetcher)
            record = cell.record
            assert record is not None
            attempt = Attempt(name, cell.candidate.label, record, cell.is_earlier)
            if record.builds is Answer.UNKNOWN:
                hint = "Give this machine what it lacks, then run the same command again; nothing was written"
                raise ChecksUnknown(f"profile {name}: {attempt.label}: it wasn't decided: {record.error}", hint=hint)
            if not record.failed:
                passed.append(attempt)
                continue
            failed = True
            learned = rule(fleet, cell, record)
            write_own(path, [*(each for each in own_blocks(path) if each.id != learned.id), learned])
            attempts.append(replace(attempt, rule=learned.id))
            console.say(f"profile {name}: {attempt.label}: {record.error}")
            failures[name] += 1
            if failures[name] >= tries:
                raise _exhausted(path, name, [each for each in attempts if each.profile == name])
        if not failed:
            proofs = {each.profile: each.record.ingredients for each in passed if each.record.ok}
            targets = {
                name: target.model_copy(update={"proof": proofs.get(name, "")})
                for name, target in resolved.lock.targets.items()
            }
            return Proven(replace(resolved, lock=lockfile.build(targets)), (*attempts, *passed))


def rule(fleet: Fleet, cell: Cell, record: PreflightRecord) -> Block:
    """The rule that a failed stack teaches: exactly this kernel with exactly this driver, or this nvidia-fs."""
    candidate, profile = cell.candidate, fleet.profiles[cell.candidate.profile]
    flavours = stack_platform_for(profile.os).kernel_flavours(profile.arch)
    failed = {module.module for module in record.modules if Answer.NO in (module.builds, module.loads)}
    when: dict[str, tuple[str, ...]] = {
        "os": (profile.os,),
        "arch": (profile.arch,),
        "flavour": (candidate.flavour,),
        "kernel_flavour": (profile.kernel.flavour or flavours[0],),
        "kernel_package": (f"=={candidate.kernel_package}",),
    }
    refuses: dict[str, tuple[str, ...]] = {"driver_package": (f"=={candidate.driver_package}",)}
    what = f"Driver {candidate.driver_package}"
    if failed == {NVIDIA_FS}:
        what = f"nvidia-fs {candidate.nvidia_fs_package}, beside driver {candidate.driver_package},"
        when, refuses = {**when, **refuses}, {"nvidia_fs_package": (f"=={candidate.nvidia_fs_package}",)}
    does = "does not build for" if record.builds is Answer.NO else "would not load on"
    return Block(
        id=f"local-{record.ingredients.removeprefix('sha256:')[:16]}",
        says=f"{what} {does} kernel {candidate.kernel} ({candidate.kernel_package}).",
        known="measured",
        source=f"preflight of {record.time[:10]}: {record.error}; {path_of(record.ingredients)}, {record.ingredients}",
        when=when,
        refuses=refuses,
    )


def _exhausted(path: Path, profile: str, attempts: Sequence[Attempt]) -> ModuleBuildFailed:
    lines = [f"profile {profile}: none of {len(attempts)} stacks builds and would load, and no lock was written:"]
    for each in attempts:
        lines.append(f"  - {each.label}: {each.record.error}")
        lines += [f"    log: {log}" for log in each.record.logs]
    return ModuleBuildFailed(
        "\n".join(lines),
        hint=f"{own_rules_of(path)} has them as rules: the same command again tries the next ones. If a failure"
        " was this machine's, remove its rule, and try that stack with gdsdeploy kmod preflight --again",
    )
