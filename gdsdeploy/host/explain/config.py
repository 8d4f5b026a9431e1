"""libcufile's configuration, its variables and its own version: what forces or forbids compat mode."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.cufile import REJECTED, refusal
from ..facts.environment import Variable
from ..facts.storage import Mount
from ..facts.unknown import when_known
from ..gdscheck import Report
from ..paths import CUFILE
from . import quote, reference
from .blocks import stack
from .cause import Cause, Condition, numbers
from .rules import DIRECT, NOTES, USABLE, rule

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


@rule(DIRECT, 20)
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
    devices = stack(mount)
    values_by_key = {
        "filesystems": [mount.filesystem],
        "mounts": [mount.mount_point],
        "drivers": sorted({device.kind for device in devices}),
        "devices": ["/dev/" + device.name for device in devices],
    }
    for key, values in values_by_key.items():
        denied = facts.cufile.setting("denylist", key, [])
        matches = [value for value in values if value in _list(denied)]
        shown = " and ".join(matches)
        what = f"denylist.{key} in cufile.json names {shown}"
        evidence = quote.setting(facts, "denylist", key)
        cause = Cause("cufile.denied", what, f"remove {shown} from denylist.{key}", evidence, reference.PARAMETERS)
        yield Condition(denied if isinstance(denied, Unknown) else not matches, cause)


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


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
