"""``gdsdeploy kmod preflight``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksUnknown, FleetInvalid, ModuleBuildFailed, NoSolution
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.host.io.wording import aligned, joined
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.preflight.record import Answer, PreflightRecord
from gdsdeploy.preflight.trial import Cell, StackChoices, preflight
from gdsdeploy.repo import credentials
from gdsdeploy.repo.fetch import Fetcher


@click.command()
@options.fleet
@options.listed("--kernel", "Release, version or branch. Default: the lock's.", "NEXT[,…]", "kernels")
@options.listed("--driver", "Version or branch. Default: the lock's.", "NEXT[,…]", "drivers")
@options.listed("--nvidia-fs", "Version or branch. Default: the lock's.", "NEXT[,…]")
@click.option("--profile", "profiles", metavar="NAME", multiple=True, help="Only this profile of FLEET; repeatable.")
@click.option("--again", is_flag=True, help="Also build what an earlier preflight has answered.")
@options.as_json()
def command(
    fleet: Path,
    kernels: str | None,
    drivers: str | None,
    nvidia_fs: str | None,
    profiles: tuple[str, ...],
    again: bool,
    as_json: bool,
) -> None:
    """Check whether FLEET's stack builds and would load on a kernel, without touching a host.

    Kernel headers, kernel image, driver source, nvidia-fs source and a compiler are fetched from the profile's
    repositories, verified like the lock's packages, and unpacked into a temporary root. There the modules are built
    as on a host, and audited against that kernel's own modules and symbols. Several kernels, drivers and versions of
    nvidia-fs make a table. NEXT may be any version that the repositories offer, even one that compat.yml forbids, to
    test whether that is right.

    Results are kept by the content of the packages; a second run reads them.

    \b
    Exit code:
      0     every module that was tried builds, and would load
      24    a stack doesn't build, or would not load
      31    it couldn't determine whether a module builds and would load, for lack of space or memory for instance
      13    a version isn't on offer, or its packages can't be installed together

    \b
    Examples:
      gdsdeploy kmod preflight fleet.yml                           # the locked stack
      gdsdeploy kmod preflight fleet.yml --kernel newest
      gdsdeploy kmod preflight fleet.yml --kernel 6.12.107,6.12.117 --driver 550,535
      gdsdeploy kmod preflight fleet.yml --kernel newest --json | jq '.cells[].loads'
    """
    intent = load_fleet(fleet, TRUSTED)
    chosen = _profiles(intent, profiles, fleet)
    path = lockfile.beside(fleet)
    lock = lockfile.read(path) if path.exists() else None
    if lock is None:
        console.say(f"There is no {path} yet: using the newest versions that the pins of {fleet} admit")
    choices = StackChoices(_words(kernels), _words(drivers), _words(nvidia_fs))
    with Fetcher(logins=credentials.of_fleet(intent, fleet)) as fetcher:
        cells = preflight(intent, lock, chosen, choices, again=again, fetcher=fetcher)
    if as_json:
        console.json(document(cells))
    else:
        console.data(_table(cells))
        _reasons(cells)
    _end(cells)


def _profiles(fleet: Fleet, names: tuple[str, ...], path: Path) -> list[str]:
    for name in names:
        if name not in fleet.profiles:
            profiles = ", ".join(sorted(fleet.profiles))
            raise FleetInvalid(f"{path}: there is no profile {name!r}", hint=f"It has {profiles}")
    return sorted(set(names) or fleet.profiles)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def document(cells: list[Cell]) -> dict[str, Any]:
    """What ``--json`` prints; docs/preflight.md describes it."""
    ok = all(cell.record is not None and cell.record.ok for cell in cells)
    return {"ok": ok, "cells": [_cell(cell) for cell in cells]}


def _cell(cell: Cell) -> dict[str, Any]:
    candidate, record = cell.candidate, cell.record
    names = ("profile", "kernel", "kernel_package", "driver", "driver_package", "flavour")
    value: dict[str, Any] = {
        **{name: getattr(candidate, name) for name in names},
        "nvidia_fs": candidate.nvidia_fs or None,
        "nvidia_fs_package": candidate.nvidia_fs_package or None,
        "forbidden_by": [verdict.rule for verdict in candidate.against],
    }
    if record is None:
        untried = dict.fromkeys(("builds", "loads"), Answer.NOT_TRIED)
        return {**value, **untried, "error": candidate.problem, "modules": []}
    shown = ("builds", "loads", "rules", "modules", "seconds", "time", "ingredients", "logs")
    results = {key: result for key, result in asdict(record).items() if key in shown}
    return {**value, **results, "error": record.error, "kept": cell.is_earlier}


def _table(cells: list[Cell]) -> str:
    rows = [["profile", "kernel", "driver", "nvidia-fs", "builds", "loads", "compiled", "found"]]
    for cell in cells:
        c, record = cell.candidate, cell.record
        name = f"{c.driver_package} ({c.flavour})"
        answers = ["–", "–", "–", "cannot be installed"]
        if record is not None:
            when = f"{record.time[:16].replace('T', ' ')} (kept)" if cell.is_earlier else f"now, {record.seconds:.0f} s"
            answers = [record.builds, record.loads, compiled(record), when]
        rows.append([c.profile, c.kernel, name, c.nvidia_fs_package or "–", *answers])
    return joined(aligned(rows))


def compiled(record: PreflightRecord) -> str:
    """Which modules were compiled, and which of them failed."""
    words = f"all {len(record.modules)} modules"
    if record.untried_modules or record.builds is not Answer.YES:
        tried = [module for module in record.modules if module.builds is not Answer.NOT_TRIED]
        words = ", ".join(f"{module.module} {module.builds}" for module in tried) or "nothing"
    return words


def _reasons(cells: list[Cell]) -> None:
    """Below the table: the reason, the rule for it, the version that fixes it, and the log."""
    for cell in cells:
        record, candidate = cell.record, cell.candidate
        lines: list[str] = []
        if record is None:
            lines = candidate.problem.splitlines()
        elif not record.ok:
            lines = [record.error] if record.error else []
            fixes = [f" Fixed in: {rule['fixed']}." if rule["fixed"] else "" for rule in record.rules]
            rules = zip(record.rules, fixes, strict=True)
            lines += [f"known as [{rule['id']}]: {rule['says']}{fixed}" for rule, fixed in rules]
            lines += [f"log: {log}" for log in record.logs if record.builds is not Answer.YES]
        if record is not None:
            lines += verdict_on_rules(record, [f"[{verdict.rule}]" for verdict in candidate.against])
        if lines:
            console.data(joined(["", f"{candidate.label}:", *(f"  {line}" for line in lines)]))


def verdict_on_rules(record: PreflightRecord, against: Sequence[str]) -> list[str]:
    """Compares the result with compat.yml, whose rules ``against`` forbid the stack; nothing where they agree."""
    rules = ", ".join(against)
    if record.failed:
        fails = "doesn't build" if record.builds is Answer.NO else "would not load"
        return [f"compat.yml forbids it, too: {rules}"] if against else [f"compat.yml allows it, yet it {fails}"]
    if not against:
        return []
    if record.ok:
        return [f"compat.yml forbids it ({rules}), yet every module builds and would load"]
    text = f"compat.yml forbids it ({rules}); this preflight neither confirms nor refutes that"
    return [f"{text}: not tried: {', '.join(record.untried_modules)}" if record.untried_modules else text]


def _end(cells: list[Cell]) -> None:
    records = [cell.record for cell in cells if cell.record is not None]
    if bad := [record for record in records if record.failed]:
        hint = "Keep the locked kernel or driver, or choose a version with a yes in the table"
        raise ModuleBuildFailed(f"{len(bad)} of {len(cells)} stacks don't build, or would not load", hint=hint)
    if len(records) < len(cells):
        raise NoSolution(f"{len(cells) - len(records)} of {len(cells)} stacks cannot be installed")
    if any(record.loads is Answer.UNKNOWN for record in records):
        problem = "it couldn't determine whether every module builds and would load"
        raise ChecksUnknown(problem, hint="See the findings: add --json")
