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
from gdsdeploy.cufile.migrate import Migration, as_json, migrate
from gdsdeploy.errors import CufileInvalid


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--from", "old", metavar="VERSION", help="Version of libcufile that FILE was written for.")
@click.option("--to", "new", metavar="VERSION", help="Version of libcufile that is to read it.")
@click.option("--output", type=options.FILE, help="Write there (FILE too) when it is whole.")
@click.option("--json", "want_json", is_flag=True, help="Print one JSON object: the changes, and the new text.")
def command(file: str, old: str | None, new: str | None, output: Path | None, want_json: bool) -> None:
    """Move a cufile.json from one release of libcufile to another, and say what changed and why.

    Keys that the new release calls otherwise are renamed, those that it does not read are taken out, numbers above its
    limits are lowered, and max_direct_io_size_kb and per_buffer_cache_size_kb are both written, because one alone can
    be fatal from 1.13 on. Where the file leaves a key to the library and its default changed, that is said. Comments
    and layout stay. FILE - is standard input; without --output the new text goes to standard output.

    \b
    Examples:
      gdsdeploy cufile migrate /etc/cufile.json --from 1.11 --to 1.20
      gdsdeploy cufile migrate site.json --from 1.18 --to 1.19 --output site.json

    Exit code: 16, and nothing is written, when the file has errors of its own.
    """
    source, target = release_for("--from", old), release_for("--to", new)
    name = "<stdin>" if file == "-" else file
    try:
        migration = migrate(content(file), source, target)
    except DocumentInvalid as invalid:
        place = f"{name}:{invalid.place.line}:{invalid.place.column}"
        raise CufileInvalid(f"{place}: {invalid.message}", hint=_hint(file, source)) from None
    except OSError as reason:
        raise CufileInvalid(
            f"{name}: cannot be read: {reason.strerror or reason}", hint="Name a readable file"
        ) from None
    if migration.problems:
        lines = [f"{one.key}: {one.message} [{one.id}]" for one in migration.problems]
        listed = "\n".join([f"{name} has errors that are in it already:", *(f"  - {line}" for line in lines)])
        raise CufileInvalid(listed, hint=_hint(file, source))
    for change in migration.changes:
        console.say(str(change))
    if not migration.changes:
        console.say(f"Nothing changes from libcufile {source[0]}.{source[1]} to {target[0]}.{target[1]}")
    if output is not None:
        _write(output, migration)
        console.say(f"Wrote {output}")
    if want_json:
        console.data(json.dumps(as_json(file, source, target, migration)))
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
