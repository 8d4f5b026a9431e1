"""Saved evidence for the verbs with ``--evidence FILE``; :mod:`gdsdeploy.host.facts.document` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdsdeploy.errors import GdsError
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.host.facts.document import EvidenceFileError, one, read


def of_hosts(file: Path) -> dict[str, HostFacts]:
    """Host → its facts; UNNAMED where the file is of one host and does not say which.  Raises GdsError."""
    with evidence_errors():
        return {host: facts_from(document) for host, document in read(str(file)).items()}


def of_host(file: Path, host: str = "") -> HostFacts:
    """The facts of one host.  host: which one of a bundle with several.  Raises GdsError."""
    with evidence_errors():
        return facts_from(one(str(file), host))


@contextmanager
def evidence_errors() -> Iterator[None]:
    """Turn an EvidenceFileError into a GdsError with the same words."""
    try:
        yield
    except EvidenceFileError as error:
        raise GdsError(error.message, hint=error.hint or None) from None
