"""Running programs of which a test says what is known."""

from __future__ import annotations

from typing import Any

from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.subjects.cufile_json import CufileFacts
from gdsdeploy.host.subjects.processes import Program


def running(**facts: Any) -> Program:
    """A process with these facts, and without any other record."""
    nothing = Document({})
    return Program(nothing, CufileFacts(nothing), {}).but(**facts)
