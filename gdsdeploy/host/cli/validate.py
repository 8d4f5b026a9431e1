"""``hello``, ``evidence``, ``facts`` and ``validate``: what this host is, and whether that is what is expected.

What ``explain`` and its like need as well: evidence, collected or saved, and the host's expectation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional

from .. import trail
from ..errors import UsageError
from ..paths import EXPECTATION
from .parsers import FAILED, OK, PROGRAM, UNDECIDED, option

if TYPE_CHECKING:
    from ..evidence import EvidenceRequest
    from ..model.expectation import Expectation

_JSON = option("--json", action="store_true", help="print one JSON object (only validate prints anything else)")
_EXPECTATION = option(
    "--expectation",
    metavar="FILE",
    help=f"the host's expected state; - reads it from standard input (default: {EXPECTATION})",
)
_SAVED = option("--evidence", metavar="FILE", help="use saved evidence, of any host")
_LOAD = option(
    "--load",
    action="store_true",
    help="also read from mounts whose expectation has a rate under load; takes some seconds each",
)
_FRESH = option(
    "--fresh", action="store_true", help="open libcufile also where nothing has changed since its last answer"
)


@PROGRAM.command(
    "hello",
    "print Python's version, the user's id, the kernel, the machine and its identity",
    _JSON,
    with_json=False,
)
def _hello(_arguments: argparse.Namespace) -> int:
    from ..boot.present import identity

    uname = os.uname()
    version = ".".join(map(str, sys.version_info[:3]))
    document = {"python": version, "uid": os.geteuid(), "kernel": uname.release, "machine": uname.machine}
    _print({**document, **identity()})
    return OK


@PROGRAM.command(
    "evidence",
    "collect what this host's files and programs say",
    _JSON,
    _EXPECTATION,
    option("--mount", metavar="PATH", help="also collect evidence about this mount or file"),
    option(
        "--sources", action="store_true", help="also collect this host's package repositories and their public keys"
    ),
    option("--trail", action="store_true", help="also collect the end of the audit trail"),
    option("--nvlink", action="store_true", help="also ask nvidia-smi for the NVLinks between GPUs"),
    _LOAD,
    _FRESH,
    with_json=False,
)
def _evidence(arguments: argparse.Namespace) -> int:
    from ..evidence import collect

    expectation = read_expectation(arguments.expectation)
    if arguments.mount is None:
        request = _request(expectation, arguments.load, arguments.fresh)
        more = {name: getattr(arguments, name) for name in ("sources", "trail", "nvlink")}
        _print(collect(request._replace(**more)))
    elif arguments.load:
        raise UsageError("--load reads from the mounts of the expectation; it does not go with --mount")
    else:
        _print(collect_evidence(arguments.mount, expectation))
    return OK


@PROGRAM.command("facts", "print the facts that the evidence yields", _JSON, _EXPECTATION, _SAVED, with_json=False)
def _facts(arguments: argparse.Namespace) -> int:
    from .. import facts

    expectation = read_expectation(arguments.expectation)
    _print(facts.as_dict(facts.facts_from(_document(arguments.evidence, expectation))))
    return OK


@PROGRAM.command(
    "validate",
    "compare this host with its expectation",
    _JSON,
    _EXPECTATION,
    _SAVED,
    _LOAD,
    _FRESH,
    option("--with-evidence", action="store_true", help="put the evidence into the JSON object"),
    with_json=False,
)
def _validate(arguments: argparse.Namespace) -> int:
    from .. import checks, facts
    from ..model.expectation import NoExpectation
    from ..model.finding import worst

    own = read_expectation(arguments.expectation, needed=True)
    evidence = _document(arguments.evidence, own, arguments.load, arguments.fresh)
    host_facts, expectation = facts.facts_from(evidence), own or NoExpectation()
    findings = checks.run(host_facts, expectation)
    if arguments.json:
        document = checks.document(expectation, host_facts, findings)
        if arguments.with_evidence:
            document["evidence"] = evidence
        _print(document)
    else:
        print(checks.text(expectation, host_facts, findings))
    return status_of(worst(findings))


def status_of(verdict: str) -> int:
    """The exit status of a verdict."""
    from ..model.finding import FAIL, PASS

    return OK if verdict == PASS else FAILED if verdict == FAIL else UNDECIDED


def _document(path: Optional[str], expectation: Optional[Expectation], load: bool = False, fresh: bool = False) -> Any:
    if load and expectation is None:
        raise UsageError(f"--load reads from the mounts of an expectation, and there is no {EXPECTATION}")
    if path is None:
        from ..evidence import collect

        return collect(_request(expectation, load, fresh))
    if load:
        raise UsageError("--load reads from mounts now; it does not go with --evidence, which was collected before")
    if fresh:
        raise UsageError("--fresh opens libcufile now; it does not go with --evidence, which was collected before")
    return read_evidence(path)


def read_evidence(path: str) -> Dict[str, Any]:
    """Saved evidence.  Raises UsageError."""
    from ..facts.document import EvidenceFileError, one

    try:
        return one(path)
    except EvidenceFileError as error:
        raise UsageError(error.message + (f"\n{error.hint}" if error.hint else "")) from None


def _request(expectation: Optional[Expectation], load: bool, fresh: bool) -> EvidenceRequest:
    from ..evidence import NOTHING, request_for

    scope = request_for(expectation, load) if expectation else NOTHING
    return scope._replace(fresh=fresh)


def collect_evidence(mount: Optional[str], expectation: Optional[Expectation]) -> Any:
    """The evidence of this host, with that about ``mount``, collected now; no scratch file is made for it."""
    from ..evidence import collect

    scope = _request(expectation, load=False, fresh=True)._replace(scratch=())
    return collect(scope._replace(mounts=(*scope.mounts, mount)) if mount else scope)


def read_expectation(path: Optional[str] = None, needed: bool = False) -> Optional[Expectation]:
    """The expectation at ``path``, or the host's own, None: there is none.

    needed: the host's own is an error where it can't be used.  Raises UsageError.
    """
    if path is None and not os.path.lexists(EXPECTATION):
        return None
    if path is None and not needed:
        with contextlib.suppress(UsageError):
            return _read_expectation(EXPECTATION)
        return None
    return _read_expectation(path or EXPECTATION)


def _read_expectation(path: str) -> Expectation:
    from ..model.expectation import from_json

    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        expectation = from_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not an expectation: {error}") from None
    trail.note(desired=text.encode(), lock=expectation.lock_digest, serial=expectation.lock_serial)
    return expectation


def _print(value: Any) -> None:
    print(json.dumps(value, sort_keys=True))
