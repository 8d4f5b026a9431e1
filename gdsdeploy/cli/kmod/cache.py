"""``gdsdeploy kmod cache``: the builds that the controller keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from gdsdeploy import console
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache, CacheEntry
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import BuildCacheUnusable


@click.group(cls=Verbs)
def command() -> None:
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


@command.command("list")
@options.as_json()
def list_builds(as_json: bool) -> None:
    """Show every build, the most recently used first: content digest, kernel, driver, size and builder.

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
    total = _lines(entries)
    console.say(f"{len(entries)} builds, {total} of {_megabytes(cache.limit)}, in {cache.folder}")


@command.command()
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
    cache = _cache()
    evicted = cache.prune(cache.limit if limit is None else limit)
    if as_json:
        _print(cache, evicted=_described(evicted))
        return
    console.say(f"Evicted {len(evicted)} builds, {_lines(evicted)}")


@command.command()
@options.as_json()
def verify(as_json: bool) -> None:
    """Read every build and delete damaged ones, which are built again when a host needs them.

    \b
    Examples:
      gdsdeploy kmod cache verify
    """
    cache = _cache()
    damaged = cache.verify()
    if as_json:
        _print(cache, good=_described(cache.entries()), damaged=_described(damaged))
        return
    console.say(f"{len(cache.entries())} builds are intact, {len(damaged)} were deleted")


def _cache() -> BuildCache:
    return buildcache.default(console.warn)


def _described(entries: Sequence[CacheEntry]) -> list[dict[str, object]]:
    return [
        {
            "builder": entry.builder,
            "key": entry.key,
            "ingredients": entry.manifest.get("key"),
            "kernel_release": entry.manifest["kernel_release"],
            "driver": entry.manifest.get("driver"),
            "modules": [module["name"] for module in entry.manifest["modules"]],
            "sha256": entry.sha256,
            "size": entry.size,
            "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used)),
        }
        for entry in entries
    ]


def _print(cache: BuildCache, **lists: list[dict[str, object]]) -> None:
    console.json({"folder": str(cache.folder), "limit": cache.limit, **lists})


def _lines(entries: Sequence[CacheEntry]) -> str:
    """Print the builds, and return their size together."""
    for entry in entries:
        driver = entry.manifest.get("driver") or {}
        used = time.strftime("%Y-%m-%d", time.gmtime(entry.used))
        what = f"{entry.manifest['kernel_release']}, driver {driver.get('version', '?')} ({driver.get('flavour', '?')})"
        size = _megabytes(entry.size)
        console.data(f"{entry.sha256[:12]}  {what}, {size}, built on {entry.builder}, used {used}")
    return _megabytes(sum(entry.size for entry in entries))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
