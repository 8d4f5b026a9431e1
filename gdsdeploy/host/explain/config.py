"""libcufile's configuration, its variables and its own version: what forces or forbids compat mode.

The configuration that CUFILE_ENV_PATH_JSON names lies over /etc/cufile.json.  What it sets is judged by the rules
about cufile.json; some rules are about the file itself.

P2PDMA needs one key of cufile.json for the mode and, from libcufile 1.16 on, one for each storage.

Which files cuFileHandleRegister takes, and the error that it returns for the others, was seen with every release from
1.4.0 to 1.20.0 (tests/loopback/cufile/test_cufile_library.py).
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown, require
from ..facts.cufile import REJECTED, refusal
from ..facts.environment import VARIABLE
from ..facts.storage import Mount
from ..facts.unknown import any_of, if_known, known
from ..libcufile import p2pdma
from ..paths import CUFILE
from ..subjects import quote, reference
from ..subjects.condition import DIRECT_PATH, NOTES, USABLE, Cause, Condition, condition, listed_cause, numbers, rule

#: The last release that reads CUFILE_ALLOW_COMPAT_MODE.
LAST_WITH_ALLOW_COMPAT = (1, 16)
#: The smallest I/O that takes a filesystem's direct path: a key in the filesystem's section below ``fs``.
MINIMUM = "posix_gds_min_kb"


def _by_setting(facts: HostFacts, ident: str, key: str, what: str, fix: str) -> Cause:
    """A cause that is one key of ``properties``."""
    return Cause(ident, what, fix, quote.setting(facts, "properties", key), reference.PARAMETERS)


def _by_variable(facts: HostFacts, ident: str, name: str, what: str, fix: str) -> Cause:
    """A cause that is a variable which some place sets."""
    variable = facts.environment.variables[name]
    return Cause(ident, f"{name} {what}", fix.format(variable.place), quote.variable(variable), reference.VARIABLES)


@rule(USABLE, 10)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """If libcufile refuses its configuration, every cuFile call fails."""

    def refused() -> Cause:
        what = "libcufile refuses its configuration"
        fix = f"correct the value that libcufile names; this lists every problem: gdsdeploy cufile check {CUFILE}"
        lines = quote.with_source("libcufile", refusal(facts.cufile.opened))
        return Cause("cufile.refused", what, fix, lines, reference.PARAMETERS)

    yield Condition(lambda: facts.cufile.acceptance != REJECTED, refused)


@rule(DIRECT_PATH, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """Settings that rule out either direct path."""
    key = "force_compat_mode"
    fix = "set properties.force_compat_mode to false"
    cause = _by_setting(facts, "cufile.force-compat", key, "cufile.json forces compat mode", fix)
    yield Condition(lambda: facts.cufile.setting("properties", key, False) is not True, cause)
    name = "CUFILE_FORCE_COMPAT_MODE"
    yield Condition(
        lambda: facts.environment.switch(name) is not True,
        lambda: _by_variable(facts, "cufile.variable-forces-compat", name, "forces compat mode", "remove it from {}"),
    )
    for mode in ("vanilla_posix_io_mode", "posix_io_mode"):
        if if_known(partial(facts.cufile.setting, "properties", mode, False), None) is True:
            what = f"cufile.json sets properties.{mode}; its effect on the direct path is unknown"
            cause = _by_setting(facts, "cufile.posix-io", mode, what, f"remove properties.{mode}")
            yield Condition(Unknown(what), cause, suspect=True)
    if mount is not None:
        devices = mount.devices
        yield _not_denied(facts, "filesystems", [mount.filesystem])
        yield _not_denied(facts, "mounts", [mount.mount_point])
        yield _not_denied(facts, "drivers", sorted({device.kind for device in devices}))
        yield _not_denied(facts, "devices", ["/dev/" + device.name for device in devices])


@condition
def _not_denied(facts: HostFacts, key: str, values: List[str]) -> Condition:
    denied = facts.cufile.setting("denylist", key, [])
    matches = [value for value in values if isinstance(denied, list) and value in denied]
    shown = " and ".join(matches)
    what = f"denylist.{key} in cufile.json names {shown}"
    evidence = quote.setting(facts, "denylist", key)
    cause = Cause("cufile.denied", what, f"remove {shown} from denylist.{key}", evidence, reference.PARAMETERS)
    return Condition(not matches, cause)


def library(facts: HostFacts) -> Optional[str]:
    """The release of libcufile: from the name of its file, else from its log; None where none is installed.

    Raises UndecidedError where neither has it.
    """
    of_file, logged = known(lambda: facts.cufile.library), if_known(lambda: facts.gdscheck.logged, None)
    return logged.release if isinstance(of_file, Unknown) and logged and logged.release else require(of_file)


@condition
def fallback(facts: HostFacts) -> Condition:
    """Whether compat mode may replace a direct path."""
    allowed = facts.cufile.setting("properties", "allow_compat_mode", True)
    forced = facts.cufile.setting("properties", "force_compat_mode", False)
    name = "CUFILE_ALLOW_COMPAT_MODE"
    release = if_known(lambda: library(facts), None)
    reads_variable = release is not None and numbers(release) <= LAST_WITH_ALLOW_COMPAT
    if reads_variable and forced is not True and if_known(lambda: facts.environment.switch(name), None) is False:
        fix = "remove the causes above, or remove the variable from {}"
        return Condition(False, _by_variable(facts, "cufile.variable-no-compat", name, "disallows compat mode", fix))
    fix = "remove the causes above, or set properties.allow_compat_mode to true"
    cause = _by_setting(facts, "cufile.no-compat", "allow_compat_mode", "cufile.json disallows compat mode", fix)
    return Condition(allowed is True or forced is True, cause)


@rule(NOTES, 10)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Settings that exclude some I/O from a direct path."""
    section = facts.cufile.setting("fs", mount.filesystem, {})
    least = section.get(MINIMUM) if isinstance(section, dict) else None
    if isinstance(least, int) and least > 0:
        key = f"fs.{mount.filesystem}.{MINIMUM}"
        what = f"I/O of less than {least} KiB takes compat mode: {key}"
        evidence = quote.setting(facts, "fs", MINIMUM)
        yield Cause("cufile.small-io", what, f"lower {key} in cufile.json", evidence, reference.PARAMETERS)
    if facts.cufile.setting("properties", "gds_rdma_write_support", True) is False:
        evidence = quote.setting(facts, "properties", "gds_rdma_write_support")
        what = "writes over RDMA take compat mode: properties.gds_rdma_write_support is false"
        fix = "set properties.gds_rdma_write_support to true"
        yield Cause("cufile.no-rdma-writes", what, fix, evidence, reference.COMPATIBILITY)


