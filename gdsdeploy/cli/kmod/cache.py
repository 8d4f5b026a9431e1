"""``gdsdeploy kmod cache``: the builds that the controller keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from gdsdeploy import console
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache, Entry
from gdsdeploy.errors import BuildCacheUnusable

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.group()
def command() -> None:
    """The builds of kernel modules that this machine keeps, so that no host builds what another has built.

    They are below the user's cache folder (GDSDEPLOY_CACHE_DIR), at most GDSDEPLOY_BUILD_CACHE_SIZE of them (20 GiB
    when it is not set); those that were not used for the longest time go first. All of it may be deleted at any time:
    what is missing is built again.

    \b
    Examples:
      gdsdeploy kmod cache list
      gdsdeploy kmod cache prune --size 5GiB
      gdsdeploy kmod cache verify --json | jq '.damaged'
    """


@command.command("list")
@_json
def list_builds(as_json: bool) -> None:
    """Show every build, the last used first: its content's digest, kernel, driver, size and builder.

    \b
    Examples:
      gdsdeploy kmod cache list
      gdsdeploy kmod cache list --json | jq -r '.builds[].ingredients.compiler'
    """
    cache = _cache()
    entries = cache.entries()
    if as_json:
        _print(cache, builds=_described(entries))
        return
    for entry in entries:
        console.data(_line(entry))
    total = sum(entry.size for entry in entries)
    console.say(f"{len(entries)} builds, {_megabytes(total)} of {_megabytes(cache.limit)}, in {cache.folder}")


@command.command()
@click.option("--size", metavar="SIZE", help="Evict down to this, such as 5GiB; 0 evicts all that is not in use.")
@_json
def prune(size: str | None, as_json: bool) -> None:
    """Evict the builds that were not used for the longest time, until the cache has its size, or --size.

    \b
    Examples:
      gdsdeploy kmod cache prune
      gdsdeploy kmod cache prune --size 0
    """
    try:
        limit = buildcache.limit_from(size) if size else None
    except BuildCacheUnusable as error:
        raise click.BadParameter(f"{size!r} is no size; write it as 5GiB or 500MiB", param_hint="--size") from error
    cache = _cache()
    gone = cache.prune(cache.limit if limit is None else limit)
    if as_json:
        _print(cache, evicted=_described(gone))
        return
    for entry in gone:
        console.data(_line(entry))
    console.say(f"Evicted {len(gone)} builds, {_megabytes(sum(entry.size for entry in gone))}")


@command.command()
@_json
def verify(as_json: bool) -> None:
    """Read every build and drop those that were damaged on disk; they are built again when a host needs them.

    \b
    Examples:
      gdsdeploy kmod cache verify
    """
    cache = _cache()
    damaged = cache.verify()
    if as_json:
        _print(cache, good=_described(cache.entries()), damaged=_described(damaged))
        return
    console.say(f"{len(cache.entries())} builds are as they were written, {len(damaged)} were dropped")


def _cache() -> BuildCache:
    return buildcache.default(console.warn)


def _described(entries: Sequence[Entry]) -> list[dict[str, object]]:
    return [
        {
            "builder": entry.builder,
            "key": entry.key,
            "ingredients": entry.manifest.get("key"),
            "kernel_release": entry.manifest["kernel_release"],
            "driver": entry.manifest.get("driver"),
            "modules": [item["name"] for item in entry.manifest["modules"]],
            "sha256": entry.sha256,
            "size": entry.size,
            "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used)),
        }
        for entry in entries
    ]


def _print(cache: BuildCache, **lists: list[dict[str, object]]) -> None:
    console.json({"folder": str(cache.folder), "limit": cache.limit, **lists})


def _line(entry: Entry) -> str:
    driver = entry.manifest.get("driver") or {}
    used = time.strftime("%Y-%m-%d", time.gmtime(entry.used))
    what = f"{entry.manifest['kernel_release']}, driver {driver.get('version', '?')} ({driver.get('flavour', '?')})"
    return f"{entry.sha256[:12]}  {what}, {_megabytes(entry.size)}, built on {entry.builder}, used {used}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
