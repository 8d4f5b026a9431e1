"""``gdsdeploy kmod``: kernel modules; the controller's builds, and the keys of builders.

The host program's own commands work on this machine, too: same arguments and code, the controller's exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.board import build_progress
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache, BuilderKeys, CacheEntry
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs, below, early_flags
from gdsdeploy.errors import BuildCacheUnusable, ChecksUnknown, FleetInvalid, GdsError, ModuleBuildFailed
from gdsdeploy.host.cli import kmod
from gdsdeploy.host.cli.parsers import PROGRAM
from gdsdeploy.host.errors import AuditError, BuildError, HostError

#: Verb → what it does, in the order of use.
VERBS = {
    "audit": "Check from files alone whether modules would load on a kernel, and are the right ones",
    "build": "Build a module for a kernel, running or not, and audit it",
    "sign": "Sign modules with the kernel's own tool",
    "keygen": "Create a module signing key and its certificate",
    "enrol": "Enrol that key in the firmware, with its owner at the console",
    "unenrol": "Delete a key from the firmware, with its owner at the console",
    "cache": "List, prune and verify the builds that this machine keeps",
    "builders": "Show the keys of machines that build for others",
    "trees": "List the driver source trees of this machine",
    "preflight": "Check whether a stack builds and would load on a kernel, before any host has it",
}


@click.group(cls=Verbs, verbs=below("gdsdeploy.cli", VERBS, {"preflight": "kmod_preflight"}, "kmod"))
def command() -> None:
    """Kernel modules: audit them, build them, and predict which will load.

    audit, build and trees work on this machine's files. They run the same code as `gdsdeploy-host.pyz kmod` on a host,
    as the build, as the kernel guard and as validation. audit doesn't need root and doesn't load modules.
    """


@click.group(cls=Verbs)
def cache_group() -> None:
    """Manage the kernel module builds that this machine keeps, so that each is built once.

    They are below the user's cache folder (GDSDEPLOY_CACHE_DIR) and take at most GDSDEPLOY_BUILD_CACHE_SIZE (default:
    20 GiB). The least recently used builds are evicted first. You may delete all of it at any time: missing builds
    are built again.

    \b
    Examples:
      gdsdeploy kmod cache list
      gdsdeploy kmod cache prune --size 5GiB
      gdsdeploy kmod cache verify --json | jq '.damaged'
    """


@cache_group.command("list")
@options.as_json()
def list_builds(as_json: bool) -> None:
    """Show every build, the most recently used first: content digest, kernel, driver, size and builder.

    \b
    Examples:
      gdsdeploy kmod cache list
      gdsdeploy kmod cache list --json | jq -r '.builds[].ingredients.compiler'
    """
    cache = buildcache.default(console.warn)
    entries = cache.entries()
    words = f"{len(entries)} builds, {_total(entries)} of {_megabytes(cache.limit)}, in {cache.folder}"
    _print(cache, as_json, words, entries, builds=entries)


@cache_group.command()
@click.option(
    "--size", metavar="SIZE", help="Evict down to this, such as 5GiB; 0 evicts every build that isn't in use."
)
@options.as_json()
def prune(size: str | None, as_json: bool) -> None:
    """Evict the least recently used builds until the cache fits its limit, or --size.

    \b
    Examples:
      gdsdeploy kmod cache prune
      gdsdeploy kmod cache prune --size 0
    """
    try:
        limit = buildcache.limit_from(size) if size else None
    except BuildCacheUnusable as error:
        raise click.BadParameter(f"{size!r} isn't a size; write it as 5GiB or 500MiB", param_hint="--size") from error
    cache = buildcache.default(console.warn)
    evicted = cache.prune(cache.limit if limit is None else limit)
    _print(cache, as_json, f"Evicted {len(evicted)} builds, {_total(evicted)}", evicted, evicted=evicted)


@cache_group.command()
@options.as_json()
def verify(as_json: bool) -> None:
    """Read every build and delete damaged ones, which are built again when a host needs them.

    \b
    Examples:
      gdsdeploy kmod cache verify
    """
    cache = buildcache.default(console.warn)
    damaged = cache.verify()
    good = cache.entries()
    words = f"{len(good)} builds are intact, {len(damaged)} were deleted"
    _print(cache, as_json, words, good=good, damaged=damaged)


def _described(entries: Sequence[CacheEntry]) -> list[dict[str, object]]:
    return [
        {
            "builder": entry.builder,
            "key": entry.key,
            "ingredients": entry.manifest["key"],
            "kernel_release": entry.manifest["kernel_release"],
            "driver": entry.manifest["driver"],
            "modules": [module["name"] for module in entry.manifest["modules"]],
            "sha256": entry.sha256,
            "size": entry.size,
            "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used)),
        }
        for entry in entries
    ]


def _print(
    cache: BuildCache, as_json: bool, words: str, shown: Sequence[CacheEntry] = (), **lists: Sequence[CacheEntry]
) -> None:
    """The builds ``shown`` and ``words``; or one JSON object with ``lists`` of builds."""
    if as_json:
        named = {name: _described(entries) for name, entries in lists.items()}
        console.json({"folder": str(cache.folder), "limit": cache.limit, **named})
        return
    for entry in shown:
        driver = entry.manifest["driver"] or {}
        used = time.strftime("%Y-%m-%d", time.gmtime(entry.used))
        what = f"{entry.manifest['kernel_release']}, driver {driver.get('version', '?')} ({driver.get('flavour', '?')})"
        size = _megabytes(entry.size)
        console.data(f"{entry.sha256[:12]}  {what}, {size}, built on {entry.builder}, used {used}")
    console.say(words)


def _total(entries: Sequence[CacheEntry]) -> str:
    return _megabytes(sum(entry.size for entry in entries))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


@click.command()
@options.fleet
@click.option("--accept", metavar="NAME", help="Record the key that this machine presented, and that was refused.")
@options.run_inventory
@options.as_json()
def builders(fleet: Path, accept: str | None, run_inventory: bool, as_json: bool) -> None:
    """Show the keys with which machines of FLEET sign the modules that they build for others.

    A key is recorded when its machine first delivers modules; from then on, other keys are refused. Compare a refused
    key with the machine's own (openssl pkey -pubin -in /var/lib/gdsdeploy/builder.pub -outform DER | tail -c 32 |
    sha256sum), and accept it if the machine was reinstalled. The file shown with a key is the public key.

    \b
    Examples:
      gdsdeploy kmod builders fleet.yml
      gdsdeploy kmod builders fleet.yml --accept build1
    """
    from gdsdeploy.fleetfile.load import confined, load_fleet

    machines = load_fleet(fleet, confined(run_inventory=run_inventory)).everyone()
    keys = BuilderKeys.of(fleet)
    if accept is not None:
        if accept not in machines:
            raise FleetInvalid(f"{fleet}: there is no host or builder {accept!r}", hint="Correct --accept")
        console.say(f"{accept}: {keys.accept(accept)} is recorded now")
    known = [
        {"name": name, "key": key, "refused": keys.refused(name), "file": str(keys.path(name))}
        for name, key in keys.fingerprints().items()
    ]
    if as_json:
        console.json({"fleet": str(fleet), "builders": known})
        return
    for builder in known:
        refused = f"  refused: {builder['refused']}" if builder["refused"] else ""
        console.data(f"{builder['name']}  {builder['key']}  {builder['file']}{refused}")
    if not known:
        console.say(f"No key is recorded in {keys.folder}: a builder presents its key when it first delivers modules")


_EXPLAINED = re.compile(r"(\S)(\s{2,})(?=\S)")
#: Key of a context for the words of a command, which the host program's parser takes.
_WORDS = "gdsdeploy.cli.kmod.words"


class _Mirror(click.Command):
    """A command of the host program, whose parser decides; click shows its help and completes its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = (word for word in args if word not in ("-q", "--quiet"))
        ctx.meta[_WORDS] = [self.name, *early_flags(ctx), *words]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        try:
            with _shown(ctx.meta[_WORDS]) as words:
                arguments = _parser().parse_args(["kmod", *words])
                status = arguments.unguarded(arguments)
        except (BuildError, AuditError) as error:
            raise ModuleBuildFailed(error.message, hint=error.hint) from None
        except HostError as error:
            raise GdsError(error.message, hint=error.hint) from None
        if status == kmod.FAILED:
            raise ModuleBuildFailed("")
        if status == kmod.UNDECIDED:
            raise ChecksUnknown("")