@rule(USABLE, 11)
def overlay_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """If libcufile refuses the second file, every cuFile call fails as well."""
    over = if_known(lambda: facts.cufile.overlay, None)
    if over and over.broken:
        what = f"libcufile refuses the configuration that {VARIABLE} names: {over.broken}"
        fix = f"correct the file, or remove the variable from {over.variable.place}: gdsdeploy cufile check {over.path}"
        evidence = (*quote.with_source(over.path, [over.broken]), *quote.variable(over.variable))
        yield Condition(False, Cause("cufile.overlay-refused", what, fix, evidence, reference.VARIABLES))


@rule(DIRECT_PATH, 21)
def overlay_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """A file that was not seen may set anything."""
    over, named = known(lambda: facts.cufile.overlay), facts.environment.variables.get(VARIABLE)
    if isinstance(over, Unknown) and named is not None:
        what = f"{VARIABLE} overlays /etc/cufile.json with a configuration that couldn't be examined"
        fix = f"examine that file, or remove the variable from {named.place}"
        evidence = (*quote.variable(named), over.reason)
        cause = Cause("cufile.variable-overlays", what, fix, evidence, reference.VARIABLES)
        yield Condition(over, cause, suspect=True)


@rule(NOTES, 11)
def overlay_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    over = facts.cufile.overlay
    if over and not over.exists:
        what = f"{VARIABLE} names {over.path}, which doesn't exist: libcufile ignores it"
        fix = f"create the file, or remove the variable from {over.variable.place}"
        evidence = quote.variable(over.variable)
        yield Cause("cufile.overlay-missing", what, fix, evidence, reference.VARIABLES)


#: The variable that libcufile applies over ``properties.use_pci_p2pdma``, from 1.13 on.
P2PDMA_VARIABLE = "CUFILE_USE_PCIP2PDMA"


def requests_p2pdma(facts: HostFacts, storage: Callable[[], Optional[str]]) -> bool:
    """Whether the configuration asks for P2PDMA on ``storage``, as filesystem.storage_of says, with one key or both.

    Never for storage that NVIDIA lists no such route to, whatever its key.  Raises UndecidedError.
    """
    name = known(storage)
    if isinstance(name, Unknown):
        return p2pdma_enabled(facts) and require(name) is not None
    row = p2pdma_key(name)
    if row is None or not row.route:
        return False
    release = if_known(lambda: library(facts), None)
    if release is not None and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return p2pdma_enabled(facts)
    return any_of([known(lambda: p2pdma_enabled(facts)), known(lambda: _own_key(facts, row))])


