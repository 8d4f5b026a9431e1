"""``gdsdeploy cufile check``."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cufile.check import Report, check, judged_release, unreadable
from gdsdeploy.cufile.machine import content, this_machine
from gdsdeploy.cufile.model import EXAMINED_RELEASES, Release
from gdsdeploy.errors import CufileInvalid

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
def command(files: tuple[str, ...], version: str | None, on_this_machine: bool, as_json: bool) -> None:
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
    machine = this_machine() if on_this_machine else None
    severities: Counter[str] = Counter()
    bad = 0
    for file in files:
        try:
            report = check(content(file), release, machine)
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
    elif report.aborts:
        lines.append(f"{file}: {name} ends every process that reads it")
    else:
        lines.append(f"{file}: {name} refuses it: every cuFile call of every process fails")
    # A file may hold control characters.
    return "\n".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines)
