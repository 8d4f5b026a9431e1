"""``gdsdeploy cufile effective``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cufile import effective
from gdsdeploy.cufile.library import TIMEOUT, Library, has_gpu, installed_library
from gdsdeploy.cufile.machine import content
from gdsdeploy.errors import CufileInvalid
from gdsdeploy.host.io import reading


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=options.PATH)
@click.option(
    "--library",
    type=options.PATH,
    metavar="PATH",
    help="The libcufile.so to use. Default: the installed one.",
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="PATH",
    callback=lambda _context, _option, paths: _absolute(paths),
    help="Let this folder exist, as on the host that FILE is for: log folder, mounts; repeatable.",
)
@click.option("--stand-in", is_flag=True, help="Use the stand-in libcuda even if this machine has a GPU.")
@options.timeout(TIMEOUT, "Seconds for each file.", least=0.1)
@click.option("--all", "every", is_flag=True, help="Also show keys that FILE doesn't set.")
@options.as_json("Print one JSON object per file, each on one line.")
def command(
    files: tuple[Path, ...],
    library: Path | None,
    folders: tuple[str, ...],
    stand_in: bool,
    timeout: float,
    every: bool,
    as_json: bool,
) -> None:
    """Show the values that a real libcufile uses under each FILE, a cufile.json.

    The library opens its driver in a child process with a time limit, in which FILE is /etc/cufile.json. On a machine
    without a GPU, a small stand-in for libcuda is compiled and used. Each key is shown with the value in FILE, the
    library's value, and its default:

    \b
      ≠   the library uses another value
      ✗   the library doesn't know the key, and ignores it
      ½   it does nothing without the other key of PCI P2PDMA
      ?   the library doesn't report its value
      →   FILE doesn't set the key; its value follows from another one

    \b
    Examples:
      gdsdeploy cufile effective /etc/cufile.json
      gdsdeploy cufile effective --library ./libcufile.so.0 --json *.json
      gdsdeploy cufile effective --library ./libcufile.so.0 --folder /var/log/cufile gpu1.json

    \b
    Exit code:
      16    a file was refused, or a key doesn't have the intended effect
      17    there is no usable libcufile
      0     every file has the intended effect
    """
    source = Library(library) if library is not None else installed_library()
    if stand_in:
        source = Library(source.path, cuda="standin")
    elif not has_gpu():
        console.say("This machine has no GPU: a stand-in for libcuda is used")
    problems: list[str] = []
    contents = {str(path): _content(str(path)) for path in files}
    for result in effective.effective(source, contents, timeout=timeout, folders=folders):
        console.data(result.to_json() if as_json else effective.text(result, every=every))
        if result.problem:
            problems.append(f"{result.file}: {result.problem}")
    if problems:
        hint = "See what each release does with every key: gdsdeploy cufile check FILE --libcufile VERSION"
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
