"""``gdsdeploy watch``, ``topology``, and ``prometheus``: what is needed for the series of the hosts' gates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console, resources
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, GdsError, Interrupted
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.host.facts.document import UNNAMED
from gdsdeploy.host.io import streams
from gdsdeploy.host.io.wording import joined, line
from gdsdeploy.host.subjects import trees as view
from gdsdeploy.host.subjects.processes import JOB_NAME
from gdsdeploy.host.subjects.topology import Topology
from gdsdeploy.model import hostnames
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report import model
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate import watch
from gdsdeploy.validate.facts import ask_facts, golden_differences, require_topology, write_golden


def _is_fleet(targets: Sequence[str]) -> bool:
    return len(targets) == 1 and (Path(targets[0]).is_file() or targets[0].endswith((".yml", ".yaml")))


def _job(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """As Slurm writes it; raises BadParameter."""
    if text is None or JOB_NAME.fullmatch(text):
        return text
    raise click.BadParameter(f"{text!r} isn't a Slurm job, such as 12, 12_3 (of an array) or 12+1 (a part)")


@click.command()
@options.combined(
    options.without("FLEET", "--fleet", holds=lambda given: _is_fleet(given.get("TARGETS", ()))),
    options.without("HOST", "--limit", holds=lambda given: "TARGETS" in given and not _is_fleet(given["TARGETS"])),
)
@click.argument("targets", nargs=-1, metavar="[HOST... | FLEET]", shell_complete=options.complete_host_or_file)
@options.fleet_of_host
@options.limit
@click.option("--once", is_flag=True, help="End after one round.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="N",
    help="Seconds in which each round counts.",
)
@click.option("--job", metavar="ID", callback=_job, help="Only processes of this Slurm job: 12, 12_3 or 12+1.")
@options.timeout(watch.TIMEOUT, "Seconds for each host, beside those of --every.")
@options.at_once
@options.as_json("Print one line of JSON for each host and round.")
def watch_hosts(
    targets: tuple[str, ...],
    fleet: Path,
    limit: str | None,
    once: bool,
    every: float,
    job: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Show which processes on hosts do I/O through cuFile now, and whether it takes a direct path.

    For each process: its bytes per second through CPU memory (bounced), read and written; the path; its unit, job, pod
    or container; the libcufile that it has really loaded; its GPU and files. Those that bounce most come first. A path
    is what the process itself has counted in this round, or, with "before", since it opened cuFile. "not counted" has
    a reason, and what to do about it.

    The counters need `profile.cufile_stats: 3` in the cufile.json of the process when it starts: docs/watch.md. Nothing
    on the hosts changes, and no process is touched. Ctrl-C ends it.

    \b
    Exit code, the first of these that applies:
      20, 21, 22    --once: a host did not answer
      0             otherwise

    \b
    Examples:
      gdsdeploy watch fleet.yml
      gdsdeploy watch gpu1 gpu2 --every 10
      gdsdeploy watch fleet.yml --limit 'gpu[1-8]' --once
      gdsdeploy watch fleet.yml --limit 'gpu[1-8]' --job 1234
      gdsdeploy watch gpu1 --once --json | jq '.processes[] | select(.path != "nvidia-fs") | [.pid, .path, .reason]'
    """
    fleet, names, intent = _selected(targets, fleet, limit)

    def round_of() -> dict[str, dict[str, Any] | GdsError]:
        return watch.look(intent, fleet, names, every=every, job=job, timeout=timeout)

    if once:
        with console.step(f"Watching {hostnames.words(names)} for {every:g} s") as step:
            answers = round_of()
            step.failure = model.failures_in(answers)
        _print_round(answers, as_json, errors=False)
        options.raise_last({name: error for name, error in answers.items() if isinstance(error, GdsError)}, fleet)
        return
    _watch_on(round_of, as_json)


def _selected(targets: Sequence[str], fleet: Path, limit: str | None) -> tuple[Path, list[str], Any]:
    """The fleet file, the hosts, and the fleet; a single argument that is a file is the fleet file."""
    if not targets or _is_fleet(targets):
        fleet = Path(targets[0]) if targets else fleet
        intent = load_fleet(fleet, TRUSTED)
        return fleet, selection.select(limit, list(intent.hosts), fleet), intent
    intent = load_fleet(fleet, TRUSTED)
    return fleet, selection.select(",".join(targets), list(intent.hosts), fleet, option="HOST"), intent


def _print_round(answers: dict[str, dict[str, Any] | GdsError], as_json: bool, *, errors: bool = True) -> None:
    if not as_json:
        console.data(joined(watch.text(answers, errors=errors)))
        return
    for name, one in answers.items():
        outcome = {"error": one.message} if isinstance(one, GdsError) else one
        console.data(json.dumps({"host": name, **outcome}, sort_keys=True, ensure_ascii=False))


def _watch_on(round_of: Callable[[], dict[str, dict[str, Any] | GdsError]], as_json: bool) -> None:
    """Rounds until Ctrl-C, or until nothing reads them: the last one stays on a terminal, each is printed elsewhere."""
    answers: dict[str, dict[str, Any] | GdsError] = {}
    redraw = console.is_live() and not as_json

    def lines(columns: int, rows: int) -> Sequence[str]:
        if not answers:
            return ["waiting for the first answers; Ctrl-C ends it"]
        text = watch.text(answers, most=max(1, rows - 8))
        return [line(words)[:columns] for words in text[: max(1, rows - 2)]]

    try:
        with console.live(lines, lambda: "", redraw=redraw, transient=True):
            while not streams.lost():
                begin = time.monotonic()
                answers = round_of()
                if not redraw:
                    _print_round(answers, as_json)
                # Hosts that fail at once aren't asked in a busy loop.
                time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
    except (Interrupted, KeyboardInterrupt):
        if redraw and answers:
            _print_round(answers, as_json=False)


