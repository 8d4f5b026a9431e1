"""``gdsdeploy-host.pyz explain``: why the mounts of this host, or of saved evidence, do not take the direct path."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from typing import Any, Callable, Optional

from ..model.expectation import Expectation


class NothingToExplainError(Exception):
    """What was asked about is not there; the message says what and what to do."""


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``explain`` to the host program's commands; ``action`` runs it."""
    words = "say why mounts do not take the direct path: causes in order, with evidence and fixes"
    parser = commands.add_parser("explain", help=words, description=words)
    parser.add_argument("mount", nargs="?", metavar="MOUNT", help="this mount, or the one that this file lies on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--evidence", metavar="FILE", help="explain evidence that was collected before, of any host")
    parser.add_argument("--error", metavar="CODE", help="say what an error of cuFile means instead, e.g. 5027")
    parser.set_defaults(run=action)


def error(code: str, as_json: bool) -> None:
    """Print the entry of an error code.  Raises NothingToExplainError."""
    from .. import cufile_errors

    try:
        print(json.dumps(cufile_errors.document(code)) if as_json else cufile_errors.text(code))
    except cufile_errors.UnknownCodeError as unknown:
        near = "; did you mean {}?".format(" or ".join(unknown.nearest)) if unknown.nearest else ""
        raise NothingToExplainError(unknown.message + near) from None


def collected(mount: Optional[str], expectation: Optional[Expectation]) -> Any:
    """The evidence of this host, with what is to be known of ``mount``; no scratch file is made for it."""
    from ..evidence import NOTHING, collect, wanted_by

    wanted = replace(wanted_by(expectation), scratch=()) if expectation else NOTHING
    return collect(replace(wanted, mounts=(*wanted.mounts, mount)) if mount else wanted)


def answer(evidence: Any, mount: Optional[str], as_json: bool) -> None:
    """Print the explanation.  Raises NothingToExplainError."""
    from ..explain import NoSuchMountError, as_document, explain
    from ..explain.text import render
    from ..facts import facts_from
    from ..facts.stack import stack

    facts = facts_from(evidence)
    try:
        found = explain(facts, stack(facts), mount or "")
    except NoSuchMountError as reason:
        raise NothingToExplainError(str(reason)) from None
    print(json.dumps(as_document(found), sort_keys=True) if as_json else render(found))


def absolute(mount: Optional[str]) -> Optional[str]:
    return os.path.abspath(mount) if mount else None
