"""``explain``, ``doctor``, ``topology``: why mounts of this host, or of saved evidence, do not take the direct path."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any, Optional

from ..errors import UndecidedError, UsageError
from .parsers import OK, PROGRAM, UNDECIDED, option
from .validate import collect_evidence, read_evidence, read_expectation, status_of

if TYPE_CHECKING:
    from ..model.expectation import Expectation


@PROGRAM.command(
    "explain",
    "say why mounts do not take the direct path: causes in order, with evidence and fixes",
    option("mount", nargs="?", metavar="MOUNT", help="this mount, or that of this file; or a process id"),
    option("--evidence", metavar="FILE", help="explain saved evidence, of any host"),
    option("--error", metavar="CODE", help="say what an error of cuFile means instead, e.g. 5027"),
    option("--log", nargs="*", metavar="FILE", help="explain pasted logs of any kind instead; - is standard input"),
)
def _explain(arguments: argparse.Namespace) -> int:
    if arguments.error is not None:
        _print_error(arguments.error, arguments.json)
    elif arguments.log is not None:
        return _print_logs(arguments)
    elif (arguments.mount or "").isdecimal():
        _print_process(arguments)
    else:
        _print_explanation(arguments, os.path.abspath(arguments.mount) if arguments.mount else None)
    return OK


@PROGRAM.command(
    "doctor",
    "one screen for a first look: versions, the path of each mount, what bounces, and what to do first",
    option("--evidence", metavar="FILE", help="diagnose saved evidence, of any host, without its processes"),
)
def _doctor(arguments: argparse.Namespace) -> int:
    from .. import doctor
    from ..facts import facts_from

    if arguments.evidence is None:
        expectation = read_expectation()
        facts, processes = doctor.examine(lambda: facts_from(collect_evidence(None, expectation)))
        diagnosis = doctor.diagnose(facts.but(rules=_rules(expectation)), processes)
    else:
        diagnosis = doctor.diagnose(facts_from(read_evidence(arguments.evidence)).but(rules=()))
    print(json.dumps(doctor.as_document(diagnosis), sort_keys=True) if arguments.json else doctor.render(diagnosis))
    return status_of(diagnosis.verdict)


@PROGRAM.command(
    "topology",
    "how far GPUs, NVMe disks and network adapters are from each other, and the NVLinks between GPUs",
    option("--evidence", metavar="FILE", help="evidence that was collected before, of any host"),
)
def _topology(arguments: argparse.Namespace) -> int:
    from ..evidence import EvidenceRequest, collect
    from ..facts import facts_from
    from ..subjects import trees

    saved, parts = arguments.evidence, ("kernel", "gpu", "pci")
    evidence = collect(EvidenceRequest(nvlink=True), only=parts) if saved is None else read_evidence(saved)
    try:
        tree = facts_from(evidence).topology
    except UndecidedError as error:
        raise UsageError(f"the PCI functions are not known: {error}") from None
    print(json.dumps(trees.document(tree), sort_keys=True) if arguments.json else trees.text(tree), end="")
    return OK


def _rules(expectation: Optional[Expectation]) -> Any:
    """The fleet's own."""
    return tuple(expectation.rules) if expectation else ()


def _print_error(code: str, as_json: bool) -> None:
    """Print the entry of an error code.  Raises UsageError."""
    from ..libcufile import errors as cufile_errors

    try:
        print(json.dumps(cufile_errors.document(code)) if as_json else cufile_errors.text(code))
    except cufile_errors.UnknownCodeError as unknown:
        near = f"; did you mean {' or '.join(unknown.nearest)}?" if unknown.nearest else ""
        raise UsageError(unknown.message + near) from None


def _print_explanation(arguments: argparse.Namespace, mount: Optional[str]) -> None:
    """Print the explanation.  Raises UsageError."""
    from ..explain import NoSuchMountError, as_document, explain, render
    from ..facts import facts_from
    from ..subjects.stack import stack

    expectation = read_expectation() if arguments.evidence is None else None
    facts = facts_from(_evidence(arguments, mount, expectation)).but(rules=_rules(expectation))
    try:
        answer = explain(facts, stack(facts), mount or "")
    except NoSuchMountError as reason:
        raise UsageError(str(reason)) from None
    print(json.dumps(as_document(answer), sort_keys=True) if arguments.json else render(answer))


def _print_process(arguments: argparse.Namespace) -> None:
    """Print why a process takes the path that it takes.  Raises UsageError."""
    from ..explain import render_process
    from ..facts import facts_from
    from ..subjects import programs

    facts = facts_from(_evidence(arguments, None, read_expectation() if arguments.evidence is None else None))
    try:
        answer = programs.explain_process(facts, int(arguments.mount[:10]))
    except programs.NoSuchProcessError as reason:
        raise UsageError(str(reason)) from None
    print(json.dumps(programs.process_document(answer), sort_keys=True) if arguments.json else render_process(answer))


def _evidence(arguments: argparse.Namespace, mount: Optional[str], expectation: Optional[Expectation]) -> Any:
    return collect_evidence(mount, expectation) if arguments.evidence is None else read_evidence(arguments.evidence)


def _print_logs(arguments: argparse.Namespace) -> int:
    """Print what the files show, or without a name standard input.  Raises UsageError."""
    from ..logs.judge import STDIN, answer_to, as_document, read_texts, render

    names = [*arguments.log, *([arguments.mount] if arguments.mount else [])]
    answer = answer_to(read_texts(names or (STDIN,)))
    print(json.dumps(as_document(answer), sort_keys=True) if arguments.json else render(answer))
    return OK if answer.recognised else UNDECIDED
