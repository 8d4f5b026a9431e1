"""``gdsdeploy-host.pyz evidence|facts|validate|explain|…``: the program on the host, usable without any controller.

Exit status of validate and doctor: 0 every check passed; 30 one failed; 31 none failed, but one could not tell; 2
unusable arguments.  The other commands: 0 done, 2 unusable arguments.

Python compiles a zipapp again at every start, so each command imports only what it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

from . import trail
from .cli.parsers import command, option
from .errors import UndecidedError, UsageError
from .io import streams
from .io.streams import Printable
from .paths import EXPECTATION

if TYPE_CHECKING:
    from .model.expectation import Expectation

OK, UNUSABLE, FAILED, UNDECIDED = 0, 2, 30, 31
#: Command → the module and the function that add its parser, and its help.
COMMANDS = {
    "apply": ("cli.apply", "add_apply", "make this host what a desired state describes"),
    "remove": ("cli.apply", "add_remove", "take back what was applied here"),
    "kmod": ("cli.kmod", "add_parsers", "kernel modules: audit, build, pack, install"),
    "boot": ("cli.boot", "add_parsers", "what the next boot starts, and whether one is needed"),
    "guard": ("cli.boot", "add_guard", "which kernels may boot by default, and why not"),
    "gate": ("cli.gate", "add_parsers", "judge this boot, and keep the host out of its scheduler unless it passes"),
    "gdscheck": ("gdscheck.live", "add_parser", "what gdscheck -p prints, from libcufile alone"),
    "explain": ("cli.explain", "add_parser", "why mounts do not take the direct path"),
    "doctor": ("cli.explain", "add_doctor", "a first look: versions, paths, what bounces, and what to do first"),
    "odirect": ("cli.trials", "add_odirect", "whether direct I/O on a mount bypasses the page cache"),
    "proof": ("cli.trials", "add_proof", "which path a read through cuFile takes, with each GPU"),
    "rdma": ("cli.trials", "add_rdma", "whether RDMA adapters register memory of the GPUs"),
    "packages": ("cli.packages", "add_packages", "which packages are installed here"),
    "pins": ("cli.packages", "add_pins", "which packages stay out of this host"),
    "peermem": ("cli.peermem", "add_parsers", "nvidia-peermem: load, unload"),
    "topology": ("cli.explain", "add_topology", "how far GPUs, disks and network adapters are apart"),
    "rollout": ("cli.rollout", "add_parsers", "steps of a rollout: snapshot, boot once, reboot, reload, space"),
    "watch": ("cli.watch", "add_parser", "which processes do I/O through cuFile now, and which way it takes"),
    "serve": ("cli.serve", "add_parser", "answer one question that only reads, for users with the rule of sudo"),
    "load": ("cli.trials", "add_load", "how fast a mount reads under load, from a scratch file"),
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit status; what it prints can't drive a terminal.

    argv: None: those of this process, whose run is recorded in the audit trail.
    """
    _drop_folders_of_others()
    with streams.guarded(Printable):
        return trail.record(sys.argv[1:], partial(_run, None)) if argv is None else _run(argv)


