"""``gdsdeploy validate``, ``diff`` of two reports, and ``support-bundle`` of what a report is made of."""

from __future__ import annotations

import datetime as dt
import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import FleetInvalid, GdsError, ReportsDiffer
from gdsdeploy.host.io import reading
from gdsdeploy.host.rootdir import open_file
from gdsdeploy.model.hostnames import words
from gdsdeploy.ssh.endpoint import TIMEOUT

# What a run needs is imported by the functions that need it, so that --help and a mistake in the options are quick.
if TYPE_CHECKING:
    from gdsdeploy.host.model.finding import Waiver
    from gdsdeploy.model.fleet import Fleet
    from gdsdeploy.model.lock import Lock
    from gdsdeploy.report.model import Report
    from gdsdeploy.validate.fleet_validation import ValidateOptions


#: Of its options, those that say what is judged and what is printed.
_JUDGING = ("--check", "--waive", "--until", "--reason", "--verbose", "--json", "--junit", "--html", "--metrics")


@click.command(context_settings={"ignore_unknown_options": False})
@options.combined(
    options.alone("--pytest", "--limit", "--timeout", "--connections", hint="; pytest has -k and --junitxml"),
    options.alone("--evidence", *_JUDGING),
    options.alone("--since-boot", "--limit", "--timeout", "--connections", *_JUDGING),
    options.needs("--waive", "--until", "--reason"),
)
@options.fleet_argument(before="pytest_args", alone="source")
@click.argument("pytest_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- PYTEST_ARGS…]")
@options.limit
@click.option(
    "--check",
    "only",
    metavar="ID",
    multiple=True,
    shell_complete=options.complete_checks,
    help="Only this check; repeatable.",
)
@click.option("--load", is_flag=True, help="Also read under load, for some seconds, from mounts that have a threshold.")
@click.option("--fresh", is_flag=True, help="Open libcufile even if its kept answer still holds.")
@click.option("--since-boot", is_flag=True, help="Show the results of each host's gate in the current boot.")
@click.option(
    "--waive",
    metavar="ID",
    multiple=True,
    shell_complete=options.complete_checks,
    help="Accept that this check fails; needs --until and --reason.",
)
@click.option("--until", metavar="DATE", help="The last day of --waive, YYYY-MM-DD in UTC.")
@click.option("--reason", metavar="TEXT", help="Why --waive is given; the report shows it.")
@click.option("--evidence", "--from", "source", type=options.PATH, metavar="BUNDLE", help="Judge a support bundle.")
@options.verbose
@click.option("--pytest", "as_pytest", is_flag=True, help="Run the checks as a testinfra suite.")
@options.timeout(TIMEOUT)
@options.at_once
@options.as_json()
@click.option("--junit", type=options.FILE, metavar="FILE", help="Also write JUnit XML, a suite per host.")
@click.option("--html", "page", type=options.FILE, metavar="FILE", help="Also write one self-contained HTML file.")
@click.option("--metrics", type=options.FILE, metavar="FILE", help="Also write metrics in Prometheus' text format.")
def validate(
    fleet: Path | None,
    pytest_args: tuple[str, ...],
    limit: str | None,
    only: tuple[str, ...],
    load: bool,
    fresh: bool,
    since_boot: bool,
    waive: tuple[str, ...],
    until: str | None,
    reason: str | None,
    source: Path | None,
    verbose: bool,
    as_pytest: bool,
    timeout: float,
    as_json: bool,
    junit: Path | None,
    page: Path | None,
    metrics: Path | None,
) -> None:
    """Prove on each host of FLEET what its stack is and which path its storage takes.

    All hosts are asked at the same time and stay unchanged. Their evidence is compared with the lock: kernel,
    driver, nvidia-fs and its symbol versions, peermem, cufile.json, packages, and for each storage mount the path
    of its I/O and why. A check passes, fails, is inconclusive, is waived, or is not applicable to the host.

    \b
    Exit code, the first of these that applies:
      30            a check failed on a host
      10            two names of the fleet are one machine
      20, 21, 22    a host gave no evidence: unreachable, wrong host key, unfit
      31            a check is inconclusive, or no check examined anything
      0             every check that is applicable passed, or is waived, on every host

    \b
    Examples:
      gdsdeploy validate fleet.yml --limit 'gpu*' --junit gpus.xml
      gdsdeploy validate fleet.yml --since-boot
      gdsdeploy validate fleet.yml --load
      gdsdeploy validate fleet.yml --waive boot.autoload --until 2026-12-31 --reason 'CHG-4711'
      gdsdeploy validate --evidence case-4711.tar.gz
      gdsdeploy validate fleet.yml --pytest -- --junitxml=gpus.xml -k storage
    """
    options.require((fleet is None) != (source is None), "name a fleet file, or a support bundle with --evidence")
    if pytest_args and not as_pytest:
        raise click.UsageError(f"unexpected argument {pytest_args[0]!r}; arguments for pytest need --pytest")
    waivers = _waivers(waive, until, reason)
    from gdsdeploy.files.output import require_folder, write_each
    from gdsdeploy.report import formats, html
    from gdsdeploy.validate import fleet_validation

    checks = [fleet_validation.require_check(name) for name in only]
    request = fleet_validation.ValidateOptions(checks, waivers, load=load, fresh=fresh)
    # Before a host is asked.
    for file in (junit, page, metrics):
        require_folder(file)
    if source is not None:
        report = _judge_bundle(source, request)
    else:
        assert fleet is not None
        intent, lock, names = _locked(fleet, limit)
        say = console.say_each(len(names))
        with console.step(f"Validating {words(names)}") as step:
            report = fleet_validation.validate(
                *(intent, lock, fleet, names), timeout=timeout, options=request, since_boot=since_boot, progress=say
            )
            step.failure = _failure(report)
        if as_pytest:
            from gdsdeploy.validate import pytest_suite

            pytest_suite.run_suite(report, intent, fleet, pytest_args, line=console.data)
            return
    # First, because a reader of the words may go before their end.
    unwritten = write_each(
        [
            (junit, lambda: formats.junit_xml(report)),
            (page, lambda: html.stream(report)),
            (metrics, lambda: formats.metrics(report)),
        ]
    ).values()
    _show(report, as_json=as_json, verbose=verbose)
    options.end_with([*unwritten, fleet_validation.outcome(report)])


