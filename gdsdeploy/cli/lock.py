"""``gdsdeploy lock`` and ``mirror``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gdsdeploy import console, paths
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksUnknown, GdsError, LockInvalid, LockStale, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import CONFINED, Reading, confined, is_folder_elsewhere, load_fleet
from gdsdeploy.host.io.wording import aligned, first_few, joined
from gdsdeploy.lock import compat, lockfile, resolve_fleet, signatures
from gdsdeploy.lock.lockfile import Difference
from gdsdeploy.lock.resolve.explain import Explanation, explainable_names
from gdsdeploy.lock.resolve.target import Pieces
from gdsdeploy.lock.resolve_fleet import Resolved, Upgrade
from gdsdeploy.mirror import writing
from gdsdeploy.mirror.fill import KEYRING, mirror
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.repo import credentials
from gdsdeploy.repo.credentials import Logins
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.ssh.endpoint import TIMEOUT

if TYPE_CHECKING:
    from gdsdeploy.preflight.prove import Attempt, Proven

# --adopt and --prove import what only they need, which is half of this verb's imports.

#: Newer versions that are named after the table; the lock and --explain have all of them.
_SHOWN = 4
_UNTRUSTED = (Difference.INDEX_REFUSED, Difference.INDEX_OLDER)


_READING = ("--run-inventory", "--allow-file-repositories", "--json")


@click.command()
@options.combined(
    options.alone("--check", *_READING),
    options.alone("--explain", *_READING),
    options.needs("--adopt", "--timeout", "--connections"),
    options.needs("--prove", "--tries"),
)
@options.fleet
@click.argument("what", nargs=-1)
@click.option("--upgrade", is_flag=True, help="Move everything, or only WHAT, to the newest admitted version.")
@options.listed("--adopt", "Also lock what these hosts have of their driver; shell patterns work.")
@options.timeout(TIMEOUT, "Seconds for each host that --adopt asks.")
@options.at_once
@click.option("--check", is_flag=True, help="Write nothing; fail if the lock doesn't fit FLEET or its repositories.")
@click.option("--prove", is_flag=True, help="Build and audit what would be locked, newest first, until a stack builds.")
@click.option(
    "--tries",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="For --prove: stacks of a profile that may fail.",
)
@click.option("--explain", metavar="PACKAGE", help="Explain why a package has its version, and what forbids newer.")
@click.option(
    "--sign", type=options.PATH, metavar="KEY", help="Also sign the lock with this OpenSSH key: gdsdeploy.lock.sig."
)
@options.run_inventory
@options.allow_file_repositories
@options.as_json()
def lock_fleet(
    fleet: Path,
    what: tuple[str, ...],
    upgrade: bool,
    adopt: str | None,
    timeout: float,
    check: bool,
    prove: bool,
    tries: int,
    explain: str | None,
    sign: Path | None,
    run_inventory: bool,
    allow_file_repositories: bool,
    as_json: bool,
) -> None:
    """Resolve the pins of FLEET into gdsdeploy.lock beside it.

    It chooses one consistent set for each profile from signed repository metadata, before it touches a host. The set
    has kernel and headers, driver and userland, nvidia-fs, libcufile, gds-tools, and what these depend on. Each
    package has its exact version, size and sha256. gdsdeploy/lock/compat.yml lists which versions go together.

    The newest driver that its pin admits wins, then the newest kernel for it, then the newest nvidia-fs. Locked
    versions stay unless the fleet file or a repository forces a move, or --upgrade allows it.

    --adopt asks hosts which packages of a driver they have beyond that (NVDEC, NVENC, GL, NSCQ, metapackages), and
    locks those that are on offer in the locked driver's version. provision then upgrades them with the driver and
    doesn't have to remove them. Later runs keep them; --adopt again takes what hosts have by then.

    --prove builds and audits every module of the stack before it writes the lock, as `gdsdeploy kmod preflight`
    does. A stack that fails becomes a rule beside FLEET (fleet.compat.yml), and the next one is tried. The lock
    names the proof, which a rollout accepts. What was proven before isn't built again.

    Without --adopt and --prove, FLEET may be a file that you haven't reviewed: no program of it runs, and neither a
    link nor a repository (file://) leads out of its folder.

    \b
    Examples:
      gdsdeploy lock fleet.yml                            # the first lock, or the changes that FLEET requires
      gdsdeploy lock --upgrade fleet.yml                  # everything to the newest admitted version
      gdsdeploy lock --upgrade fleet.yml driver           # only the driver and the packages that follow it
      gdsdeploy lock --upgrade fleet.yml kernel dkms      # also: nvidia-fs, libcufile, doca, any locked package
      gdsdeploy lock --adopt 'gpu*' fleet.yml             # hosts that already have a driver
      gdsdeploy lock --upgrade --prove fleet.yml          # the newest stack that builds and would load
      gdsdeploy lock --check fleet.yml                    # for CI
      gdsdeploy lock --explain kernel fleet.yml
      gdsdeploy lock --sign ~/.ssh/id_ed25519 fleet.yml   # for fleets whose file names signers; see docs/lock.md
    """
    options.require(upgrade or not what, f"{' '.join(what)}: only --upgrade takes names of what to move")
    if sign is not None:
        signatures.require_key(sign)
    mode = confined(run_inventory=run_inventory, file_repositories=allow_file_repositories)
    if check:
        _check(fleet, mode, as_json)
    elif explain is not None:
        _explain(fleet, mode, explain, as_json)
    else:
        hosts = (adopt, timeout) if adopt is not None else None
        moved = Upgrade(everything=upgrade and not what, what=frozenset(what))
        _lock(fleet, mode, moved, hosts, tries if prove else 0, sign, as_json)


def _sign(fleet: Path, mode: Reading, key: Path) -> None:
    """Sign the lock beside ``fleet``; raises SignatureRefused where the fleet file doesn't list the signer."""
    path, intent = lockfile.beside(fleet), load_fleet(fleet, mode)
    data = lockfile.content(path, links=False)
    signature = signatures.sign(data, key)
    if intent.signers is None:
        console.warn(
            f"{fleet} has no key signers, so nothing asks for this signature; docs/lock.md shows how to set it"
        )
    else:
        lockfile.verified(path, intent, fleet, data, signature)
    console.say(f"Wrote {signatures.write(path, signature)}: commit it with the lock")


def _lock(
    fleet: Path,
    mode: Reading,
    upgrade: Upgrade,
    hosts: tuple[str, float] | None,
    tries: int,
    key: Path | None,
    as_json: bool,
) -> None:
    """hosts: those to adopt from, and the seconds for each.  tries: stacks that may fail; 0: none is built.

    key: to sign the lock with; None: it isn't signed.
    """
    intent = load_fleet(fleet, mode)
    path = lockfile.beside(fleet)
    old = lockfile.previous(path)
    _check_names(upgrade, old, path)
    pieces = _ask(intent, fleet, *hosts) if hosts is not None else Pieces({}, {})
    resolved, proven = _resolve(intent, fleet, mode, old, upgrade, pieces, tries)
    attempts = proven.attempts if proven is not None else ()
    named = old is not None and intent.fleet_id in (None, old.fleet_id) and bool(intent.signers is None or old.fleet_id)
    same = named and lockfile.same_choice(old, resolved.lock)
    changes = lockfile.changes(old, resolved.lock)
    if not same:
        resolved = replace(resolved, lock=lockfile.successor(resolved.lock, intent, old))
        lockfile.write(path, resolved.lock)
    errors = _undecided(proven)
    if key is not None:
        try:
            _sign(fleet, mode, key)
        except GdsError as error:
            errors.append(error)
    for line in compat.lines(resolved.warnings):
        console.warn(line)
    for change in changes:
        if change.subject and change.kind == "downgraded":
            console.warn(f"profile {change.profile}: {change.what} goes back from {change.before} to {change.after}")
        if lockfile.consequences(change):
            console.warn(f"profile {change.profile}: {lockfile.consequences(change)}")
    if as_json:
        console.json(_document(path, old, resolved, changes, attempts, same=same))
        options.end_with(errors)
        return
    if old is not None and changes:
        _show(changes)
    console.data(_table(resolved.lock))
    _show_adopted(resolved, pieces)
    _passed_over(fleet, resolved.lock)
    for each in (each for each in attempts if each.record.ok):
        console.say(f"Proven for profile {each.profile}: {each.label}{' (earlier)' if each.is_earlier else ''}")
    if same:
        console.say(f"Nothing changed in {path}")
        if old is not None and not upgrade.everything and not upgrade.what:
            console.say(f"To move to newer versions: gdsdeploy lock --upgrade {fleet}")
    else:
        console.say(f"Wrote {path}: review it and commit it")
        console.say(f"Next: gdsdeploy provision {fleet}")
    options.end_with(errors)


def _fetcher(intent: Fleet, fleet: Path, mode: Reading) -> Fetcher:
    within = None if mode.file_repositories else paths.folder_of(fleet)
    return Fetcher(logins=credentials.of_fleet(intent, fleet), within=within)


def _resolve(
    intent: Fleet, fleet: Path, mode: Reading, old: Lock | None, upgrade: Upgrade, pieces: Pieces, tries: int
) -> tuple[Resolved, Proven | None]:
    with _fetcher(intent, fleet, mode) as fetcher:

        def resolve(intent: Fleet) -> Resolved:
            with console.step(f"Resolving the pins of {fleet}"):
                return resolve_fleet.resolve_fleet(
                    intent, fetcher, old=old, upgrade=upgrade, step=console.step, installed=pieces.by_profile()
                )

        if not tries:
            return resolve(intent), None
        from gdsdeploy.preflight.prove import prove

        proven = prove(intent, fleet, resolve, tries=tries, fetcher=fetcher)
        return proven.resolved, proven


def _document(
    path: Path,
    old: Lock | None,
    resolved: Resolved,
    changes: list[lockfile.Change],
    attempts: Sequence[Attempt],
    *,
    same: bool,
) -> dict[str, Any]:
    """What ``--json`` prints."""
    targets = resolved.lock.targets
    return {
        "lock": str(path),
        "digest": old.digest if same and old else resolved.lock.digest,
        "changed": not same,
        "changes": [asdict(change) for change in changes],
        "profiles": {name: lockfile.subjects(target) for name, target in targets.items()},
        "refused": {name: [refused.model_dump() for refused in target.refused] for name, target in targets.items()},
        "adopted": {name: list(target.adopted) for name, target in targets.items()},
        "left_out": [{**asdict(one), "consequence": one.consequence} for one in resolved.left_out],
        "proofs": {name: target.proof or None for name, target in targets.items()},
        "tried": [_attempt(each) for each in attempts],
        "warnings": compat.to_json(resolved.warnings),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """A stack that --prove tried, for ``--json``."""
    record = attempt.record
    names = ("kernel", "driver", "flavour", "nvidia_fs", "builds", "loads", "error", "ingredients", "logs")
    values = {name: getattr(record, name) for name in names}
    return {"profile": attempt.profile, **values, "kept": attempt.is_earlier, "rule": attempt.rule or None}


def _undecided(proven: Proven | None) -> list[GdsError]:
    """What the command ends in where no build can prove a stack that is locked."""
    undecided = proven.undecided if proven is not None else ()
    lines = [f"profile {e.profile}: {e.label} has no proof: {e.record.error}" for e in undecided]
    hint = "The lock is written. Hosts audit the modules that they build"
    return [ChecksUnknown(joined(lines), hint=hint)] if lines else []


def _ask(intent: Fleet, fleet: Path, adopt: str, timeout: float) -> Pieces:
    names = selection.select(adopt, list(intent.hosts), fleet, option="--adopt")
    from gdsdeploy.lock.adopt_hosts import ask_pieces

    return ask_pieces(intent, fleet, names, timeout=timeout)


def _show_adopted(resolved: Resolved, pieces: Pieces) -> None:
    """What the lock has because hosts have it; of the hosts that were asked, what is different."""
    for profile, target in resolved.lock.targets.items():
        if target.adopted or profile in pieces.profiles.values():
            console.say(f"Adopted for profile {profile}: {', '.join(target.adopted) or 'nothing'}")
        for name in target.adopted:
            if others := pieces.without(profile, name):
                console.say(f"  {name} isn't on {first_few(others, _SHOWN)}: provision installs it there, too")
        for one in (one for one in resolved.left_out if one.profile == profile):
            console.say(f"  not adopted: {one.name}: {one.reason}; {one.consequence}")


def _check_names(upgrade: Upgrade, old: Lock | None, path: Path) -> None:
    """Refuse a name that --upgrade would ignore."""
    if not upgrade.what:
        return
    if old is None:
        moving = ", ".join(sorted(upgrade.what))
        raise click.UsageError(f"there is no usable lock at {path} in which to move {moving}; lock first")
    names = {name for target in old.targets.values() for name in explainable_names(target)}
    for name in sorted(upgrade.what - names):
        raise click.UsageError(f"{name} is neither driver, kernel, nvidia-fs, libcufile, doca nor a package of {path}")


def _check(fleet: Path, mode: Reading, as_json: bool) -> None:
    intent, lock = lockfile.fleet_and_lock(fleet, mode, fresh=False)
    path = lockfile.beside(fleet)
    with console.step(f"Checking {path}") as step, _fetcher(intent, fleet, mode) as fetcher:
        reasons = resolve_fleet.check(intent, lock, fetcher, step=console.step)
        step.failure = "it cannot be used" if reasons else ""
    if as_json:
        value = [{**asdict(reason), "difference": reason.difference.name} for reason in reasons]
        console.json({"lock": str(path), "fits": not reasons, "reasons": value})
    if not reasons:
        console.say(f"{path} fits {fleet}, and the repositories have all its packages")
        return
    text = joined([f"{path} cannot be used:", *(f"  - {reason}" for reason in reasons)])
    if any(reason.difference in _UNTRUSTED for reason in reasons):
        raise RepositoryUntrusted(text, hint="Use an up-to-date mirror; if this machine's clock is wrong, correct it")
    if any(reason.difference is Difference.REPOSITORY_GONE for reason in reasons):
        hint = "Check the address, the suite, the network and the proxy; the fleet file may name another repository"
        raise RepositoryUnusable(text, hint=hint)
    raise LockStale(text, hint=f"Run `gdsdeploy lock {fleet}` and review the change list")


def _explain(fleet: Path, mode: Reading, what: str, as_json: bool) -> None:
    intent, lock = lockfile.fleet_and_lock(fleet, mode, fresh=False, signed=False)
    with _fetcher(intent, fleet, mode) as fetcher:
        explanations = resolve_fleet.explain(intent, lock, what, fetcher, step=console.step)
    if as_json:
        profiles = [
            {**asdict(e), "package": e.package.model_dump(), "index": e.index.model_dump()} for e in explanations
        ]
        console.json({"what": what, "profiles": profiles})
        return
    for explanation in explanations:
        console.data(joined(_words(explanation, fleet)))


def _words(explanation: Explanation, fleet: Path) -> list[str]:
    package, index = explanation.package, explanation.index
    where = " ".join(filter(None, (package.repository, package.suite, package.component)))
    signer = index.signed_by or f"{', '.join(index.package_keys)} (the package; its index is unsigned: {index.why})"
    lines = [
        f"profile {explanation.profile}: {package.package} {package.version} ({package.part}, on {package.needed_by})",
        f"  from       {where}: {package.file} ({package.size} bytes)",
        f"  sha256     {package.sha256}",
        f"  signed by  {signer}, index of {index.date}",
        f"  needed by  {', '.join(explanation.needed_by) or 'the profile itself'}",
        *([f"  gone       {explanation.gone}"] if explanation.gone else []),
        *(f"  admitted   [{rule}] {says}" for rule, says in explanation.rules),
        *(f"  warned     [{rule}] {says}" for rule, says in explanation.warned),
    ]
    if not explanation.newer and not explanation.gone:
        lines.append("  newer      nothing on offer")
    for newer in explanation.newer:
        lines.append(f"  newer      {newer.what}")
        upgrade = f"gdsdeploy lock --upgrade {fleet} {explanation.subject or package.package}"
        reasons = newer.forbidden_by or (f"nothing forbids it; take it with: {upgrade}",)
        lines += [f"    - {reason}" for reason in reasons]
    return lines


def _passed_over(fleet: Path, lock: Lock) -> None:
    """Name newer versions that were not chosen, in one line per profile."""
    for name, target in lock.targets.items():
        if target.refused:
            newer = [f"{refused.what} [{refused.rule}]" for refused in target.refused]
            console.say(f"Passed over for profile {name}: {first_few(newer, _SHOWN)}")
    if any(target.refused for target in lock.targets.values()):
        console.say(f"Why: gdsdeploy lock --explain driver {fleet} (or kernel, nvidia-fs, libcufile, a package)")


def _show(changes: list[lockfile.Change]) -> None:
    for profile, own in itertools.groupby(changes, key=lambda change: change.profile):
        console.data(joined([f"profile {profile}:", *(f"  {change}" for change in own)]))


def _table(lock: Lock) -> str:
    """One line for each profile under a line of headings."""
    rows = [["profile", "system", "kernel", "driver", "nvidia-fs", "libcufile", "packages"]]
    for name, target in lock.targets.items():
        subjects = lockfile.subjects(target)
        size = f"{len(target.packages)} ({sum(package.size for package in target.packages) / 1e6:.0f} MB)"
        rows.append([name, *(subjects[key] for key in ("os", "kernel", "driver", "nvidia-fs", "libcufile")), size])
    return joined(aligned(rows))


@click.command()
@click.argument("lock", type=options.PATH)
@click.argument("directory", type=options.PATH)
@click.option("--key", metavar="FINGERPRINT", help="Your secret key to sign with; without it, your keys are listed.")
@click.option(
    "--keyring",
    "keyrings",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="Keys of the original indices.",
)
@click.option(
    "--fleet",
    type=options.FILE,
    metavar="FILE",
    help="LOCK's fleet file, which may name signers and credentials.  [default: fleet.yml beside LOCK, if it is there]",
)
@options.allow_file_repositories
@click.option("--no-dependencies", is_flag=True, help="Only the locked files, without the packages that they need.")
@click.option("--jobs", type=click.IntRange(1, 16), default=4, show_default=True, help="Downloads at a time.")
@options.as_json()
def mirror_lock(
    lock: Path,
    directory: Path,
    key: str | None,
    keyrings: tuple[Path, ...],
    fleet: Path | None,
    allow_file_repositories: bool,
    no_dependencies: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Write LOCK's files to DIRECTORY as a repository that hosts can use instead of the original ones.

    Every file is checked against the lock's sha256. The mirror includes the system packages that the locked packages
    need, so that provisioning from it needs no other network. gpg signs the indices with your key; hosts trust that
    key for this mirror only. A second run fetches only missing or damaged files. For locks of rpm systems,
    createrepo_c must be installed on this machine.

    If the fleet file names signers, LOCK must be signed, as for provision.

    \b
    Then serve DIRECTORY with any web server, or mount it on the hosts, and add to the fleet file:
      mirror: {uri: 'http://mirror.example/gds', keyring: DIRECTORY/gdsdeploy-mirror.gpg}

    \b
    Examples:
      gdsdeploy mirror gdsdeploy.lock /srv/gds                      # lists your signing keys
      gdsdeploy mirror gdsdeploy.lock /srv/gds --key 0123…CDEF
    """
    content, logins = _read(lock, fleet, allow_file_repositories=allow_file_repositories)
    fingerprint = writing.signing_key(key)
    within = None if allow_file_repositories else lock.parent
    with (
        writing.opened(directory) as folder,
        Fetcher(logins=logins, within=within) as indices,
        Fetcher(cache=folder.work, logins=logins, within=within) as files,
    ):
        result = mirror(
            content,
            folder,
            fingerprint,
            indices=indices,
            files=files,
            dependencies=not no_dependencies,
            keyrings=keyrings,
            jobs=jobs,
            step=console.step,
            progress=console.say,
        )
    if as_json:
        console.json({**asdict(result), "directory": str(result.directory), "keyring": str(result.keyring)})
        return
    for suite in result.suites:
        console.data(f"{suite.os} {suite.architecture}: {suite.stack} locked packages, {suite.system} that they need")
    console.data(f"{result.downloaded} files downloaded ({result.bytes / 1e6:.0f} MB), {result.present} present")
    console.say(f"Next, in the fleet file: mirror: {{uri: …, keyring: {result.directory / KEYRING}}}")


def _read(path: Path, fleet: Path | None, *, allow_file_repositories: bool) -> tuple[Lock, Logins | None]:
    """The lock, and the logins of its fleet file; raises LockInvalid, SignatureRefused, FleetInvalid."""
    beside = path.with_name(paths.DEFAULT_FLEET.name)
    if fleet is None and os.path.lexists(beside):
        fleet = beside
    if fleet is None:
        lock, logins = lockfile.read(path, links=False), None
    else:
        intent = load_fleet(fleet, replace(CONFINED, inventory="leave"))
        lock, logins = lockfile.read_signed(path, intent, fleet, links=False), credentials.of_fleet(intent, fleet)
    for index in (index for target in lock.targets.values() for index in target.indices):
        if not allow_file_repositories and is_folder_elsewhere(index.uri, paths.folder_of(path)):
            raise LockInvalid(
                f"{path}: the repository {index.repository} is a folder of this machine outside the lock's",
                hint="If you trust the lock, allow it for this run: --allow-file-repositories",
            )
    return lock, logins


commands = {"lock": lock_fleet, "mirror": mirror_lock}