@contextlib.contextmanager
def _shown(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The command, and of a build once a minute what make is at: lines that are redrawn would mix with its output."""
    if words[0] != "build":
        yield words
        return
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        file = Path(folder) / "progress"
        with console.live(lambda *_: (), partial(build_progress, file), redraw=False):
            yield ["build", "--progress", str(file), *words[1:]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gdsdeploy")
    PROGRAM.add("kmod", parser.add_subparsers())
    return parser


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Name → parser of the commands below ``parser``."""
    (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(below.choices)


def _mirrored(name: str, parser: argparse.ArgumentParser) -> click.Command:
    """The command ``name`` with the parameters and the help of ``parser``."""
    paragraphs = textwrap.dedent(parser.epilog or "").strip("\n").replace("%(prog)s", f"gdsdeploy kmod {name}")
    description = _sentence((parser.description or "").strip())
    description += "" if description.endswith((".", "?")) else "."
    text = "\n\n".join([description, *map(_paragraph, paragraphs.split("\n\n"))]).rstrip()
    parameters = [_parameter(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return _Mirror(name, params=parameters, help=text)


def _paragraph(text: str) -> str:
    """A paragraph as click has it; an example's explanation, which blanks precede, becomes a comment."""
    if not text.startswith("examples:"):
        return text
    lines = (_EXPLAINED.sub(r"\1\2# ", line, count=1) for line in text.splitlines()[1:])
    return "\n".join(["\b", "Examples:", *lines])


def _parameter(action: argparse.Action) -> click.Parameter:
    several = action.nargs in ("*", "+")
    hidden = action.help == argparse.SUPPRESS
    settings: dict[str, Any] = {"metavar": _metavar(action), "expose_value": False}
    if not action.option_strings:
        return click.Argument(
            [action.dest], nargs=-1 if several else 1, required=action.nargs not in ("*", "?"), **settings
        )
    if action.choices is not None and action.metavar is None:
        settings |= {"type": click.Choice([str(choice) for choice in action.choices]), "metavar": None}
    is_flag = action.nargs == 0
    repeats = isinstance(action, argparse._AppendAction)
    return click.Option(
        [*action.option_strings, action.dest],
        is_flag=is_flag,
        multiple=repeats and not is_flag,
        required=action.required,
        hidden=hidden,
        help=None if hidden else _sentence((action.help or "") % {**vars(action), "prog": "gdsdeploy"}),
        **({**settings, "metavar": None} if is_flag else settings),
    )


def _sentence(text: str) -> str:
    """The text with a capital letter, unless it begins with the name of a module."""
    return text if "-" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def _metavar(action: argparse.Action) -> str | None:
    if isinstance(action.metavar, str):
        endings = {"*": f"[{action.metavar}]...", "+": f"{action.metavar}..."}
        return action.metavar if action.option_strings else endings.get(str(action.nargs), action.metavar)
    return None


_PARSERS = _choices(_choices(_parser())["kmod"])
commands = {
    "cache": cache_group,
    "builders": builders,
    **{name: _mirrored(name, _PARSERS[name]) for name in VERBS if name in _PARSERS},
}