def _drop_folders_of_others() -> None:
    """Keep root and its programs from making temporary files in a folder whose owner could exchange them."""
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
        return streams.end(run(arguments))
    except UsageError as error:
        print(f"gdsdeploy-host: {error}", file=sys.stderr)
        return UNUSABLE
    except UndecidedError as error:
        print(f"gdsdeploy-host: could not tell: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return UNDECIDED
    except BrokenPipeError:
        return streams.UNREAD
    except KeyboardInterrupt:
        return 130


def _parser(verb: str) -> argparse.ArgumentParser:
    """The parser of ``verb`` alone, since each costs a third of a millisecond; of all verbs for any other word."""
    parser = argparse.ArgumentParser(prog="gdsdeploy-host.pyz", description="gdsdeploy's program on a GPU host.")
    commands = parser.add_subparsers(metavar="COMMAND")
    default = f"the host's expected state; - reads it from standard input (default: {EXPECTATION})"
    expectation = option("--expectation", metavar="FILE", help=default)
    saved = option("--evidence", metavar="FILE", help="use saved evidence, of any host")
    words = "also read from mounts whose expectation has a rate under load; takes some seconds each"
    load = option("--load", action="store_true", help=words)
    verbs: Sequence[Tuple[Any, ...]] = (
        ("hello", _hello, "print Python's version, the user's id, the kernel, the machine and its identity"),
        (
            "evidence",
            _evidence,
            "collect what this host's files and programs say",
            expectation,
            option("--mount", metavar="PATH", help="also collect evidence about this mount or file"),
            option(
                "--sources",
                action="store_true",
                help="also collect this host's package repositories and their public keys",
            ),
            option("--trail", action="store_true", help="also collect the end of the audit trail"),
            load,
        ),
        ("facts", _facts, "print the facts that the evidence yields", expectation, saved),
        (
            "validate",
            _validate,
            "compare this host with its expectation",
            expectation,
            saved,
            load,
            option("--with-evidence", action="store_true", help="put the evidence into the JSON object"),
        ),
    )
    is_verb = verb in COMMANDS or verb in [name for name, *_ in verbs]
    if not is_verb:
        # On a host, the package around this one has nothing but the version.
        version = getattr(sys.modules[str(__package__).partition(".")[0]], "__version__", "of an unknown version")
        parser.add_argument("--version", action="version", version=f"gdsdeploy-host {version}")
    as_json = option("--json", action="store_true", help="print one JSON object (only validate prints anything else)")
    for name, run, text, *options in verbs:
        if not is_verb or name == verb:
            command(commands, name, run, text, as_json, *options, with_json=False)
    actions = {"doctor": _doctor, "explain": _explain, "topology": _topology, "serve": _serve}
    for name, (module, function, text) in COMMANDS.items():
        if verb == name:
            add = getattr(importlib.import_module(f".{module}", __package__), function)
            add(commands, *([actions[name]] if name in actions else []))
        elif not is_verb:
            commands.add_parser(name, help=text)
    return parser


def _topology(arguments: argparse.Namespace) -> int:
    from .cli.explain import collect_topology
    from .facts import facts_from
    from .subjects import trees

    evidence = collect_topology() if arguments.evidence is None else _read_evidence(arguments.evidence)
    try:
        tree = facts_from(evidence).topology
    except UndecidedError as error:
        raise UsageError(f"the PCI functions are not known: {error}") from None
    print(json.dumps(trees.document(tree), sort_keys=True) if arguments.json else trees.text(tree), end="")
    return OK


def _serve(arguments: argparse.Namespace) -> int:
    from .cli.serve import serve

    return serve(arguments, _run)


def _explain(arguments: argparse.Namespace) -> int:
    from .cli import explain

    if arguments.error is not None:
        explain.print_error(arguments.error, arguments.json)
        return OK
    if arguments.log is not None:
        files = [*arguments.log, *([arguments.mount] if arguments.mount else [])]
        return OK if explain.print_logs(files, arguments.json) else UNDECIDED
    if (arguments.mount or "").isdecimal():
        explain.print_process(_explained(arguments, None), int(arguments.mount[:10]), arguments.json)
        return OK
    mount = os.path.abspath(arguments.mount) if arguments.mount else None
    expectation = None if arguments.evidence is not None else _expectation(None, needed=False)
    rules = expectation.rules if expectation else []
    explain.print_explanation(_explained(arguments, mount), mount, rules, arguments.json)
    return OK


def _doctor(arguments: argparse.Namespace) -> int:
    from .cli.explain import print_diagnosis

    evidence = None if arguments.evidence is None else _read_evidence(arguments.evidence)
    expectation = _expectation(None, needed=False) if evidence is None else None
    return _status(print_diagnosis(evidence, expectation, arguments.json))


def _status(verdict: str) -> int:
    from .model.finding import FAIL, PASS

    return OK if verdict == PASS else FAILED if verdict == FAIL else UNDECIDED


def _explained(arguments: argparse.Namespace, mount: Optional[str]) -> Any:
    """The evidence that ``explain`` explains."""
    from .cli import explain

    if arguments.evidence is not None:
        return _read_evidence(arguments.evidence)
    return explain.collect_evidence(mount, _expectation(None, needed=False))


def _hello(_arguments: argparse.Namespace) -> int:
    from .boot.present import identity

    uname = os.uname()
    version = ".".join(map(str, sys.version_info[:3]))
    document = {"python": version, "uid": os.geteuid(), "kernel": uname.release, "machine": uname.machine}
    _print({**document, **identity()})
    return OK


def _evidence(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation, needed=False)
    if arguments.mount is not None:
        if arguments.load:
            raise UsageError("--load reads from the mounts of the expectation; it does not go with --mount")
        from .cli.explain import collect_evidence

        _print(collect_evidence(arguments.mount, expectation))
    else:
        _print(_collect(expectation, arguments.load, sources=arguments.sources, end=arguments.trail))
    return OK


def _facts(arguments: argparse.Namespace) -> int:
    from . import facts

    expectation = _expectation(arguments.expectation, needed=False)
    _print(facts.as_dict(facts.facts_from(_document(arguments.evidence, expectation))))
    return OK


def _validate(arguments: argparse.Namespace) -> int:
    from . import checks, facts
    from .model.expectation import NoExpectation
    from .model.finding import worst

    own = _expectation(arguments.expectation, needed=True)
    evidence = _document(arguments.evidence, own, load=arguments.load)
    host_facts, expectation = facts.facts_from(evidence), own or NoExpectation()
    findings = checks.run(host_facts, expectation)
    if arguments.json:
        document = checks.document(expectation, host_facts, findings)
        if arguments.with_evidence:
            document["evidence"] = evidence
        _print(document)
    else:
        print(checks.text(expectation, host_facts, findings))
    return _status(worst(findings))


def _document(path: Optional[str], expectation: Optional[Expectation], load: bool = False) -> Any:
    if load and expectation is None:
        raise UsageError(f"--load reads from the mounts of an expectation, and there is no {EXPECTATION}")
    if path is None:
        return _collect(expectation, load)
    if load:
        raise UsageError("--load reads from mounts now; it does not go with --evidence, which was collected before")
    return _read_evidence(path)


def _read_evidence(path: str) -> Dict[str, Any]:
    from .facts.document import EvidenceFileError, one

    try:
        return one(path)
    except EvidenceFileError as error:
        raise UsageError(error.message + (f"\n{error.hint}" if error.hint else "")) from None


def _collect(expectation: Optional[Expectation], load: bool = False, sources: bool = False, end: bool = False) -> Any:
    from dataclasses import replace

    from .evidence import NOTHING, collect, request_for

    return collect(replace(request_for(expectation, load) if expectation else NOTHING, sources=sources, trail=end))


def _expectation(path: Optional[str], needed: bool) -> Optional[Expectation]:
    """The expectation at ``path``, or the host's own, None: there is none.  needed: an unusable one is an error."""
    if path is None and not os.path.lexists(EXPECTATION):
        return None
    if path is None and not needed:
        with contextlib.suppress(UsageError):
            return _read_expectation(EXPECTATION)
        return None
    return _read_expectation(path or EXPECTATION)


def _read_expectation(path: str) -> Expectation:
    from .model.expectation import from_json

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


if __name__ == "__main__":
    sys.exit(main())
