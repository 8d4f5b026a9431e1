"""libcufile's configuration, its variables and its own version: what it takes, and what forces compat mode."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

from ..facts import HostFacts, Maybe, Unknown
from ..facts.cufile import REJECTED, refusal
from ..facts.environment import Variable
from ..facts.storage import Mount
from ..facts.unknown import test
from ..gdscheck import Report
from . import quote, reference
from .blocks import stack
from .cause import Cause, Condition, numbers
from .rules import DIRECT, NOTES, USABLE, rule

#: What CUFILE_ALLOW_COMPAT_MODE is read by: releases up to this one.
LAST_WITH_ALLOW_COMPAT = (1, 16)
#: Smallest piece of I/O that a filesystem's direct path takes: section and key below ``fs``.
MINIMUM = "posix_gds_min_kb"


@rule(USABLE, 10)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """Without these every cuFile call fails."""
    opened = facts.cufile.opened
    lines = tuple(refusal(opened)) if not isinstance(opened, Unknown) else ()
    yield Condition(
        test(facts.cufile.acceptance, lambda acceptance: acceptance != REJECTED),
        Cause(
            "cufile.refused",
            "libcufile refuses its configuration",
            "repair the value and see the check cufile.accepted",
            quote.placed("libcufile", lines),
            reference.PARAMETERS,
        ),
    )


@rule(DIRECT, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """What the configuration must not say for either direct path."""
    yield Condition(
        test(facts.cufile.setting("properties", "force_compat_mode", False), lambda forced: forced is not True),
        Cause(
            "cufile.force-compat",
            "cufile.json forces compat mode",
            "set properties.force_compat_mode to false",
            quote.setting(facts, "properties", "force_compat_mode"),
            reference.PARAMETERS,
        ),
    )
    yield from _variables(facts)
    for key in ("vanilla_posix_io_mode", "posix_io_mode"):
        if facts.cufile.setting("properties", key, False) is True:
            what = f"cufile.json sets properties.{key}, and what that leaves of the direct path is not known"
            evidence = quote.setting(facts, "properties", key)
            cause = Cause("cufile.posix-io", what, f"take properties.{key} out", evidence, reference.PARAMETERS)
            yield Condition(Unknown(what), cause, suspect=True)
    if mount is not None:
        yield from _denied(facts, mount)


def _variables(facts: HostFacts) -> Iterator[Condition]:
    forced = facts.environment.variable("CUFILE_FORCE_COMPAT_MODE")
    yield Condition(
        test(forced, lambda found: found is None or found.value != "true"),
        _by_variable("cufile.variable-forces-compat", forced, "{} forces compat mode", "take it out of {}"),
    )
    overlay = facts.environment.variable("CUFILE_ENV_PATH_JSON")
    if isinstance(overlay, Variable):
        what = "{} lays another configuration over /etc/cufile.json, which was not judged"
        fix = "judge that file, or take the variable out of {}"
        yield Condition(
            Unknown(what.format(overlay.name)),
            _by_variable("cufile.variable-overlays", overlay, what, fix),
            suspect=True,
        )


def _by_variable(ident: str, found: Maybe[Optional[Variable]], what: str, fix: str) -> Optional[Cause]:
    if not isinstance(found, Variable):
        return None
    evidence = quote.placed(found.place, [found.line])
    return Cause(ident, what.format(found.name), fix.format(found.place), evidence, reference.VARIABLES)


def _denied(facts: HostFacts, mount: Mount) -> Iterator[Condition]:
    devices = stack(mount)
    kinds = tuple(sorted({item.kind for item in devices}))
    names = tuple("/dev/" + item.name for item in devices)
    listed_as = (
        ("filesystems", (mount.filesystem,)),
        ("mounts", (mount.mount_point,)),
        ("drivers", kinds),
        ("devices", names),
    )
    for key, values in listed_as:
        listed = facts.cufile.setting("denylist", key, [])
        hit = [item for item in values if item in _list(listed)]
        what = "denylist.{} of cufile.json names {}".format(key, " and ".join(hit))
        evidence = quote.setting(facts, "denylist", key)
        cause = Cause("cufile.denied", what, "take it out of the denylist", evidence, reference.PARAMETERS)
        yield Condition(listed if isinstance(listed, Unknown) else not hit, cause)


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def library(facts: HostFacts) -> Maybe[Optional[str]]:
    """The release of libcufile: by the name of its file, else as it logs it; None where none is installed."""
    logged = facts.gdscheck.logged
    if isinstance(facts.cufile.library, Unknown) and isinstance(logged, Report) and logged.release:
        return logged.release
    return facts.cufile.library


def asks_for_p2pdma(facts: HostFacts) -> Maybe[bool]:
    asked = facts.cufile.setting("properties", "use_pci_p2pdma", False)
    found = facts.environment.variables.get("CUFILE_USE_PCIP2PDMA")
    return True if found is not None and found.value == "true" else test(asked, lambda value: value is True)


def fallback(facts: HostFacts) -> Tuple[Maybe[bool], Optional[Cause]]:
    """Whether compat mode may take the place of a direct path, and the cause if not."""
    allowed = facts.cufile.setting("properties", "allow_compat_mode", True)
    forced = facts.cufile.setting("properties", "force_compat_mode", False)
    for value in (allowed, forced):
        if isinstance(value, Unknown):
            return value, None
    fix = "remove the causes before, or set properties.allow_compat_mode to true"
    variable = facts.environment.variables.get("CUFILE_ALLOW_COMPAT_MODE")
    release = library(facts)
    reads = isinstance(release, str) and numbers(release) <= LAST_WITH_ALLOW_COMPAT
    if variable is not None and variable.value == "false" and reads and forced is not True:
        return False, _by_variable("cufile.variable-no-compat", variable, "{} allows no compat mode", fix)
    if allowed is True or forced is True:
        return True, None
    evidence = quote.setting(facts, "properties", "allow_compat_mode")
    return False, Cause("cufile.no-compat", "cufile.json allows no compat mode", fix, evidence, reference.PARAMETERS)


@rule(NOTES, 10)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """What keeps some I/O of a direct path from it."""
    section = facts.cufile.setting("fs", mount.filesystem, {})
    least = section.get(MINIMUM) if isinstance(section, dict) else None
    if isinstance(least, int) and least > 0:
        what = f"I/O of less than {least} KiB takes compat mode: fs.{mount.filesystem}.{MINIMUM}"
        evidence = quote.setting(facts, "fs", MINIMUM)
        yield Cause("cufile.small-io", what, "lower that key of cufile.json", evidence, reference.PARAMETERS)
    if facts.cufile.setting("properties", "gds_rdma_write_support", True) is False:
        evidence = quote.setting(facts, "properties", "gds_rdma_write_support")
        what = "writes over RDMA take compat mode: properties.gds_rdma_write_support is false"
        yield Cause("cufile.no-rdma-writes", what, "set it to true", evidence, reference.COMPATIBILITY)
