"""libcufile's configuration, its variables and its own version: what forces or forbids compat mode.

The configuration that CUFILE_ENV_PATH_JSON names lies over /etc/cufile.json.  What it sets is judged by the rules
about cufile.json; some rules are about the file itself.

P2PDMA needs one key of cufile.json for the mode and, from libcufile 1.16 on, one for each storage.

Which files cuFileHandleRegister takes, and the error that it returns for the others, was seen with every release from
1.4.0 to 1.20.0 (tests/loopback/cufile/test_cufile_library.py).
"""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.cufile import REJECTED, refusal
from ..facts.environment import VARIABLE, Overlay, Variable
from ..facts.storage import Device, Mount
from ..facts.unknown import when_known
from ..gdscheck import Report
from ..libcufile import p2pdma
from ..paths import CUFILE
from . import quote, reference
from .cause import DIRECT_PATH, NOTES, USABLE, Cause, Condition, listed_cause, numbers, rule

#: The last release that reads CUFILE_ALLOW_COMPAT_MODE.
LAST_WITH_ALLOW_COMPAT = (1, 16)
#: The smallest I/O that takes a filesystem's direct path: a key in the filesystem's section below ``fs``.
MINIMUM = "posix_gds_min_kb"


def _by_setting(facts: HostFacts, ident: str, key: str, what: str, fix: str) -> Cause:
    """A cause that is one key of ``properties``."""
    return Cause(ident, what, fix, quote.setting(facts, "properties", key), reference.PARAMETERS)


def _by_variable(ident: str, variable: Maybe[Optional[Variable]], what: str, fix: str) -> Optional[Cause]:
    if not isinstance(variable, Variable):
        return None
    what, fix = f"{variable.name} {what}", fix.format(variable.place)
    return Cause(ident, what, fix, quote.variable(variable), reference.VARIABLES)


@rule(USABLE, 10)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """If libcufile refuses its configuration, every cuFile call fails."""
    opened = facts.cufile.opened
    lines = tuple(refusal(opened)) if not isinstance(opened, Unknown) else ()
    what = "libcufile refuses its configuration"
    fix = f"correct the value that libcufile names; this lists every problem: gdsdeploy cufile check {CUFILE}"
    cause = Cause("cufile.refused", what, fix, quote.with_source("libcufile", lines), reference.PARAMETERS)
    yield Condition(when_known(facts.cufile.acceptance, lambda acceptance: acceptance != REJECTED), cause)


