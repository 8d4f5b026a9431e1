"""``gdsdeploy-host.pyz evidence|facts|validate|explain|…``: the program on the host, usable without any controller.

Exit status of validate: 0 every check passed; 30 one failed; 31 none failed, but one could not tell; 2 unusable
arguments or no expectation.  The other commands: 0 done, 2 unusable arguments.

A zipapp is compiled anew at every start, so each command imports only what it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from .io.printable import Printable

if TYPE_CHECKING:
    from .model.expectation import Expectation

OK, UNUSABLE, FAILED, UNDECIDED = 0, 2, 30, 31


class UsageError(Exception):
    """What the caller gave cannot be used; the message says what and what to do."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status; what it prints can't drive a terminal."""
    _drop_folders_of_others()
    with contextlib.redirect_stdout(Printable(sys.stdout)), contextlib.redirect_stderr(Printable(sys.stderr)):
        return _run(argv)


def _drop_folders_of_others() -> None:
    """Root, and what it starts, makes temporary files in no folder whose owner could exchange them."""
    named = [name for name in ("TMPDIR", "TEMP", "TMP") if name in os.environ]
    if named and os.geteuid() == 0:
        from .process import of_root

        for name in named:
            place = of_root(os.environ.pop(name), for_all=True)
            if place:
                os.environ[name] = place


