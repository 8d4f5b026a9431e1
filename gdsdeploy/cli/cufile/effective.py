"""``gdsdeploy cufile effective``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cufile import effective
from gdsdeploy.cufile.library import TIMEOUT, Library, has_gpu, installed
from gdsdeploy.cufile.machine import content
from gdsdeploy.errors import CufileInvalid
from gdsdeploy.host.io import reading


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=options.PATH)
@click.option(
    "--library",
    type=options.PATH,
    metavar="PATH",
    help="The libcufile.so to ask; default: the one that is installed here.",
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="PATH",
    callback=lambda _context, _option, paths: _absolute(paths),
    help="Let this folder exist, as on the host that FILE is for: log folder, mounts. May be given more than once.",
)
@click.option("--stand-in", is_flag=True, help="Use the stand-in libcuda although this machine has a GPU.")
@options.timeout(TIMEOUT, "Seconds for each file.", least=0.1)
@click.option("--all", "every", is_flag=True, help="Show the keys that FILE does not give, too.")
@options.as_json("Print one JSON object a file, each on a line.")
def command(
    files: tuple[Path, ...],
    library: Path | None,
    folders: tuple[str, ...],
    stand_in: bool,
    timeout: float,
    every: bool,
    as_json: bool,
) -> None:
    """Ask a real libcufile what it works with under each FILE, a cufile.json.

    The library opens its driver in a child that is killed after its time, where FILE lies at /etc/cufile.json. On a
    machine without a GPU a small stand-in for libcuda, compiled here, answers in its place. Each key is shown with what
    FILE intends, what the library works with, and its default:

    \b
      ≠   the library works with something else
      ✗   the library does not know the key, and ignores it
      ?   the library does not say what it made of it
      →   FILE does not give the key; its value follows from another one

    \b
    Examples:
      gdsdeploy cufile effective /etc/cufile.json
      gdsdeploy cufile effective --library ./libcufile.so.0 --json *.json
      gdsdeploy cufile effective --library ./libcufile.so.0 --folder /var/log/cufile gpu1.json

    \b
    Exit code:
      16    a file was refused, or some key of it is without the intended effect
      17    there is no libcufile that could be asked
      0     every file does what it says
    """
    asked = Library(library) if library is not None else installed()
    if stand_in:
        asked = Library(asked.path, cuda="standin")
    elif not has_gpu():
        console.say("This machine has no GPU: a stand-in for libcuda answers")
    problems: list[str] = []
    contents = {str(path): _content(str(path)) for path in files}
    for found in effective.effective(asked, contents, timeout=timeout, folders=folders):
        console.data(found.to_json() if as_json else effective.text(found, every=every))
        if found.problem:
            problems.append(f"{found.file}: {found.problem}")
    if problems:
        hint = "`gdsdeploy cufile check` says what each release knows about every key"
        raise CufileInvalid("\n".join(problems), hint=hint)


def _absolute(paths: tuple[str, ...]) -> tuple[str, ...]:
    for path in paths:
        if not path.startswith("/") or ".." in Path(path).parts:
            raise click.BadParameter(f"{path!r} is not an absolute path")
    return paths


def _content(file: str) -> bytes:
    try:
        return content(file)
    except OSError as error:
        raise CufileInvalid(f"{file}: cannot be read: {error.strerror}", hint=reading.look(file)) from None
