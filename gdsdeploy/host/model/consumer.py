"""The programs and libraries that use this stack, and what each needs of a host: data/consumers.json."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from .. import data

#: Kinds of needs; explain/consumers.py judges them.  ADVICE can't be judged from evidence.
VARIABLE, CONFIG, LIBRARY, MECHANISM, UDEV, ADVICE = "variable", "config", "library", "mechanism", "udev", "advice"
KINDS = (VARIABLE, CONFIG, LIBRARY, MECHANISM, UDEV, ADVICE)


@dataclass(frozen=True)
class Need:
    """One requirement of a consumer, with the document that states it."""

    id: str
    kind: str
    what: str
    fix: str
    source: str
    #: of a variable: its name, and the values (in capitals) with which it rules out the direct path
    variable: str = ""
    refused: Tuple[str, ...] = ()
    #: of a mechanism: names as in explain/mechanisms.py, of which one must be usable
    any_of: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Consumer:
    """``packages``: Python distributions that install it, as in the name of a ``.dist-info`` folder."""

    name: str
    title: str
    does: str
    packages: Tuple[str, ...]
    needs: Tuple[Need, ...]


@functools.lru_cache(maxsize=1)
def consumers() -> Dict[str, Consumer]:
    """Every consumer by its name, in the order of the table."""
    rows: Tuple[Dict[str, Any], ...] = data.rows("consumers", dict)
    needs = {fields["id"]: fields for row in rows for fields in row["needs"]}
    made = (Consumer(**{**row, "needs": tuple(_need(fields, needs) for fields in row["needs"])}) for row in rows)
    return {consumer.name: consumer for consumer in made}


def variable_names() -> Tuple[str, ...]:
    """Names of the consumers' variables; their values are words or numbers."""
    needs = (need for consumer in consumers().values() for need in consumer.needs)
    return tuple(sorted({need.variable for need in needs if need.variable}))


def _need(fields: Mapping[str, Any], needs: Mapping[str, Mapping[str, Any]]) -> Need:
    """A row of the table; ``like`` names another need, whose fields count where this one doesn't have them."""
    merged = {**needs.get(fields.get("like", ""), {}), **fields}
    merged.pop("like", None)
    return Need(**merged)
