"""``gdsdeploy kmod preflight``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksUnknown, FleetInvalid, ModuleBuildFailed, NoSolution
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.preflight import Asked, Cell, preflight
from gdsdeploy.repo.fetch import Fetcher


@click.command()
@options.fleet
@click.option("--kernel", "kernels", metavar="NEXT[,…]", help="Release, version or branch. Default: the lock's.")
@click.option("--driver", "drivers", metavar="NEXT[,…]", help="Version or branch. Default: the lock's.")
@click.option("--nvidia-fs", metavar="NEXT[,…]", help="Version or branch. Default: the lock's.")
@click.option(
    "--mode",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="quick: what decides symbol versions, and nvidia-fs; full: every module of the driver, too.",
)
@click.option("--profile", "profiles", metavar="NAME", multiple=True, help="Only this profile of FLEET; repeatable.")
@click.option("--again", is_flag=True, help="Build also what an earlier preflight has the answer for.")
@options.as_json()
def command(
    fleet: Path,
    kernels: str | None,
    drivers: str | None,
    nvidia_fs: str | None,
    mode: Literal["quick", "full"],
    profiles: tuple[str, ...],
    again: bool,
    as_json: bool,
) -> None:
    """Say whether the stack of FLEET builds and would load on a kernel, without touching a host.

    Kernel headers, kernel image, driver source, nvidia-fs source and a compiler are fetched from the repositories of
    the profile, each verified as the lock's packages are, and unpacked into a root that is thrown away. There the
    modules are built as a host would build them, and audited against that kernel's own modules and symbols. Several
    kernels, drivers and versions of nvidia-fs make a table. NEXT may be anything that the repositories offer, also
    what compat.yml forbids: whether that is so can be found out this way.

    What was found is kept, by the content of the packages; the second run answers from it.

    \b
    Exit code:
      0     all build, and all would load
      24    something does not build, or would not load
      31    whether it would load could not be told for something
      13    a version is not on offer, or its packages cannot be installed together

    \b
    Examples:
      gdsdeploy kmod preflight fleet.yml                           # what the lock has
      gdsdeploy kmod preflight fleet.yml --kernel newest
      gdsdeploy kmod preflight fleet.yml --kernel 6.12.107,6.12.117 --driver 550,535
      gdsdeploy kmod preflight fleet.yml --kernel newest --mode full --json | jq '.cells[].loads'
    """
    intent = load_fleet(fleet)
    chosen = _profiles(intent, profiles, fleet)
    path = lockfile.beside(fleet)
    lock = lockfile.read(path) if path.exists() else None
    if lock is None:
        console.say(f"There is no {path} yet: the versions are those that the pins of {fleet} prefer")
    asked = Asked(_words(kernels), _words(drivers), _words(nvidia_fs))
    with Fetcher() as fetcher:
        cells = preflight(intent, lock, chosen, asked, mode=mode, again=again, fetcher=fetcher, step=console.step)
    if as_json:
        console.json(document(cells, mode))
    else:
        console.data(_table(cells))
        _reasons(cells)
    _end(cells)


def _profiles(fleet: Fleet, named: tuple[str, ...], path: Path) -> list[str]:
    for name in named:
        if name not in fleet.profiles:
            there = ", ".join(sorted(fleet.profiles))
            raise FleetInvalid(f"{path}: there is no profile {name!r}", hint=f"It has {there}")
    return sorted(set(named) or fleet.profiles)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def document(cells: list[Cell], mode: str) -> dict[str, Any]:
    """What ``--json`` prints; docs/preflight.md describes it."""
    ok = all(cell.record is not None and cell.record.ok for cell in cells)
    return {"mode": mode, "ok": ok, "cells": [_cell(cell) for cell in cells]}


def _cell(cell: Cell) -> dict[str, Any]:
    candidate, record = cell.candidate, cell.record
    found: dict[str, Any] = {
        "profile": candidate.profile,
        "kernel": candidate.kernel,
        "kernel_package": candidate.kernel_package,
        "driver": candidate.driver,
        "driver_package": candidate.driver_package,
        "flavour": candidate.flavour,
        "nvidia_fs": candidate.nvidia_fs or None,
        "nvidia_fs_package": candidate.nvidia_fs_package or None,
        "forbidden_by": [verdict.rule for verdict in candidate.against],
    }
    if record is None:
        return {**found, "builds": None, "loads": None, "error": candidate.problem, "modules": []}
    return {
        **found,
        "builds": record.builds,
        "loads": record.loads,
        "error": record.error,
        "rules": list(record.rules),
        "modules": [asdict(module) for module in record.modules],
        "mode": record.mode,
        "seconds": record.seconds,
        "time": record.time,
        "kept": cell.kept,
        "ingredients": record.ingredients,
        "logs": list(record.logs),
    }


def _table(cells: list[Cell]) -> str:
    rows = [["profile", "kernel", "driver", "nvidia-fs", "builds", "loads", "mode", "found"]]
    for cell in cells:
        c, record = cell.candidate, cell.record
        name = f"{c.driver_package} ({c.flavour})"
        answers = ["–", "–", "", "cannot be installed"]
        if record is not None:
            when = f"{record.time[:16].replace('T', ' ')} (kept)" if cell.kept else f"now, {record.seconds:.0f} s"
            answers = [_mark(record.builds), _mark(record.loads if record.builds else False), record.mode, when]
        rows.append([c.profile, c.kernel, name, c.nvidia_fs_package or "–", *answers])
    return console.columns(rows)


def _mark(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[answer]


def _reasons(cells: list[Cell]) -> None:
    """Under the table: why not, which rule knows it, which version is without it, and the log."""
    for cell in cells:
        record, candidate = cell.record, cell.candidate
        lines: list[str] = []
        if record is None:
            lines = candidate.problem.splitlines()
        elif not record.ok:
            lines = [record.error, *(_rule(rule) for rule in record.rules), *(f"log: {log}" for log in record.logs)]
        elif candidate.against:
            rules = ", ".join(f"[{verdict.rule}]" for verdict in candidate.against)
            lines = [f"compat.yml forbids it ({rules}), and it builds and would load all the same"]
        if lines:
            console.data("\n".join(["", f"{candidate.label}:", *(f"  {line}" for line in lines)]))


def _rule(rule: dict[str, str]) -> str:
    fixed = f" Without it: {rule['fixed']}." if rule["fixed"] else ""
    return f"known as [{rule['id']}]: {rule['says']}{fixed}"


def _end(cells: list[Cell]) -> None:
    records = [cell.record for cell in cells if cell.record is not None]
    bad = [record for record in records if not record.builds or record.loads is False]
    if bad:
        hint = "Keep the kernel or driver that is locked, or take a version that the table has a yes for"
        raise ModuleBuildFailed(f"{len(bad)} of {len(cells)} stacks do not build, or would not load", hint=hint)
    if len(records) < len(cells):
        raise NoSolution(f"{len(cells) - len(records)} of {len(cells)} stacks cannot be installed")
    if any(record.loads is None for record in records):
        raise ChecksUnknown("whether it would load could not be told for everything", hint="--json has the findings")
