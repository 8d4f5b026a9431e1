"""The programs and libraries that use this stack, and what each needs of a host: data/consumers.json."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, Tuple

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
    return {row["name"]: _consumer(needs, **row) for row in rows}


def variable_names() -> Tuple[str, ...]:
    """Names of the consumers' variables; their values are words or numbers."""
    needs = (need for consumer in consumers().values() for need in consumer.needs)
    return tuple(sorted({need.variable for need in needs if need.variable}))


def _consumer(by_id: Mapping[str, Mapping[str, Any]], *, source: str, needs: Iterable[Any], **fields: Any) -> Consumer:
    """A row.  A need without a field has that of the need that ``like`` names, else the consumer's source."""
    rows = [{"source": source, **by_id.get(need.get("like", ""), {}), **need} for need in needs]
    for row in rows:
        row.pop("like", None)
    return Consumer(needs=tuple(Need(**row) for row in rows), **fields)