def p2pdma_key(storage: Optional[str]) -> Optional[p2pdma.StorageKey]:
    return next((row for row in p2pdma.storage_keys() if row.storage == storage), None)


def p2pdma_enabled(facts: HostFacts) -> bool:
    """The first half: ``properties.use_pci_p2pdma``, or the variable over it."""
    switch = if_known(lambda: facts.environment.switch(P2PDMA_VARIABLE), None)
    if switch is not None:
        return switch
    return facts.cufile.setting("properties", "use_pci_p2pdma", False) is True


def _own_key(facts: HostFacts, row: p2pdma.StorageKey) -> bool:
    """The second half: the key of one kind of storage."""
    section, _, name = row.section.partition(".")
    keys = facts.cufile.setting(section, name, {})
    return isinstance(keys, dict) and keys.get(row.key) is True


def p2pdma_keys(facts: HostFacts, storage: str) -> Iterator[Condition]:
    """Both keys of a kind of storage, in a libcufile that has a route to it."""
    row, release = p2pdma_key(storage), known(lambda: library(facts))
    if row is None or release is None:
        return
    since = ".".join(str(number) for number in row.since)
    what = f"libcufile {release} has no P2PDMA mode for this kind of storage ({storage}): {since} is the first"
    cause = Cause("cufile.no-p2pdma", what, f"install libcufile {since} or newer", (f"libcufile: {release}",))
    if storage != "nvme":
        yield Condition(lambda: numbers(require(release)) >= row.since, cause)
    if not isinstance(release, Unknown) and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return
    halves = {p2pdma.GLOBAL: known(lambda: p2pdma_enabled(facts)), row.name: known(lambda: _own_key(facts, row))}
    words = " and ".join(name for name, value in halves.items() if value is False)
    what = f"P2PDMA on this storage needs two keys of cufile.json, and {words} isn't true"
    evidence = tuple(f"{CUFILE}: {name} is {_shown(value)}" for name, value in halves.items())
    if if_known(lambda: facts.environment.switch(P2PDMA_VARIABLE), None) is not None:
        evidence = (*quote.variable(facts.environment.variables[P2PDMA_VARIABLE]), evidence[1])
    cause = Cause("cufile.p2pdma-half-set", what, f"set {words} to true", evidence, reference.PARAMETERS)
    if isinstance(release, Unknown):
        yield Condition(release, cause, suspect=bool(words))
    else:
        yield Condition(lambda: not words and all(map(require, halves.values())), cause)


def _shown(value: Maybe[bool]) -> str:
    return "not known" if isinstance(value, Unknown) else "true" if value else "not true"


#: The first release that returns NEWER for a file that it can't register; those before return OLDER.
CHANGED, OLDER, NEWER = (1, 15), 5030, 5027
#: The first release that registers files for compat mode which no earlier one takes.
SILENT = (1, 16)


def registration_error(release: str) -> int:
    """The error for a file whose disk udev doesn't know, or whose filesystem isn't supported."""
    return NEWER if numbers(release) >= CHANGED else OLDER


def registration_failure(facts: HostFacts) -> str:
    """``cuFileHandleRegister fails with …``, by the release of libcufile where that is known."""
    release = if_known(lambda: library(facts), None)
    error = f"{NEWER} ({OLDER} before libcufile 1.15)" if release is None else registration_error(release)
    return f"cuFileHandleRegister fails with {error}"


def registers_silently(facts: HostFacts) -> Tuple[Cause, ...]:
    """What goes for each file in compat mode: newer releases register it as if nothing were amiss."""
    release = if_known(lambda: library(facts), None)
    if release is None or numbers(release) < SILENT:
        return ()
    return (listed_cause("cufile.silent-compat", (f"libcufile: {release}",)),)


@rule(USABLE, 30)
def udev(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """When a file is registered, libcufile looks up its disk in udev's database."""
    device = if_known(lambda: mount.device, None) if mount is not None else None
    if device is None:
        return
    evidence = (f"/run/udev/data/b{device.number}: no ID_FS_USAGE",)
    what = f"udev has no ID_FS_USAGE for {device.name}, so {registration_failure(facts)}"
    fix = "record it: udevadm trigger --subsystem-match=block; in a container, also mount the host's /run/udev"
    container = if_known(lambda: facts.environment.container, None)
    if container:
        what += f" (this is {container})"
        fix = "start the container with the host's database, read-only: --volume /run/udev:/run/udev:ro"
    cause = Cause("udev.no-database", what, fix, evidence, reference.HANDLE_REGISTER)
    yield Condition(lambda: device.udev_usage is not None, cause)
