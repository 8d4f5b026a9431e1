"""``gdsdeploy watch``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import GdsError, Interrupted
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.io.wording import line
from gdsdeploy.model import hostnames
from gdsdeploy.report import model
from gdsdeploy.validate import watch


@click.command()
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
@click.option("--job", type=click.IntRange(min=1), metavar="ID", help="Only processes of this Slurm job.")
@options.timeout(watch.TIMEOUT, "Seconds for each host, beside those of --every.")
@options.at_once
@options.as_json("Print one line of JSON for each host and round.")
def command(
    targets: tuple[str, ...],
    fleet: Path,
    limit: str | None,
    once: bool,
    every: float,
    job: int | None,
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
        with console.step(f"Watching {hostnames.words(names)} for {every:g} s"):
            answers = round_of()
        _print(answers, as_json)
        failed = model.errors_alike({name: error for name, error in answers.items() if isinstance(error, GdsError)})
        if failed:
            raise failed[0]
        return
    _Rounds(round_of, as_json).run()


def _selected(targets: Sequence[str], fleet: Path, limit: str | None) -> tuple[Path, list[str], Any]:
    """The fleet file, the hosts, and the fleet; a single argument that is a file is the fleet file."""
    if not targets:
        intent = load_fleet(fleet)
        return fleet, selection.select(limit, list(intent.hosts), fleet), intent
    if len(targets) == 1 and (Path(targets[0]).is_file() or targets[0].endswith((".yml", ".yaml"))):
        fleet = Path(targets[0])
        intent = load_fleet(fleet)
        return fleet, selection.select(limit, list(intent.hosts), fleet), intent
    options.require(limit is None, "--limit goes with FLEET; HOST... already names the hosts")
    intent = load_fleet(fleet)
    return fleet, selection.select(",".join(targets), list(intent.hosts), fleet, option="HOST"), intent


def _print(answers: dict[str, dict[str, Any] | GdsError], as_json: bool) -> None:
    if not as_json:
        console.data("\n".join(map(line, watch.text(answers))))
        return
    for name, one in answers.items():
        outcome = {"error": one.message} if isinstance(one, GdsError) else one
        console.data(json.dumps({"host": name, **outcome}, sort_keys=True, ensure_ascii=False))


class _Rounds:
    """Rounds without an end: the last one stays on a terminal, each one is printed elsewhere."""

    def __init__(self, ask: Any, as_json: bool) -> None:
        self._ask, self._as_json = ask, as_json
        self._answers: dict[str, dict[str, Any] | GdsError] = {}

    def run(self) -> None:
        """Until Ctrl-C."""
        redraw = console.is_live() and not self._as_json
        try:
            with console.live(self._lines, self._beat, redraw=redraw, transient=True):
                while True:
                    begin = time.monotonic()
                    self._answers = self._ask()
                    if not redraw:
                        _print(self._answers, self._as_json)
                    # Hosts that fail at once aren't asked in a busy loop.
                    time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
        except (Interrupted, KeyboardInterrupt):
            if redraw and self._answers:
                _print(self._answers, as_json=False)

    def _lines(self, columns: int, rows: int) -> Sequence[str]:
        answers = self._answers
        if not answers:
            return ["waiting for the first answers; Ctrl-C ends it"]
        text = watch.text(answers, most=max(1, rows - 8))
        return [line(words)[:columns] for words in text[: max(1, rows - 2)]]

    def _beat(self) -> str:
        return ""