def _judge_bundle(source: Path, request: ValidateOptions) -> Report:
    from gdsdeploy.validate.support_bundle import judge, read

    saved = read(source)
    with console.step(f"Judging the evidence from {words(saved.hosts)} of {saved.when}") as step:
        report = judge(saved, request, fleet=str(source), progress=console.say_each(len(saved.hosts)))
        step.failure = _failure(report)
    return report


def _failure(report: Report) -> str:
    """How a step ends whose report isn't one of success: ``2 of 3 hosts pass, 1 FAIL``."""
    from gdsdeploy.report import model
    from gdsdeploy.validate import fleet_validation

    return model.outcome(report) if fleet_validation.outcome(report) is not None else ""


def _show(report: Report, *, as_json: bool, verbose: bool) -> None:
    from gdsdeploy.report import formats, model

    if as_json:
        console.stream(formats.json_pieces(report))
        return
    console.data(f"{model.sentence(report)}\n")
    console.table(formats.fleet_table(report, verbose=verbose))
    if details := formats.details(report, verbose=verbose):
        console.data(f"\n{details}")


def _locked(fleet: Path, limit: str | None) -> tuple[Fleet, Lock, list[str]]:
    """The fleet, its lock, and the hosts of ``limit``."""
    from gdsdeploy.fleetfile import selection
    from gdsdeploy.fleetfile.load import TRUSTED
    from gdsdeploy.lock import lockfile

    intent, lock = lockfile.fleet_and_lock(fleet, TRUSTED, signed=False)
    return intent, lock, selection.select(limit, list(intent.hosts), fleet)


