"""``gdsdeploy cufile migrate``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gdsdeploy import atomic, console
from gdsdeploy.cli import options
from gdsdeploy.cli.cufile.check import release_for
from gdsdeploy.cufile.document import DocumentInvalid
from gdsdeploy.cufile.machine import content
from gdsdeploy.cufile.migrate import Migration, migrate
from gdsdeploy.cufile.migrate import as_json as document
from gdsdeploy.errors import CufileInvalid


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--from", "old", metavar="VERSION", help="Version of libcufile that FILE was written for.")
@click.option("--to", "new", metavar="VERSION", help="Version of libcufile that will read it.")
@click.option("--output", type=options.FILE, help="Write the result there, which may be FILE, in one step.")
@options.as_json("Print one JSON object: the changes, and the new text.")
def command(file: str, old: str | None, new: str | None, output: Path | None, as_json: bool) -> None:
    """Move a cufile.json from one release of libcufile to another, and show what changed and why.

    Renamed keys get their new names, keys that the new release doesn't read are removed, and numbers above its limits
    are lowered. max_direct_io_size_kb and per_buffer_cache_size_kb are both written, because one alone can be fatal
    from 1.13 on. If the file doesn't set a key whose default changed, that is reported. Comments and layout stay.
    FILE - is standard input; without --output the new text goes to standard output.

    \b
    Examples:
      gdsdeploy cufile migrate /etc/cufile.json --from 1.11 --to 1.20
      gdsdeploy cufile migrate site.json --from 1.18 --to 1.19 --output site.json

    Exit code: 16, and nothing is written, if the file already has errors.
    """
    source, target = release_for("--from", old), release_for("--to", new)
    name = "<stdin>" if file == "-" else file
    try:
        migration = migrate(content(file), source, target)
    except DocumentInvalid as invalid:
        place = f"{name}:{invalid.place.line}:{invalid.place.column}"
        raise CufileInvalid(f"{place}: {invalid.message}", hint=_hint(file, source)) from None
    except OSError as reason:
        problem = f"{name}: cannot be read: {reason.strerror or reason}"
        raise CufileInvalid(problem, hint="Name a readable file") from None
    if migration.problems:
        lines = [f"  - {problem.key}: {problem.message} [{problem.id}]" for problem in migration.problems]
        raise CufileInvalid("\n".join([f"{name} already has errors:", *lines]), hint=_hint(file, source))
    for change in migration.changes:
        console.say(str(change))
    if not migration.changes:
        console.say(f"Nothing changes from libcufile {source[0]}.{source[1]} to {target[0]}.{target[1]}")
    if output is not None:
        _write(output, migration)
        console.say(f"Wrote {output}")
    if as_json:
        console.data(json.dumps(document(file, source, target, migration)))
    elif output is None:
        console.file(_bytes(migration).decode("utf-8", "replace").removesuffix("\n"))


def _hint(file: str, source: tuple[int, int]) -> str:
    return f"Correct it first: gdsdeploy cufile check {file} --libcufile {source[0]}.{source[1]}"


def _bytes(migration: Migration) -> bytes:
    return migration.text.encode("utf-8", "surrogateescape")


def _write(path: Path, migration: Migration) -> None:
    """Replace the file at once, and keep its mode."""
    try:
        atomic.write(path, _bytes(migration))
    except OSError as reason:
        raise CufileInvalid(f"{path}: cannot be written: {reason.strerror or reason}") from None