def _run(argv: Optional[Sequence[str]]) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(words[0] if words else "")
    arguments = parser.parse_args(words)
    run = getattr(arguments, "run", None)
    if run is None:
        parser.print_help(sys.stderr)
        return UNUSABLE
    try:
        status: int = run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(f"gdsdeploy-host: {error}", file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser(verb: str) -> argparse.ArgumentParser:
    """The parser, complete for ``verb`` and with the names of the other commands."""
    from .model import expectation

    parser = argparse.ArgumentParser(prog="gdsdeploy-host.pyz", description="gdsdeploy's program on a GPU host.")
    commands = parser.add_subparsers(metavar="COMMAND")
    default = f"what the host should be; - reads it from standard input (default: {expectation.PATH})"
    for name, run, text in (
        ("hello", _hello, "say who and what answers here"),
        ("evidence", _evidence, "collect what this host's files and programs say"),
        ("facts", _facts, "say what that evidence means"),
        ("validate", _validate, "compare this host with its expectation"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument(
            "--json", action="store_true", help="print one JSON object (only validate prints anything else)"
        )
        if name != "hello":
            command.add_argument("--expectation", metavar="FILE", help=default)
        if name == "evidence":
            command.add_argument("--mount", metavar="PATH", help="also what is to be known of this mount or file")
        if name in ("facts", "validate"):
            command.add_argument(
                "--evidence", metavar="FILE", help="judge evidence that was collected before, of any host"
            )
        if name in ("evidence", "validate"):
            words = "also read from the mounts for which the expectation has a threshold under load, some seconds each"
            command.add_argument("--load", action="store_true", help=words)
        if name == "validate":
            command.add_argument("--with-evidence", action="store_true", help="put the evidence into the JSON object")
    for name, add, text in (
        ("apply", _add_apply, "make this host what a desired state says"),
        ("remove", _add_remove, "take back what was applied here"),
        ("kmod", _add_kmod, "kernel modules: audit, build, pack, install"),
        ("boot", _add_boot, "what the next boot starts, and whether one is needed"),
        ("guard", _add_guard, "which kernels may boot by default, and why not"),
        ("gate", _add_gate, "judge this boot, and keep the host out of its scheduler unless it passes"),
        ("gdscheck", _add_gdscheck, "what gdscheck -p prints, from libcufile alone"),
        ("explain", _add_explain, "why mounts do not take the direct path"),
        ("odirect", _add_odirect, "whether direct I/O on a mount bypasses the page cache, tried in a scratch file"),
        ("proof", _add_proof, "which path a read through cuFile takes, with each GPU"),
        ("peermem", _add_peermem, "nvidia-peermem: load, unload"),
        ("topology", _add_topology, "how far GPUs, disks and network adapters are from each other"),
        ("rollout", _add_rollout, "what a rollout asks of this host: snapshot, boot once, reboot, reload, space"),
        ("load", _add_load, "how fast a mount reads under load, from a scratch file"),
        ("carried", _add_carried, "whether a rendered folder is whole, and made from the lock that is meant"),
    ):
        if verb == name:
            add(commands)
        else:
            commands.add_parser(name, help=text)
    return parser


def _add_apply(commands: Any) -> None:
    from .cli.apply import add_apply

    add_apply(commands)


def _add_remove(commands: Any) -> None:
    from .cli.apply import add_remove

    add_remove(commands)


def _add_kmod(commands: Any) -> None:
    from .cli.kmod import add_parsers

    add_parsers(commands)


def _add_load(commands: Any) -> None:
    from .odirect.load import add_parser

    add_parser(commands)


def _add_carried(commands: Any) -> None:
    from .cli.carrier_check import add_parser

    add_parser(commands)


def _add_boot(commands: Any) -> None:
    from .boot import grub
    from .boot import needed as pending

    parser = commands.add_parser("boot", help="what the next boot starts, and whether one is needed")
    verbs = parser.add_subparsers(metavar="COMMAND")
    verbs.required = True
    pending.add_parser(verbs)
    grub.add_parsers(verbs)


def _add_gdscheck(commands: Any) -> None:
    from .gdscheck.live import add_parser

    add_parser(commands, _gdscheck)


def _gdscheck(arguments: argparse.Namespace) -> int:
    from .gdscheck.live import NoLibraryError, command

    try:
        return command(arguments)
    except NoLibraryError as error:
        raise UsageError(str(error)) from None


def _add_odirect(commands: Any) -> None:
    from .cli.odirect import add_parser, command

    add_parser(commands, command)


def _add_proof(commands: Any) -> None:
    from .cli.proof import add_parser, command

    add_parser(commands, command)


def _add_guard(commands: Any) -> None:
    from .cli.guard import add_parsers

    add_parsers(commands)


def _add_gate(commands: Any) -> None:
    from .cli.gate import add_parsers

    add_parsers(commands)


def _add_peermem(commands: Any) -> None:
    from .cli.peermem import add_parsers

    add_parsers(commands)


def _add_topology(commands: Any) -> None:
    from .topology.text import add_parser

    add_parser(commands, _topology)


def _add_rollout(commands: Any) -> None:
    from .cli.rollout import add_parsers

    add_parsers(commands)


def _topology(arguments: argparse.Namespace) -> int:
    from .facts import Unknown, facts_from
    from .topology import text as topology

    found = facts_from(topology.collected() if arguments.evidence is None else _saved(arguments.evidence)).topology
    if isinstance(found, Unknown):
        raise UsageError(f"the PCI functions are not known: {found.reason}")
    print(json.dumps(topology.document(found), sort_keys=True) if arguments.json else topology.text(found), end="")
    return OK


def _add_explain(commands: Any) -> None:
    from .cli.explain import add_parser

    add_parser(commands, _explain)


def _explain(arguments: argparse.Namespace) -> int:
    from .cli import explain

    try:
        if arguments.error is not None:
            explain.error(arguments.error, arguments.json)
            return OK
        mount = explain.absolute(arguments.mount)
        if arguments.evidence is None:
            evidence = explain.collected(mount, _expectation(None, needed=False))
        else:
            evidence = _saved(arguments.evidence)
        explain.answer(evidence, mount, arguments.json)
    except explain.NothingToExplainError as error:
        raise UsageError(str(error)) from None
    return OK


def _hello(_arguments: argparse.Namespace) -> int:
    uname = os.uname()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    _print({"python": version, "uid": os.geteuid(), "kernel": uname.release, "machine": uname.machine})
    return OK


def _evidence(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation, needed=False)
    if arguments.mount is not None:
        if arguments.load:
            raise UsageError("--load reads from the mounts of the expectation; it does not go with --mount")
        from .cli.explain import collected

        _print(collected(arguments.mount, expectation))
    else:
        _print(_collect(expectation, load=arguments.load))
    return OK


def _facts(arguments: argparse.Namespace) -> int:
    from . import facts

    expectation = _expectation(arguments.expectation, needed=False)
    _print(facts.as_dict(facts.facts_from(_document(arguments.evidence, expectation))))
    return OK


def _validate(arguments: argparse.Namespace) -> int:
    from . import checks, facts
    from .checks import report
    from .model.finding import FAIL, PASS, worst

    expectation = _expectation(arguments.expectation, needed=True)
    assert expectation is not None
    evidence = _document(arguments.evidence, expectation, load=arguments.load)
    found = facts.facts_from(evidence)
    findings = checks.run(found, expectation)
    if arguments.json:
        document = report.document(expectation, found, findings)
        if arguments.with_evidence:
            document["evidence"] = evidence
        _print(document)
    else:
        print(report.text(expectation, found, findings))
    verdict = worst(findings)
    return OK if verdict == PASS else FAILED if verdict == FAIL else UNDECIDED


def _document(path: Optional[str], expectation: Optional[Expectation], load: bool = False) -> Any:
    if path is None:
        return _collect(expectation, load)
    if load:
        raise UsageError("--load reads from mounts now; it does not go with --evidence, which was collected before")
    return _saved(path)


def _saved(path: str) -> Dict[str, Any]:
    from .facts.evidence_file import EvidenceFileError, one

    try:
        return one(path)
    except EvidenceFileError as error:
        raise UsageError(error.message + (f"\n{error.hint}" if error.hint else "")) from None


def _collect(expectation: Optional[Expectation], load: bool = False) -> Any:
    from .evidence import NOTHING, collect, wanted_by

    return collect(wanted_by(expectation, load) if expectation else NOTHING)


def _expectation(path: Optional[str], needed: bool) -> Optional[Expectation]:
    """The expectation at ``path``, or the host's own, which need not be there or be good unless it is ``needed``."""
    from .model.expectation import PATH

    if path is None and not os.path.exists(PATH):
        if not needed:
            return None
        raise UsageError(
            f"there is no {PATH}, so nothing is expected of this host; name one with --expectation, or have the host"
            " provisioned, which puts it there"
        )
    if path is None and not needed:
        with contextlib.suppress(UsageError):
            return _read_expectation(PATH)
        return None
    return _read_expectation(path or PATH)


def _read_expectation(path: str) -> Expectation:
    from .model.expectation import from_json

    found: Expectation = _parsed(path, "an expectation", from_json)
    return found


def _parsed(path: str, what: str, parse: Callable[[str], Any]) -> Any:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{path} is not {what}: {error}") from None


def _print(value: Any) -> None:
    print(json.dumps(value, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())
