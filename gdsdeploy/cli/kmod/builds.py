"""``gdsdeploy kmod cache`` and ``builders``: the controller's builds, and the keys of builders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache, CacheEntry
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import BuildCacheUnusable, FleetInvalid


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
    cache = _cache()
    entries = cache.entries()
    if as_json:
        _print(cache, builds=_described(entries))
        return
    total = _lines(entries)
    console.say(f"{len(entries)} builds, {total} of {_megabytes(cache.limit)}, in {cache.folder}")


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
    cache = _cache()
    evicted = cache.prune(cache.limit if limit is None else limit)
    if as_json:
        _print(cache, evicted=_described(evicted))
        return
    console.say(f"Evicted {len(evicted)} builds, {_lines(evicted)}")


@cache_group.command()
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


@click.command()
@options.fleet
@click.option("--accept", metavar="NAME", help="Record the key that this machine presented, and that was refused.")
@options.as_json()
def builders(fleet: Path, accept: str | None, as_json: bool) -> None:
    """Show the keys with which machines of FLEET sign the modules that they build for others.

    A key is recorded when its machine first delivers modules; from then on, other keys are refused. Compare a refused
    key with the machine's own (openssl pkey -pubin -in /var/lib/gdsdeploy/builder.pub -outform DER | tail -c 32 |
    sha256sum), and accept it if the machine was reinstalled. The file shown with a key is the public key.

    \b
    Examples:
      gdsdeploy kmod builders fleet.yml
      gdsdeploy kmod builders fleet.yml --accept build1
    """
    from gdsdeploy.builds.builder_keys import BuilderKeys
    from gdsdeploy.fleetfile.load import load_fleet

    machines = load_fleet(fleet).everyone()
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


commands = {"cache": cache_group, "builders": builders}
