"""The keys of cufile.json that ask for P2PDMA: one for the mode and, from libcufile 1.16 on, one for each storage."""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts, Maybe, Unknown
from ..facts.unknown import when_known
from ..libcufile import p2pdma
from ..paths import CUFILE
from . import quote, reference
from .cause import Cause, Condition, numbers
from .config import library

#: The variable that libcufile applies over ``properties.use_pci_p2pdma``, from 1.13 on.
VARIABLE = "CUFILE_USE_PCIP2PDMA"


def requests(facts: HostFacts, storage: Maybe[Optional[str]]) -> Maybe[bool]:
    """Whether the configuration asks for P2PDMA on ``storage`` (see :func:`.blocks.storage_of`), with one key or both.

    Never for storage that NVIDIA lists no such route to, whatever its key.
    """
    requested = enabled(facts)
    if isinstance(storage, Unknown):
        return when_known(requested, lambda value: storage if value else False)
    row = key_of(storage)
    if row is None or not row.route:
        return False
    release = library(facts)
    if isinstance(release, str) and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return requested
    halves = (requested, _own_key(facts, row))
    if True in halves:
        return True
    return next((half for half in halves if isinstance(half, Unknown)), False)


def key_of(storage: Optional[str]) -> Optional[p2pdma.StorageKey]:
    return next((row for row in p2pdma.storage_keys() if row.storage == storage), None)


def enabled(facts: HostFacts) -> Maybe[bool]:
    """The first half: ``properties.use_pci_p2pdma``, or the variable over it."""
    switch = facts.environment.switch(VARIABLE)
    if isinstance(switch, bool):
        return switch
    return when_known(facts.cufile.setting("properties", "use_pci_p2pdma", False), lambda value: value is True)


def _own_key(facts: HostFacts, row: p2pdma.StorageKey) -> Maybe[bool]:
    """The second half: the key of one kind of storage."""
    section, _, name = row.section.partition(".")
    values = facts.cufile.setting(section, name, {})
    return when_known(values, lambda keys: isinstance(keys, dict) and keys.get(row.key) is True)


def conditions(facts: HostFacts, storage: str) -> Iterator[Condition]:
    """Both keys of a kind of storage, in a libcufile that has a route to it."""
    row, release = key_of(storage), library(facts)
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
    halves = {p2pdma.GLOBAL: enabled(facts), row.name: _own_key(facts, row)}
    words = " and ".join(name for name, value in halves.items() if value is False)
    what = f"P2PDMA on this storage needs two keys of cufile.json, and {words} isn't true"
    evidence = tuple(f"{CUFILE}: {name} is {_shown(value)}" for name, value in halves.items())
    if isinstance(facts.environment.switch(VARIABLE), bool):
        evidence = (*quote.variable(facts.environment.variables[VARIABLE]), evidence[1])
    cause = Cause("cufile.p2pdma-half-set", what, f"set {words} to true", evidence, reference.PARAMETERS)
    if isinstance(older, Unknown):
        yield Condition(older, cause, suspect=bool(words))
    else:
        unknown = [value for value in halves.values() if isinstance(value, Unknown)]
        yield Condition(False if words else unknown[0] if unknown else True, cause)


def _shown(value: Maybe[bool]) -> str:
    return "not known" if isinstance(value, Unknown) else "true" if value else "not true"
