"""``gdsdeploy lock``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from gdsdeploy import console, lockdiff, lockfile, locking
from gdsdeploy.errors import LockStale
from gdsdeploy.load import load_fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.repo.fetch import Fetcher


@click.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; fail if the lock does not fit FLEET or its repositories.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(fleet: Path, check: bool, as_json: bool) -> None:
    """Resolve the pins of FLEET into gdsdeploy.lock beside it.

    For each profile one consistent set is chosen from signed repository metadata, before any host is touched:
    kernel and headers, driver and userland, nvidia-fs, libcufile, gds-tools, and what of the stack they depend on;
    each with exact version, size and sha256. Which versions go together is in gdsdeploy/compat.yml.

    The newest driver that its pin admits wins, then the newest kernel for it, then the newest nvidia-fs.
    """
    if check:
        _check(fleet, as_json)
    else:
        _lock(fleet, as_json)


def _lock(fleet: Path, as_json: bool) -> None:
    intent = load_fleet(fleet)
    path = lockfile.beside(fleet)
    old = lockfile.previous(path)
    with Fetcher() as fetcher:
        resolved = locking.resolve_fleet(intent, fetcher, step=console.step)
    same = lockdiff.same_choice(old, resolved.lock)
    changes = lockdiff.changes(old, resolved.lock)
    if not same:
        lockfile.write(path, resolved.lock)
    for profile, verdict in resolved.warnings:
        console.warn(f"profile {profile}: [{verdict.rule}] {verdict.words}")
    if as_json:
        found = {
            "lock": str(path),
            "digest": old.digest if same and old else resolved.lock.digest,
            "changed": not same,
            "changes": [asdict(change) for change in changes],
            "profiles": {name: lockdiff.subjects(target) for name, target in resolved.lock.targets.items()},
            "warnings": [{"profile": name, "rule": v.rule, "words": v.words} for name, v in resolved.warnings],
        }
        console.data(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if old is not None and changes:
        _show(changes)
    console.data(_table(resolved.lock))
    if same:
        console.say(f"Nothing changed: {path} stays as it is")
    else:
        console.say(f"Wrote {path}: review it and commit it\nNext: gdsdeploy provision {fleet}")


def _check(fleet: Path, as_json: bool) -> None:
    intent = load_fleet(fleet)
    path = lockfile.beside(fleet)
    lock = lockfile.read(path)
    with Fetcher() as fetcher:
        reasons = locking.check(intent, lock, fetcher, step=console.step)
    if as_json:
        named = [{**asdict(reason), "difference": reason.difference.name} for reason in reasons]
        console.data(json.dumps({"lock": str(path), "fits": not reasons, "reasons": named}, indent=2))
    if reasons:
        lines = [f"{path} cannot be used as it is:", *(f"  - {reason}" for reason in reasons)]
        raise LockStale("\n".join(lines), hint=f"Run `gdsdeploy lock {fleet}` and review the change list")
    console.say(f"{path} fits {fleet}, and its repositories have every package of it")


def _show(changes: list[lockdiff.Change]) -> None:
    profile = ""
    for change in changes:
        if change.profile != profile:
            profile = change.profile
            console.data(f"profile {profile}:")
        console.data(f"  {change}")


def _table(lock: Lock) -> str:
    """One line for each profile under a line of headings."""
    rows = [["profile", "system", "kernel", "driver", "nvidia-fs", "libcufile", "packages"]]
    for name, target in lock.targets.items():
        about = lockdiff.subjects(target)
        size = f"{len(target.packages)} ({sum(package.size for package in target.packages) / 1e6:.0f} MB)"
        rows.append([name, *(about[key] for key in ("os", "kernel", "driver", "nvidia-fs", "libcufile")), size])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
