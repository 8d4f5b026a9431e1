"""``gdsdeploy lock``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.attest import signing
from gdsdeploy.cli import options
from gdsdeploy.errors import LockStale, RepositoryUntrusted, first_few
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockdiff, lockfile, resolve_fleet
from gdsdeploy.lock.lockfile import Difference
from gdsdeploy.lock.resolve.explain import Explanation, known
from gdsdeploy.lock.resolve_fleet import Upgrade
from gdsdeploy.model.lock import Lock
from gdsdeploy.repo.fetch import Fetcher

#: Newer ones that are named after the table; the lock and --explain have all of them.
_SHOWN = 4
_UNTRUSTED = (Difference.INDEX_REFUSED, Difference.INDEX_OLDER)


@click.command()
@options.fleet
@click.argument("what", nargs=-1)
@click.option("--upgrade", is_flag=True, help="Move everything to the newest that is admitted, or only WHAT.")
@click.option("--check", is_flag=True, help="Write nothing; fail if the lock does not fit FLEET or its repositories.")
@click.option("--explain", metavar="PACKAGE", help="Say why a package has its version, and what forbids newer ones.")
@click.option("--sign", is_flag=True, help="Also sign the lock: gdsdeploy.lock.intoto.json beside it.")
@click.option("--key", type=options.PATH, metavar="FILE", help="The private key for --sign; else your own.")
@options.as_json()
def command(
    fleet: Path,
    what: tuple[str, ...],
    upgrade: bool,
    check: bool,
    explain: str | None,
    sign: bool,
    key: Path | None,
    as_json: bool,
) -> None:
    """Resolve the pins of FLEET into gdsdeploy.lock beside it.

    For each profile one consistent set is chosen from signed repository metadata, before any host is touched:
    kernel and headers, driver and userland, nvidia-fs, libcufile, gds-tools, and what of the stack they depend on;
    each with exact version, size and sha256. Which versions go together is in gdsdeploy/compat.yml.

    The newest driver that its pin admits wins, then the newest kernel for it, then the newest nvidia-fs. What is in
    the lock already stays, unless the fleet file or a repository forces it to move, or --upgrade lets it.

    \b
    Examples:
      gdsdeploy lock fleet.yml                            # the first lock, or what FLEET's changes ask for
      gdsdeploy lock --upgrade fleet.yml                  # everything to the newest that is admitted
      gdsdeploy lock --upgrade fleet.yml driver           # only the driver and what has to have its version
      gdsdeploy lock --upgrade fleet.yml kernel dkms      # also: nvidia-fs, libcufile, doca, any locked package
      gdsdeploy lock --check fleet.yml                    # for CI
      gdsdeploy lock --explain kernel fleet.yml
      gdsdeploy lock --sign fleet.yml                     # for `gdsdeploy verify`; see docs/attest.md
    """
    if sum((upgrade, check, explain is not None)) > 1:
        raise click.UsageError("--upgrade, --check and --explain exclude each other")
    if what and not upgrade:
        raise click.UsageError(f"{' '.join(what)}: names what to move, which only --upgrade does")
    if sign and (check or explain is not None):
        raise click.UsageError("--sign goes with neither --check nor --explain")
    signer = signing.opened(key) if sign else None
    if check:
        _check(fleet, as_json)
    elif explain is not None:
        _explain(fleet, explain, as_json)
    else:
        _lock(fleet, Upgrade(everything=upgrade and not what, what=frozenset(what)), as_json)
    if signer is not None:
        signing.of_lock(fleet, signer)


def _lock(fleet: Path, upgrade: Upgrade, as_json: bool) -> None:
    intent = load_fleet(fleet)
    path = lockfile.beside(fleet)
    old = lockfile.previous(path)
    _check_names(upgrade, old, path)
    with Fetcher() as fetcher:
        resolved = resolve_fleet.resolve_fleet(intent, fetcher, old=old, upgrade=upgrade, step=console.step)
    same = lockdiff.same_choice(old, resolved.lock)
    changes = lockdiff.changes(old, resolved.lock)
    if not same:
        lockfile.write(path, resolved.lock)
    for profile, verdict in resolved.warnings:
        console.warn(f"profile {profile}: [{verdict.rule}] {verdict.words}")
    for change in changes:
        if change.subject and change.kind == "downgraded":
            console.warn(f"profile {change.profile}: {change.what} goes back from {change.before} to {change.after}")
    if as_json:
        found = {
            "lock": str(path),
            "digest": old.digest if same and old else resolved.lock.digest,
            "changed": not same,
            "changes": [asdict(change) for change in changes],
            "profiles": {name: lockdiff.subjects(target) for name, target in resolved.lock.targets.items()},
            "refused": {n: [r.model_dump() for r in target.refused] for n, target in resolved.lock.targets.items()},
            "warnings": [{"profile": name, "rule": v.rule, "words": v.words} for name, v in resolved.warnings],
        }
        console.json(found)
        return
    if old is not None and changes:
        _show(changes)
    console.data(_table(resolved.lock))
    _passed_over(fleet, resolved.lock)
    if same:
        console.say(f"Nothing changed: {path} stays as it is")
        if old is not None and not upgrade.everything and not upgrade.what:
            console.say(f"To move to what is newer: gdsdeploy lock --upgrade {fleet}")
    else:
        console.say(f"Wrote {path}: review it and commit it\nNext: gdsdeploy provision {fleet}")


def _check_names(upgrade: Upgrade, old: Lock | None, path: Path) -> None:
    """Refuse a name that --upgrade could only ignore."""
    if not upgrade.what:
        return
    if old is None:
        raise click.UsageError(
            f"there is no usable lock at {path} to move {', '.join(sorted(upgrade.what))} of; lock first"
        )
    names = {name for target in old.targets.values() for name in known(target)}
    for name in sorted(upgrade.what - names):
        raise click.UsageError(f"{name} is neither driver, kernel, nvidia-fs, libcufile, doca nor a package of {path}")


def _check(fleet: Path, as_json: bool) -> None:
    intent = load_fleet(fleet)
    path = lockfile.beside(fleet)
    lock = lockfile.read(path)
    with Fetcher() as fetcher:
        reasons = resolve_fleet.check(intent, lock, fetcher, step=console.step)
    if as_json:
        named = [{**asdict(reason), "difference": reason.difference.name} for reason in reasons]
        console.json({"lock": str(path), "fits": not reasons, "reasons": named})
    if not reasons:
        console.say(f"{path} fits {fleet}, and its repositories have every package of it")
        return
    text = "\n".join([f"{path} cannot be used as it is:", *(f"  - {reason}" for reason in reasons)])
    if any(reason.difference in _UNTRUSTED for reason in reasons):
        raise RepositoryUntrusted(text, hint="Take a mirror that is up to date; if this clock is wrong, correct it")
    raise LockStale(text, hint=f"Run `gdsdeploy lock {fleet}` and review the change list")


def _explain(fleet: Path, what: str, as_json: bool) -> None:
    intent, lock = lockfile.fleet_and_lock(fleet, fresh=False)
    with Fetcher() as fetcher:
        found = resolve_fleet.explain(intent, lock, what, fetcher, step=console.step)
    if as_json:
        named = [
            {**asdict(each), "package": each.package.model_dump(), "index": each.index.model_dump()} for each in found
        ]
        console.json({"what": what, "profiles": named})
        return
    for each in found:
        console.data("\n".join(_words(each, fleet)))


def _words(found: Explanation, fleet: Path) -> list[str]:
    package, index = found.package, found.index
    where = " ".join(filter(None, (package.repository, package.suite, package.component)))
    lines = [
        f"profile {found.profile}: {package.package} {package.version} ({package.part}, on {package.needed_by})",
        f"  from       {where}: {package.file} ({package.size} bytes)",
        f"  sha256     {package.sha256}",
        f"  signed by  {index.signed_by}, index of {index.date}",
        f"  needed by  {', '.join(found.needed_by) or 'the profile itself'}",
    ]
    lines += [f"  admitted   [{rule}] {says}" for rule, says in found.rules]
    lines += [f"  warned     [{rule}] {says}" for rule, says in found.warned]
    if not found.newer:
        lines.append("  newer      none is on offer")
    for newer in found.newer:
        lines.append(f"  newer      {newer.what}")
        against = newer.forbidden_by or (
            f"nothing forbids it: `gdsdeploy lock --upgrade {fleet} {found.subject or package.package}` takes it",
        )
        lines += [f"    - {reason}" for reason in against]
    return lines


def _passed_over(fleet: Path, lock: Lock) -> None:
    """What was not taken though it is newer, in one line a profile: nothing goes back in silence."""
    for name, target in lock.targets.items():
        if target.refused:
            newer = [f"{refused.what} [{refused.rule}]" for refused in target.refused]
            console.say(f"Passed over for profile {name}: {first_few(newer, _SHOWN)}")
    if any(target.refused for target in lock.targets.values()):
        console.say(f"Why: gdsdeploy lock --explain driver {fleet} (or kernel, nvidia-fs, libcufile, a package)")


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
    return console.columns(rows)