@click.command()
@options.combined(
    options.alone("--evidence", "--json"), options.alone("--golden write", "--limit", "--timeout", "--connections")
)
@options.fleet_argument(alone="file")
@options.limit
@options.saved_evidence
@click.option(
    "--golden",
    type=click.Choice(["write", "check"]),
    help="Write each profile's golden topology from its hosts, or compare the hosts with it.",
)
@options.timeout(TIMEOUT)
@options.at_once
@options.as_json("Print one JSON object, by host.")
def topology(
    fleet: Path | None, limit: str | None, file: Path | None, golden: str | None, timeout: float, as_json: bool
) -> None:
    """Show the distances between GPUs, NVMe disks and network adapters on the hosts of FLEET.

    It reads only sysfs, so it also works before a driver is installed. The distances are those of `nvidia-smi topo
    -m`: PIX, PXB, PHB, NODE, SYS. It also shows links that are slower or narrower than both ends allow, access control
    (ACS) that sends peers' traffic out of a switch, the IOMMU's mode, and BAR1.

    A profile may name a file with the golden topology of its machines (`topology: {golden: FILE}`). --golden write
    makes it from a correct host. --golden check and `gdsdeploy validate` show what has moved since: slot, part, link,
    distance.

    \b
    Exit code, the first of these that applies:
      20, 21, 22    a host did not answer
      30            --golden check: a host differs
      31            --golden check: no profile of the hosts names a golden topology
      0             otherwise

    \b
    Examples:
      gdsdeploy topology fleet.yml --limit gpu1
      gdsdeploy topology fleet.yml --json | jq '.gpu1.pairs[] | select(.distance == "PIX")'
      gdsdeploy topology --evidence gpu1.json
      gdsdeploy topology fleet.yml --limit gpu1 --golden write
      gdsdeploy topology fleet.yml --golden check
    """
    if file is not None:
        options.require(fleet is None, f"{fleet} is not expected beside --evidence FILE")
        saved = reply_schema.saved_facts(file)
        shapes = {
            name: require_topology(f"{file}: {name}" if name else str(file), facts) for name, facts in saved.items()
        }
        for error in _show(shapes, as_json, alone=UNNAMED in shapes).values():
            raise error
        return
    assert fleet is not None, "without saved evidence, it has a default"
    intent = load_fleet(fleet, TRUSTED)
    names = selection.select(limit, list(intent.hosts), fleet)
    facts = ask_facts(intent, fleet, names, timeout=timeout)
    shapes, errors = reply_schema.judge_each(facts, require_topology)
    if golden == "write":
        options.raise_last(errors, fleet)
        written, unwritten = write_golden(intent, fleet, shapes)
        for path, hosts in written.items():
            console.say(f"{path}: the topology of {hostnames.words(hosts)}")
        options.end_with([*unwritten.values()])
    elif golden == "check":
        _check(intent, shapes, as_json, errors)
    else:
        errors |= _show(shapes, as_json)
    options.raise_last(errors, fleet)


def _show(shapes: dict[str, Topology], as_json: bool, *, alone: bool = False) -> dict[str, GdsError]:
    """Print the topologies; returns the errors of hosts whose topology cannot be shown."""
    views, errors = reply_schema.judge_each(
        shapes, lambda _, shape: view.document(shape) if as_json else view.text(shape)
    )
    if as_json:
        console.json(next(iter(views.values()), None) if alone else views)
        return errors
    for text, names in hostnames.grouped((name, str(text)) for name, text in views.items()).items():
        console.data((f"{model.on(names)}:\n" if not alone else "") + text)
    return errors


def _check(fleet: Fleet, shapes: dict[str, Topology], as_json: bool, errors: Mapping[str, GdsError]) -> None:
    differences = {name: golden_differences(fleet, name, shape) for name, shape in shapes.items()}
    if as_json:
        console.json(differences)
    else:
        words: dict[tuple[str, ...] | None, tuple[str, ...]] = {
            None: ("its profile names no golden topology",),
            (): ("matches",),
        }
        each = ((name, None if lines is None else tuple(lines)) for name, lines in differences.items())
        for key, hosts in hostnames.grouped(each).items():
            console.data(joined(f"{hostnames.words(hosts)}: {line}" for line in words.get(key) or key or ()))
    if not errors and differences and all(lines is None for lines in differences.values()):
        hint = "Name one in a profile (topology: {golden: FILE}), and write it: gdsdeploy topology FLEET --golden write"
        raise ChecksUnknown("no profile of these hosts names a golden topology", hint=hint)
    moved = [name for name, lines in differences.items() if lines]
    if moved and not errors:
        raise ChecksFailed(
            f"the topology has moved on {hostnames.words(moved)}",
            hint="Restore the old topology, or write the golden topology again: --golden write",
        )


@click.group(cls=Verbs)
def prometheus() -> None:
    """Print files for a monitoring system that reads the series of the hosts' gates.

    docs/prometheus.md lists the series.
    """


@prometheus.command()
def alerts() -> None:
    """Print alert rules for Prometheus.

    \b
    Example:
      gdsdeploy prometheus alerts > /etc/prometheus/rules/gdsdeploy.yml
    """
    _print_template("alerts.yml")


@prometheus.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON.

    \b
    Example:
      gdsdeploy prometheus dashboard > gdsdeploy.json
    """
    _print_template("dashboard.json")


def _print_template(name: str) -> None:
    console.data((resources.templates() / "prometheus" / name).read_text(encoding="utf-8").rstrip("\n"))


commands = {"watch": watch_hosts, "topology": topology, "prometheus": prometheus}
