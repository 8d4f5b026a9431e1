"""``gdsdeploy gdscheck``: the output of NVIDIA's gdscheck as data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import ChecksFailed, ChecksUnknown
from gdsdeploy.host.gdscheck import UNKNOWN, document, runs
from gdsdeploy.host.gdscheck.report import DIRECT
from gdsdeploy.host.io import reading

STDIN = "-"


@click.group(cls=Verbs)
def command() -> None:
    """Parse the output of NVIDIA's gdscheck.

    gdscheck succeeds even if every I/O is in compat mode, and its format changed between releases. On a host without
    gdscheck, `gdsdeploy-host.pyz gdscheck` makes the same report from libcufile alone.
    """


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--exit-status",
    type=click.IntRange(-255, 255),
    metavar="N",
    help="gdscheck's exit status, if FILE doesn't end in a line like rc=255. It doesn't change the verdict.",
)
@click.option(
    "--require", type=click.Choice([DIRECT]), help="Fail unless every FILE has this verdict, for use as a gate."
)
@options.as_json("Print one JSON object per file, each on one line.")
def parse(files: tuple[Path, ...], exit_status: int | None, require: str | None, as_json: bool) -> None:
    """Parse the output of `gdscheck -p`, or a cufile.log, of libcufile 1.4 to 1.20.

    Each FILE is one recording; without FILE, or with -, it is standard input. If a file has several runs, the last one
    counts, and the output says so. Only a cufile.log of logging.level INFO, DEBUG or TRACE has the rows; for any other
    log, use `gdsdeploy explain --log`.

    \b
    The verdict follows from the rows, never from the exit status or from "Platform verification succeeded":
      direct     a storage type has a direct path, and a GPU supports it
      compat     the report is complete, and no I/O takes a direct path
      broken     the report claims a direct path that its own versions rule out
      refused    the library gave up; the reason is shown
      errors     a log without a report: calls failed, and the library didn't give up
      unknown    the text is cut, mixed, or not gdscheck's

    \b
    Exit code:
      31   the verdict on a FILE is unknown
      30   --require: a FILE has another verdict
      0    every FILE has another verdict

    \b
    Examples:
      gdscheck -p 2>&1 | gdsdeploy gdscheck parse
      gdscheck -p 2>&1 | gdsdeploy gdscheck parse -q --require direct || drain-this-node
      gdsdeploy gdscheck parse --json gpu1.txt gpu2.txt | jq -r '[.file, .verdict] | @tsv'
      gdsdeploy gdscheck parse /var/log/cufile.log
    """
    unknown: list[str] = []
    others: list[str] = []
    for file in files or (Path(STDIN),):
        name = str(file)
        recording = runs.read(_bytes(file), exit_status)
        verdict = recording.report.verdict
        unknown += [name] * (verdict == UNKNOWN)
        others += [f"{name}: {verdict}"] * (verdict not in (UNKNOWN, require))
        if as_json:
            console.data(json.dumps(document.document(recording, name), ensure_ascii=False))
        else:
            console.data(document.text(recording, name))
    if unknown:
        hint = (
            "Record one complete run again: gdscheck -p >FILE 2>&1; or read any log with: gdsdeploy explain --log FILE"
        )
        raise ChecksUnknown(f"{', '.join(unknown)}: not a complete output of gdscheck, nor a cufile.log", hint=hint)
    if require and others:
        raise ChecksFailed(f"the verdict isn't {require}: {', '.join(others)}", hint="Read why: gdsdeploy explain")


def _bytes(file: Path) -> bytes:
    """The beginning of a file: up to one byte more than is parsed."""
    if str(file) == STDIN:
        return sys.stdin.buffer.read(runs.LIMIT + 1)
    try:
        return reading.beginning(str(file), runs.LIMIT)
    except OSError as error:
        raise click.FileError(str(file), hint=error.strerror or str(error)) from None
