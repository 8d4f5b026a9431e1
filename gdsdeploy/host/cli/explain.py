"""``explain`` and ``topology``: why mounts of this host, or of saved evidence, do not take the direct path."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Optional, Sequence

from ..errors import UsageError
from ..model.compat import Rule
from ..model.expectation import Expectation
from .parsers import Run, command, option


class NothingToExplainError(UsageError):
    """There is no such mount or error code; the message says what to do."""


def add_parser(commands: Any, action: Run) -> None:
    """Add ``explain`` to the host program's commands; ``action`` runs it."""
    words = "say why mounts do not take the direct path: causes in order, with evidence and fixes"
    command(
        commands,
        "explain",
        action,
        words,
        option("mount", nargs="?", metavar="MOUNT", help="this mount, or that of this file; or a process id"),
        option("--evidence", metavar="FILE", help="explain saved evidence, of any host"),
        option("--error", metavar="CODE", help="say what an error of cuFile means instead, e.g. 5027"),
        option("--log", nargs="*", metavar="FILE", help="explain pasted logs of any kind instead; - is standard input"),
    )


def add_doctor(commands: Any, action: Run) -> None:
    """Add ``doctor`` to the host program's commands; ``action`` runs it."""
    words = "one screen for a first look: versions, the path of each mount, what bounces, and what to do first"
    evidence = option("--evidence", metavar="FILE", help="diagnose saved evidence, of any host, without its processes")
    command(commands, "doctor", action, words, evidence)


def add_topology(commands: Any, action: Run) -> None:
    """Add ``topology`` to the host program's commands; ``action`` runs it."""
    words = "how far GPUs, NVMe disks and network adapters are from each other, from sysfs alone"
    evidence = option("--evidence", metavar="FILE", help="evidence that was collected before, of any host")
    command(commands, "topology", action, words, evidence)


def collect_topology() -> Any:
    """The part of this host's evidence that a topology is made of."""
    from ..evidence import NOTHING, collect

    return collect(NOTHING, only=("kernel", "gpu", "pci"))


def print_error(code: str, as_json: bool) -> None:
    """Print the entry of an error code.  Raises NothingToExplainError."""
    from ..libcufile import errors as cufile_errors

    try:
        print(json.dumps(cufile_errors.document(code)) if as_json else cufile_errors.text(code))
    except cufile_errors.UnknownCodeError as unknown:
        near = f"; did you mean {' or '.join(unknown.nearest)}?" if unknown.nearest else ""
        raise NothingToExplainError(unknown.message + near) from None


def collect_evidence(mount: Optional[str], expectation: Optional[Expectation]) -> Any:
    """The evidence of this host, with that about ``mount``; no scratch file is made for it."""
    from ..evidence import NOTHING, collect, request_for

    scope = replace(request_for(expectation), scratch=()) if expectation else NOTHING
    return collect(replace(scope, mounts=(*scope.mounts, mount)) if mount else scope)


def print_explanation(evidence: Any, mount: Optional[str], rules: Sequence[Rule], as_json: bool) -> None:
    """Print the explanation.  rules: the fleet's own.  Raises NothingToExplainError."""
    from ..explain import NoSuchMountError, as_document, explain, render
    from ..facts import facts_from
    from ..subjects.stack import stack

    facts = facts_from(evidence).but(rules=tuple(rules))
    try:
        answer = explain(facts, stack(facts), mount or "")
    except NoSuchMountError as reason:
        raise NothingToExplainError(str(reason)) from None
    print(json.dumps(as_document(answer), sort_keys=True) if as_json else render(answer))


def print_diagnosis(evidence: Any, expectation: Optional[Expectation], as_json: bool) -> str:
    """Print what a first look shows; returns the verdict.  evidence: None: this host's is collected."""
    from .. import doctor
    from ..facts import facts_from

    rules = tuple(expectation.rules if expectation else ())
    if evidence is None:
        facts, processes = doctor.examine(lambda: facts_from(collect_evidence(None, expectation)))
    else:
        facts, processes = facts_from(evidence), None
    diagnosis = doctor.diagnose(facts.but(rules=rules), processes)
    print(json.dumps(doctor.as_document(diagnosis), sort_keys=True) if as_json else doctor.render(diagnosis))
    return diagnosis.verdict


def print_process(evidence: Any, pid: int, as_json: bool) -> None:
    """Print why a process takes the path that it takes.  Raises NothingToExplainError."""
    from ..explain import render_process
    from ..facts import facts_from
    from ..subjects import programs

    try:
        answer = programs.explain_process(facts_from(evidence), pid)
    except programs.NoSuchProcessError as reason:
        raise NothingToExplainError(str(reason)) from None
    print(json.dumps(programs.process_document(answer), sort_keys=True) if as_json else render_process(answer))


def print_logs(names: Sequence[str], as_json: bool) -> bool:
    """Print what the files show; False: nothing in them was recognised.

    names: no name stands for standard input.  Raises UsageError.
    """
    from ..logs.judge import STDIN, answer_to, as_document, read_texts, render

    answer = answer_to(read_texts(names or (STDIN,)))
    print(json.dumps(as_document(answer), sort_keys=True) if as_json else render(answer))
    return answer.recognised
