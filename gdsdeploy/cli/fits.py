"""``gdsdeploy fits``: whether versions go together, without a fleet file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console, fits
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksFailed, ChecksUnknown
from gdsdeploy.host.model import compat

#: Columns of the text, at most.
WIDTH, NARROW = 100, 40


def _parts(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in map(fits.shown, reversed(fits.PARTS)):
        command = options.listed(f"--{name}", f"As {name}=…; a branch stands for its versions.", "VERSION[,…]")(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[SUBJECT=VERSION]...")
@_parts
@click.option("--here", is_flag=True, help="Judge what this machine runs; words replace parts of it.")
@click.option("--evidence", type=options.PATH, metavar="FILE", help="Judge what a host ran whose evidence was saved.")
@options.verbose
@options.as_json()
def command(
    words: tuple[str, ...],
    here: bool,
    evidence: Path | None,
    verbose: bool,
    as_json: bool,
    **lists: str | None,
) -> None:
    """Tell whether versions of driver, kernel, nvidia-fs and libcufile go together, and which ones do.

    It needs no fleet file, no network and no root. Each word is SUBJECT=VERSION; lists with commas, branches such as
    driver=580, and `all` make a table. Other subjects are those of compat.yml: driver-origin=debian, mode=p2pdma,
    gpu=hopper, flavour=proprietary. What isn't given isn't judged, or is assumed where the output says so.

    \b
    Exit code, the first of these that applies; of several sets, the best one counts:
      0    the set fits, maybe with warnings
      31   no source tells whether a pair of it goes together
      30   a rule refuses it

    \b
    Examples:
      gdsdeploy fits driver=580.126.09 kernel=6.19.2 nvidia-fs=2.28.4 libcufile=1.20
      gdsdeploy fits driver=580.126.09 kernel=6.8.0-90-generic
      gdsdeploy fits --driver all --kernel 6.17
      gdsdeploy fits --driver 570,580 --kernel 6.12,6.17,7.0 nvidia-fs=2.28.4
      gdsdeploy fits --here                          # what this machine runs
      gdsdeploy fits --here kernel=6.19.2            # the same with another kernel
      gdsdeploy fits --evidence gpu1.json --driver all
      gdsdeploy fits driver=580.126.09 kernel=6.19.2 --json | jq -r '.sets[].verdict'
    """
    options.require(not (here and evidence), "--here does not go with --evidence")
    host = here or evidence is not None
    asked = [*words, *(f"{name}={lists[name]}" for name in fits.PARTS if lists[name] is not None)]
    options.require(host or bool(asked), f"name what should go together, or --here.\n{fits.EXAMPLES}")
    choices = fits.read(asked, alone=not host)
    judge = fits.Judge(_host(evidence) if host else None)
    sets = judge.all(choices)
    if as_json:
        console.json(fits.document(sets, choices, judge))
    else:
        width = max(NARROW, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
        console.data(fits.render(sets, choices, judge, width, verbose=verbose))
    kinds = {judged.kind for judged in sets}
    if not kinds & {compat.FITS, compat.WARNED}:
        error = ChecksUnknown if compat.UNKNOWN in kinds else ChecksFailed
        raise error(fits.why(sets))


def _host(evidence: Path | None) -> fits.Host:
    from gdsdeploy.ssh import reply_schema
    from gdsdeploy.validate.facts import facts_of_this_machine

    if evidence is not None:
        facts = reply_schema.saved_facts_of_host(evidence, "")
    else:
        with console.step("Examining this machine"):
            facts = facts_of_this_machine("")
    with reply_schema.unexpected_errors("this host"):
        return fits.host_of(facts)