@rule(DIRECT_PATH, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """Settings that rule out either direct path."""
    key = "force_compat_mode"
    fix = "set properties.force_compat_mode to false"
    cause = _by_setting(facts, "cufile.force-compat", key, "cufile.json forces compat mode", fix)
    yield Condition(when_known(facts.cufile.setting("properties", key, False), lambda value: value is not True), cause)
    name = "CUFILE_FORCE_COMPAT_MODE"
    variable = facts.environment.variable(name)
    variable_cause = _by_variable("cufile.variable-forces-compat", variable, "forces compat mode", "remove it from {}")
    yield Condition(when_known(facts.environment.switch(name), lambda forced: forced is not True), variable_cause)
    for key in ("vanilla_posix_io_mode", "posix_io_mode"):
        if facts.cufile.setting("properties", key, False) is True:
            what = f"cufile.json sets properties.{key}; its effect on the direct path is unknown"
            cause = _by_setting(facts, "cufile.posix-io", key, what, f"remove properties.{key}")
            yield Condition(Unknown(what), cause, suspect=True)
    if mount is not None:
        yield from _denied(facts, mount)


def _denied(facts: HostFacts, mount: Mount) -> Iterator[Condition]:
    devices = mount.devices
    values_by_key = {
        "filesystems": [mount.filesystem],
        "mounts": [mount.mount_point],
        "drivers": sorted({device.kind for device in devices}),
        "devices": ["/dev/" + device.name for device in devices],
    }
    for key, values in values_by_key.items():
        denied = facts.cufile.setting("denylist", key, [])
        matches = [value for value in values if isinstance(denied, list) and value in denied]
        shown = " and ".join(matches)
        what = f"denylist.{key} in cufile.json names {shown}"
        evidence = quote.setting(facts, "denylist", key)
        cause = Cause("cufile.denied", what, f"remove {shown} from denylist.{key}", evidence, reference.PARAMETERS)
        yield Condition(denied if isinstance(denied, Unknown) else not matches, cause)


def library(facts: HostFacts) -> Maybe[Optional[str]]:
    """The release of libcufile: from the name of its file, else from its log; None where none is installed."""
    logged = facts.gdscheck.logged
    if isinstance(facts.cufile.library, Unknown) and isinstance(logged, Report) and logged.release:
        return logged.release
    return facts.cufile.library


def fallback(facts: HostFacts) -> Tuple[Maybe[bool], Optional[Cause]]:
    """Whether compat mode may replace a direct path, and the cause if not."""
    allowed = facts.cufile.setting("properties", "allow_compat_mode", True)
    forced = facts.cufile.setting("properties", "force_compat_mode", False)
    for value in (allowed, forced):
        if isinstance(value, Unknown):
            return value, None
    fix = "remove the causes above, or set properties.allow_compat_mode to true"
    name = "CUFILE_ALLOW_COMPAT_MODE"
    release = library(facts)
    reads_variable = isinstance(release, str) and numbers(release) <= LAST_WITH_ALLOW_COMPAT
    if facts.environment.switch(name) is False and reads_variable and forced is not True:
        fix, variable = "remove the causes above, or remove the variable from {}", facts.environment.variable(name)
        return False, _by_variable("cufile.variable-no-compat", variable, "disallows compat mode", fix)
    if allowed is True or forced is True:
        return True, None
    return False, _by_setting(facts, "cufile.no-compat", "allow_compat_mode", "cufile.json disallows compat mode", fix)


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
    over = facts.cufile.overlay
    if isinstance(over, Overlay) and over.broken:
        what = f"libcufile refuses the configuration that {VARIABLE} names: {over.broken}"
        fix = f"correct the file, or remove the variable from {over.variable.place}: gdsdeploy cufile check {over.path}"
        evidence = (*quote.with_source(over.path, [over.broken]), *quote.variable(over.variable))
        yield Condition(False, Cause("cufile.overlay-refused", what, fix, evidence, reference.VARIABLES))


@rule(DIRECT_PATH, 21)
def overlay_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """A file that was not seen may set anything."""
    over, named = facts.cufile.overlay, facts.environment.variables.get(VARIABLE)
    if isinstance(over, Unknown) and isinstance(named, Variable):
        what = f"{VARIABLE} overlays /etc/cufile.json with a configuration that couldn't be examined"
        fix = f"examine that file, or remove the variable from {named.place}"
        evidence = (*quote.variable(named), over.reason)
        cause = Cause("cufile.variable-overlays", what, fix, evidence, reference.VARIABLES)
        yield Condition(Unknown(over.reason), cause, suspect=True)


@rule(NOTES, 11)
def overlay_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    over = facts.cufile.overlay
    if isinstance(over, Overlay) and not over.exists:
        what = f"{VARIABLE} names {over.path}, which doesn't exist: libcufile ignores it"
        fix = f"create the file, or remove the variable from {over.variable.place}"
        evidence = quote.variable(over.variable)
        yield Cause("cufile.overlay-missing", what, fix, evidence, reference.VARIABLES)


#: The variable that libcufile applies over ``properties.use_pci_p2pdma``, from 1.13 on.
P2PDMA_VARIABLE = "CUFILE_USE_PCIP2PDMA"


def requests_p2pdma(facts: HostFacts, storage: Maybe[Optional[str]]) -> Maybe[bool]:
    """Whether the configuration asks for P2PDMA on ``storage``, as filesystem.storage_of says, with one key or both.

    Never for storage that NVIDIA lists no such route to, whatever its key.
    """
    requested = p2pdma_enabled(facts)
    if isinstance(storage, Unknown):
        return when_known(requested, lambda value: storage if value else False)
    row = p2pdma_key(storage)
    if row is None or not row.route:
        return False
    release = library(facts)
    if isinstance(release, str) and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return requested
    halves = (requested, _own_key(facts, row))
    if True in halves:
        return True
    return next((half for half in halves if isinstance(half, Unknown)), False)


def p2pdma_key(storage: Optional[str]) -> Optional[p2pdma.StorageKey]:
    return next((row for row in p2pdma.storage_keys() if row.storage == storage), None)


def p2pdma_enabled(facts: HostFacts) -> Maybe[bool]:
    """The first half: ``properties.use_pci_p2pdma``, or the variable over it."""
    switch = facts.environment.switch(P2PDMA_VARIABLE)
    if isinstance(switch, bool):
        return switch
    return when_known(facts.cufile.setting("properties", "use_pci_p2pdma", False), lambda value: value is True)


def _own_key(facts: HostFacts, row: p2pdma.StorageKey) -> Maybe[bool]:
    """The second half: the key of one kind of storage."""
    section, _, name = row.section.partition(".")
    values = facts.cufile.setting(section, name, {})
    return when_known(values, lambda keys: isinstance(keys, dict) and keys.get(row.key) is True)


def p2pdma_keys(facts: HostFacts, storage: str) -> Iterator[Condition]:
    """Both keys of a kind of storage, in a libcufile that has a route to it."""
    row, release = p2pdma_key(storage), library(facts)
    if row is None or release is None:
        return
    older = when_known(release, lambda version: numbers(version) < p2pdma.OWN_KEYS_SINCE)
    since = ".".join(str(number) for number in row.since)
    what = f"libcufile {release} has no P2PDMA mode for this kind of storage ({storage}): {since} is the first"
    cause = Cause("cufile.no-p2pdma", what, f"install libcufile {since} or newer", (f"libcufile: {release}",))
    if storage != "nvme":
        yield Condition(when_known(release, lambda version: numbers(version) >= row.since), cause)
    if older is True:
        return
    halves = {p2pdma.GLOBAL: p2pdma_enabled(facts), row.name: _own_key(facts, row)}
    words = " and ".join(name for name, value in halves.items() if value is False)
    what = f"P2PDMA on this storage needs two keys of cufile.json, and {words} isn't true"
    evidence = tuple(f"{CUFILE}: {name} is {_shown(value)}" for name, value in halves.items())
    if isinstance(facts.environment.switch(P2PDMA_VARIABLE), bool):
        evidence = (*quote.variable(facts.environment.variables[P2PDMA_VARIABLE]), evidence[1])
    cause = Cause("cufile.p2pdma-half-set", what, f"set {words} to true", evidence, reference.PARAMETERS)
    if isinstance(older, Unknown):
        yield Condition(older, cause, suspect=bool(words))
    else:
        unknown = [value for value in halves.values() if isinstance(value, Unknown)]
        yield Condition(False if words else unknown[0] if unknown else True, cause)


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
    release = library(facts)
    error = registration_error(release) if isinstance(release, str) else f"{NEWER} ({OLDER} before libcufile 1.15)"
    return f"cuFileHandleRegister fails with {error}"


def registers_silently(facts: HostFacts) -> Tuple[Cause, ...]:
    """What goes for each file in compat mode: newer releases register it as if nothing were amiss."""
    release = library(facts)
    if not isinstance(release, str) or numbers(release) < SILENT:
        return ()
    return (listed_cause("cufile.silent-compat", (f"libcufile: {release}",)),)


@rule(USABLE, 30)
def udev(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """When a file is registered, libcufile looks up its disk in udev's database."""
    if mount is None or not isinstance(mount.device, Device):
        return
    device, container = mount.device, facts.environment.container
    evidence = (f"/run/udev/data/b{device.number}: no ID_FS_USAGE",)
    what = f"udev has no ID_FS_USAGE for {device.name}, so {registration_failure(facts)}"
    fix = "record it: udevadm trigger --subsystem-match=block; in a container, also mount the host's /run/udev"
    if isinstance(container, str):
        what += f" (this is {container})"
        fix = "start the container with the host's database, read-only: --volume /run/udev:/run/udev:ro"
    cause = Cause("udev.no-database", what, fix, evidence, reference.HANDLE_REGISTER)
    yield Condition(when_known(device.udev_usage, lambda usage: usage is not None), cause)
