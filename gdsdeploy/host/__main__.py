"""``gdsdeploy-host.pyz evidence|facts|validate|…``: the program on the host, usable without any controller.

Exit status of validate: 0 every check passed; 30 one failed; 31 none failed, but one could not tell; 2 unusable
arguments or no expectation.  The other commands: 0 done, 2 unusable arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from typing import Any, Optional, Sequence

from . import checks, facts, pending, report
from .evidence import NOTHING, collect, wanted_by
from .expectation import PATH, Expectation, from_json
from .finding import FAIL, PASS, worst
from .kmod.cli import add_parsers as add_kmod

OK, UNUSABLE, FAILED, UNDECIDED = 0, 2, 30, 31


class UsageError(Exception):
    """What the caller gave cannot be used; the message says what and what to do."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    run = getattr(arguments, "run", None) or getattr(arguments, "function", None)
    if run is None:
        parser.print_help(sys.stderr)
        return UNUSABLE
    try:
        status: int = run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print("gdsdeploy-host: {}".format(error), file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gdsdeploy-host.pyz", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND")
    _add(commands, "hello", _hello, "say who and what answers here, as JSON")
    _common(_add(commands, "evidence", _evidence, "collect what this host's files and programs say, as JSON"))
    facts_parser = _common(_add(commands, "facts", _facts, "print what that evidence means, as JSON"))
    _replay(facts_parser)
    validate = _common(_add(commands, "validate", _validate, "compare this host with its expectation"))
    _replay(validate)
    validate.add_argument("--with-evidence", action="store_true", help="put the evidence into the JSON document")
    add_kmod(commands)
    _add_boot(commands)
    return parser


def _add(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--expectation",
        metavar="FILE",
        help="what the host should be; - reads it from standard input (default: {})".format(PATH),
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", metavar="FILE", help="judge evidence that was collected before, of any host")


def _add_boot(commands: Any) -> None:
    boot = commands.add_parser("boot", help="what the next boot does")
    verbs = boot.add_subparsers(dest="command", metavar="COMMAND")
    verbs.required = True
    pending.add_parser(verbs)


def _hello(_arguments: argparse.Namespace) -> int:
    uname = os.uname()
    _print(
        {"python": platform.python_version(), "uid": os.geteuid(), "kernel": uname.release, "machine": uname.machine}
    )
    return OK


def _evidence(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation, needed=False)
    _print(collect(wanted_by(expectation) if expectation else NOTHING))
    return OK


def _facts(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation, needed=False)
    _print(facts.as_dict(facts.facts_from(_document(arguments.evidence, expectation))))
    return OK


def _validate(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation, needed=True)
    assert expectation is not None
    evidence = _document(arguments.evidence, expectation)
    found = facts.facts_from(evidence)
    findings = checks.run(found, expectation)
    verdict = worst(findings)
    if arguments.json:
        document = report.document(expectation, found, findings)
        if arguments.with_evidence:
            document["evidence"] = evidence
        _print(document)
    else:
        print(report.text(expectation, found, findings))
    return OK if verdict == PASS else FAILED if verdict == FAIL else UNDECIDED


def _document(path: Optional[str], expectation: Optional[Expectation]) -> Any:
    if path is None:
        return collect(wanted_by(expectation) if expectation else NOTHING)
    try:
        return json.loads(_read(path, "evidence"))
    except ValueError as error:
        raise UsageError("{} is not evidence: {}".format(path, error)) from None


def _expectation(path: Optional[str], needed: bool) -> Optional[Expectation]:
    if path is None and not os.path.exists(PATH):
        if not needed:
            return None
        raise UsageError(
            "there is no {}, so nothing is expected of this host; name one with --expectation, or have the host"
            " provisioned, which puts it there".format(PATH)
        )
    chosen = path or PATH
    try:
        return from_json(_read(chosen, "the expectation"))
    except ValueError as error:
        raise UsageError("{} is no expectation: {}".format(chosen, error)) from None


def _read(path: str, what: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError("cannot read {} from {}: {}".format(what, path, error.strerror)) from None


def _print(value: Any) -> None:
    print(json.dumps(value, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())