def _waivers(checks: tuple[str, ...], until: str | None, reason: str | None) -> list[Waiver]:
    if not checks:
        return []
    if not until or not (reason or "").strip():
        raise click.UsageError("--waive needs --until and --reason")
    try:
        day = dt.date.fromisoformat(until)
    except ValueError:
        raise FleetInvalid(f"--until: {until!r} isn't a date", hint="Write it as 2026-12-31") from None
    from gdsdeploy.host.model.finding import Waiver
    from gdsdeploy.validate.fleet_validation import require_check

    return [Waiver(require_check(name, "--waive"), day.isoformat(), str(reason)) for name in checks]


@click.command()
@click.argument("before", type=options.PATH)
@click.argument("after", type=options.PATH)
@options.as_json()
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Show what changed between two runs of validate, from the JSON of each.

    Changes are: added and removed hosts, verdicts of hosts and checks, parts of the stack, the lock, and a new reason
    for a check that doesn't pass. A run's time, duration and boot don't count; hosts that rebooted are listed.

    \b
    Exit code:
      33    there are changes
      0     there are no changes

    \b
    Examples:
      gdsdeploy validate fleet.yml --json > before.json
      gdsdeploy diff before.json after.json
      gdsdeploy diff before.json after.json --json | jq -r '.changes[] | [.host, .what] | @tsv'
    """
    from gdsdeploy.report import formats

    comparison = formats.compare(_read(before), _read(after))
    console.data(formats.changes_json(comparison) if as_json else formats.changes_text(comparison))
    if comparison.changes:
        raise ReportsDiffer("")


def _read(path: Path) -> dict[str, Any]:
    from gdsdeploy.report import formats

    try:
        with io.TextIOWrapper(open_file(str(path)), encoding="utf-8") as file:
            return formats.report_from(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise GdsError(f"{path}: cannot be read: {reason}", hint=reading.look(str(path))) from None
    except ValueError as error:
        raise GdsError(
            f"{path}: {error}", hint=f"Write it again: gdsdeploy validate fleet.yml --json > {shlex.quote(str(path))}"
        ) from None


@click.command("support-bundle")
@options.fleet
@options.output("The file to write (.tar.gz).", "-o", required=True)
@options.limit
@click.option("--hide-names", is_flag=True, help="Also replace the hosts' names.")
@options.timeout(TIMEOUT)
@options.at_once
def support_bundle(fleet: Path, output: Path, limit: str | None, hide_names: bool, timeout: float) -> None:
    """Pack evidence from the hosts of FLEET into one file that you can give to others.

    Each host is asked as by validate, and stays unchanged. The file holds that evidence, the expected state and the
    verdicts, fleet file and lock, the end of the fleet's last log of provision and of each host's audit trail.

    The fleet file loses its comments, and its webhooks, token files, commands, signing keys and SSH logins, addresses
    and files are masked. Everywhere, addresses of networks and devices, DNS domains of the hosts, UUIDs, serial
    numbers, login names, mail addresses and apparent secrets are replaced; with --hide-names also the hosts' names. The
    file and this command count the replacements. Patterns don't find every secret: read the file before you share it.
    Only you can read the file.

    For a host that can't be asked, the file has the reason.

    \b
    Examples:
      gdsdeploy support-bundle fleet.yml -o case-4711.tar.gz --limit gpu7
      gdsdeploy validate --evidence case-4711.tar.gz
    """
    from gdsdeploy.files.output import require_folder, write
    from gdsdeploy.validate.support_bundle import pack_fleet

    intent, lock, names = _locked(fleet, limit)
    require_folder(output)
    with console.step(f"Asking {words(names)}") as step:
        data, replaced = pack_fleet(
            *(intent, lock, fleet, names),
            hide_names=hide_names, timeout=timeout, progress=console.say_each(len(names)), step=step,
        )  # fmt: skip
    write(output, data, mode=0o600)
    console.say(f"Replaced: {', '.join(f'{number} {kind}' for kind, number in replaced.items()) or 'nothing'}")
    console.data(str(output))


commands = {"validate": validate, "diff": diff, "support-bundle": support_bundle}
