"""``gdsdeploy cufile check`` and ``render``."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs, below
from gdsdeploy.cufile.check import MachineFacts, Report, check, file_content, judged_release, look, p2pdma, unreadable
from gdsdeploy.cufile.model import EXAMINED_RELEASES, Release
from gdsdeploy.cufile.render import PATH, FitTarget, Variant, render_profile
from gdsdeploy.errors import CufileInvalid, GdsError, HostUnfit, translated
from gdsdeploy.host.facts import UndecidedError
from gdsdeploy.host.io.wording import joined

#: Verb → what it does, in the order of use.
VERBS = {
    "render": "Make a host's cufile.json from the fleet, its lock and the host's facts",
    "check": "Report every problem of a cufile.json, and how a release of libcufile would treat it",
}


@click.group(cls=Verbs, verbs=below("gdsdeploy.cli", VERBS, {}, "cufile"))
def command() -> None:
    """Work with cufile.json, for each release of libcufile from 1.4 to 1.20.

    The library silently ignores a misspelt key, and one bad value makes it refuse every cuFile call of every process.
    docs/cufile.md describes these verbs.
    """


RELEASES = ", ".join(f"{major}.{minor}" for major, minor in EXAMINED_RELEASES)


def release_for(option: str, version: str | None) -> Release:
    """The release to judge by; warns when it isn't the one that ``version`` names."""
    if version is None:
        raise click.UsageError(f"{option} is missing: which libcufile is the file for? Known releases: {RELEASES}")
    try:
        release, instead = judged_release(version)
    except ValueError as reason:
        raise click.BadParameter(f"{reason}. Known releases: {RELEASES}", param_hint=option) from None
    if instead:
        console.warn(instead)
    return release


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--libcufile", "version", metavar="VERSION", help="Version of libcufile, such as 1.20 or 1.9.1.3.")
@click.option(
    "--here",
    "on_this_machine",
    is_flag=True,
    help="The files are for this machine: also check their paths and its kernel.",
)
@options.as_json("Print one JSON object per file, each on one line.")
def check_files(files: tuple[str, ...], version: str | None, on_this_machine: bool, as_json: bool) -> None:
    """Report every problem of each cufile.json, and how that release of libcufile would treat it.

    FILE - is standard input. VERSION may be longer than a release (1.9.1.3). An unmeasured release is judged as the
    nearest older one. Each line reads file:line:column: severity: message [id]; docs/cufile.md explains every id.

    \b
    Examples:
      gdsdeploy cufile check /etc/cufile.json --libcufile 1.15.1.6 --here
      gdsdeploy cufile check site/*.json --libcufile 1.20 --json | jq 'select(.accepted | not)'

    Exit code: 16 if a file has an error, otherwise 0; warnings don't count.
    """
    release = release_for("--libcufile", version)
    machine = MachineFacts(look, p2pdma()) if on_this_machine else None
    severities: Counter[str] = Counter()
    bad = 0
    for file in files:
        try:
            report = check(file_content(file), release, machine)
        except OSError as reason:
            report = unreadable(release, f"cannot be read: {reason.strerror or reason}")
        bad += bool(report.errors)
        severities.update(finding.severity for finding in report.findings)
        console.data(_line(file, report) if as_json else _text("<stdin>" if file == "-" else file, report))
    if bad:
        some = f"{bad} of {len(files)} files {'has' if bad == 1 else 'have'}" if len(files) > 1 else "the file has"
        count = f"{severities['error']} error{'s' if severities['error'] != 1 else ''}"
        raise CufileInvalid(f"{some} {count}", hint="docs/cufile.md explains each [id] and what to do")


def _line(file: str, report: Report) -> str:
    release = f"{report.release[0]}.{report.release[1]}"
    findings = [asdict(finding) for finding in report.findings]
    return json.dumps({"file": file, "libcufile": release, "accepted": report.accepted, "findings": findings})


#: Whether the library ends the process at a key → what it does.
_EFFECTS = {False: "refuses it: every cuFile call of every process fails", True: "ends every process that reads it"}


