"""``gdsdeploy validate``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console, lockfile, selection
from gdsdeploy.load import load_fleet
from gdsdeploy.report import html as html_page
from gdsdeploy.report import json as json_object
from gdsdeploy.report import junit as junit_xml
from gdsdeploy.report import text
from gdsdeploy.validate import TIMEOUT, known_check, outcome, require_folder, validate, write

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("--limit", metavar="HOST[,HOST…]", help="Only these hosts; shell patterns work.")
@click.option("--check", "only", metavar="ID", multiple=True, help="Only this check; may be given more than once.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=TIMEOUT, show_default=True, help="Seconds for each host."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Also write JUnit XML, a suite per host.")
@click.option("--html", type=_FILE, metavar="FILE", help="Also write one self-contained HTML file.")
def command(
    fleet: Path,
    limit: str | None,
    only: tuple[str, ...],
    timeout: float,
    as_json: bool,
    junit: Path | None,
    html: Path | None,
) -> None:
    """Prove on each host of FLEET what its stack is and which path its storage takes.

    Every host is asked once, all at the same time, and nothing is changed on it. What it says is held against
    the lock: kernel, driver, nvidia-fs and its symbol versions, peermem, cufile.json, packages, and for each
    storage mount the path that its I/O takes and why. A check passes, fails, or could not tell.

    \b
    Exit code, the first of these that applies:
      30            a check failed on some host
      20, 21, 22    a host gave no evidence: unreachable, wrong host key, unfit
      31            a check could not tell
      0             every check passed on every host
    """
    intent = load_fleet(fleet)
    lock = lockfile.read(lockfile.beside(fleet))
    lockfile.require_fresh(intent, lock, fleet_file=fleet)
    names = selection.select(limit, list(intent.hosts), fleet)
    wanted = [known_check(name) for name in only]
    for file in (junit, html):
        require_folder(file)
    with console.step(f"Validating {', '.join(names)}"):
        found = validate(intent, lock, fleet, names, timeout=timeout, only=wanted, progress=console.say)
    if as_json:
        console.data(json_object.render(found).rstrip("\n"))
    else:
        console.table(text.fleet_table(found))
        console.data(text.details(found))
    for file, render in ((junit, junit_xml.render), (html, html_page.render)):
        if file is not None:
            write(file, render(found))
    error = outcome(found)
    if error is not None:
        raise error