def _text(file: str, report: Report) -> str:
    name = f"libcufile {report.release[0]}.{report.release[1]}"
    lines = []
    for finding in report.findings:
        place = f"{file}:{finding.line}:{finding.column}: {finding.severity}"
        about = f"{finding.key}: " if finding.key else ""
        lines += [f"{place}: {about}{finding.message} [{finding.id}]", f"    {finding.hint}"]
    if report.accepted is None:
        lines.append(f"{file}: not judged")
    elif report.accepted:
        lines.append(f"{file}: {name} accepts it")
    else:
        # Which of several keys it reads first isn't known.
        effects = sorted({stop.aborts for stop in report.stops or ()})
        lines.append(f"{file}: {name} {', or '.join(_EFFECTS[aborts] for aborts in effects)}")
    return joined(lines)


@click.command()
@options.fleet_argument(before="host")
@click.argument("host", metavar="HOST", required=False, shell_complete=options.complete_hosts)
@click.option(
    "--evidence", "--facts", type=options.PATH, metavar="FILE", help="Read evidence saved on HOST; HOST is not asked."
)
@click.option(
    "--variant",
    type=click.Choice(get_args(Variant)),
    default="host",
    show_default=True,
    help="For /etc/cufile.json, or for CUFILE_ENV_PATH_JSON in a container or of one user.",
)
@click.option("--diff", is_flag=True, help=f"Print a diff from {PATH} on HOST instead of the whole file.")
@options.output("Write the file there.")
@options.run_inventory
@options.as_json("Print one JSON object: the text, its values and their sources.")
def render(
    fleet: Path,
    host: str,
    evidence: Path | None,
    variant: str,
    diff: bool,
    output: Path | None,
    run_inventory: bool,
    as_json: bool,
) -> None:
    """Make HOST's cufile.json from FLEET and its lock, as provision does. HOST stays unchanged.

    If the profile has `fit` (docs/fleet.md), HOST is asked for its RDMA interfaces, memory, GPUs and the paths of its
    mounts. With --diff, it is also asked for its file.

    \b
    Examples:
      gdsdeploy cufile render fleet.yml gpu1
      gdsdeploy cufile render fleet.yml gpu1 --diff
      gdsdeploy cufile render fleet.yml gpu1 --evidence gpu1.json --variant container --output image/cufile.json
    """
    # What asks a host is imported where a host is asked, or its lock is read: check does neither.
    from gdsdeploy.converge import plan_fleet
    from gdsdeploy.fleetfile.load import confined
    from gdsdeploy.fleetfile.selection import require_host
    from gdsdeploy.lock import lockfile

    intent, lock = lockfile.fleet_and_lock(fleet, confined(run_inventory=run_inventory), signed=False)
    require_host(host, intent.hosts, fleet)
    profile = intent.profiles[intent.hosts[host].profile]
    facts: FitTarget | None = None
    if evidence is not None:
        facts = plan_fleet.facts_from_file(host, evidence)
    elif profile.fit or diff:
        with console.step(f"Asking {host}"):
            answer = plan_fleet.facts_to_fit(intent, lock, fleet, [host])[host]
        if isinstance(answer, GdsError):
            raise answer
        facts = answer
    version = lock.targets[intent.hosts[host].profile].libcufile.version
    result = render_profile(intent.hosts[host].profile, profile, version, facts, variant=cast("Variant", variant))
    for note in result.notes:
        console.warn(note)
    changes = "".join(_differences(facts, result.text)) if diff and facts else None
    if output is not None:
        _write(output, result.text)
    if as_json:
        value = {key: getattr(result, key) for key in ("text", "document", "sources", "notes")}
        difference = {} if changes is None else {"diff": changes}
        console.json({"host": host, "libcufile": version, **value, **difference})
    elif changes is not None:
        console.data(changes.rstrip("\n")) if changes else console.say(f"{PATH} on {host} matches")
    elif output is None:
        console.file(result.text.rstrip("\n"))


def _differences(host: FitTarget, text: str) -> Iterator[str]:
    """A unified diff from the host's file; raises HostUnfit if that could not be read."""
    with translated(UndecidedError, lambda error: HostUnfit(f"{host.name}: {PATH} could not be read: {error}")):
        content = host.facts.document.text(PATH)
    before = (content or "").splitlines(keepends=True)
    return difflib.unified_diff(before, text.splitlines(keepends=True), f"{host.name}:{PATH}", "rendered")


def _write(file: Path, text: str) -> None:
    """Replace ``file`` in one step; raises GdsError."""
    if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
        console.say(f"{file} matches")
        return
    from gdsdeploy.files.output import write

    write(file, text)
    console.say(f"Wrote {file}")


commands = {"render": render, "check": check_files}
