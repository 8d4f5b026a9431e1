"""``gdsdeploy-host.pyz apply`` and ``remove``: make this host what a document says, or take that back."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from typing import Any, Dict, Iterator, List, Sequence

from .. import trail
from ..apply import engine, lock, registry
from ..apply.host import ManagedHost
from ..apply.model import Change, with_kind, writing
from ..errors import ApplyError, DesiredError
from ..io.wording import joined, line
from ..process import end_by_signal
from .parsers import PROGRAM, option

#: Bytes of a document; a real one has some 100 KB.
_LIMIT = 64 << 20
_COMMON = (
    option("--check", action="store_true", help="say what would change and change nothing"),
    option("--json", action="store_true", help="print one JSON object"),
    option(
        "--run", dest="run_id", metavar="ID", default="", help="this call is part of a run, which reserves the host"
    ),
    option("--who", metavar="NAME", default="", help="the name that other runs see while they are refused"),
)


@PROGRAM.command(
    "apply",
    "make this host what a desired state says; a second run changes nothing",
    option("resources", nargs="*", metavar="RESOURCE", help="only these (default: all of the document)"),
    option("--desired", metavar="FILE", help="the desired state; - reads it from standard input"),
    option("--diff", action="store_true", help="show the text of files before and after"),
    option("--release", metavar="ID", help="only end the run ID, which reserves this host"),
    option("--schema", action="store_true", help="only print the JSON schema of every resource"),
    *_COMMON,
    with_json=False,
)
def _apply(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(json.dumps(registry.schemas(), indent=2))
        return 0
    if arguments.release:
        return _answer(arguments, lambda answer: answer.update(released=lock.release(arguments.release)))
    return _answer(arguments, lambda answer: _apply_document(arguments, answer))


@PROGRAM.command(
    "remove",
    "take back what was applied here: packages, files, holds, modules and the boot default",
    option("resources", nargs="*", metavar="RESOURCE", help="only these (default: all)"),
    option("--fleet-id", metavar="ID", default="", help="refuse if this host has another fleet's lock"),
    option("--lock-serial", type=int, default=0, help="with --fleet-id: refuse if its lock is newer"),
    *_COMMON,
    with_json=False,
)
def _remove(arguments: argparse.Namespace) -> int:
    return _answer(arguments, lambda answer: _remove_applied(arguments, answer))


def _remove_applied(arguments: argparse.Namespace, answer: Dict[str, Any]) -> None:
    from ..apply import preflight, removal

    trail.note(resources=arguments.resources, serial=arguments.lock_serial)
    host = ManagedHost(arguments.check, say=_say)
    result = engine.Result("remove")
    try:
        with _alone(arguments):
            for refusal in preflight.other_lock(
                arguments.fleet_id, arguments.lock_serial, preflight.lock_of(host.root)
            ):
                raise ApplyError(refusal.message, refusal.hint, "refused")
            removal.remove(host, arguments.resources, done=result.changes.extend)
    finally:
        answer["resources"] = [result.to_json()]
        answer["notes"] = host.notes


def _apply_document(arguments: argparse.Namespace, answer: Dict[str, Any]) -> None:
    if not arguments.desired:
        raise DesiredError("there is no desired state", "pass --desired FILE, or --desired - for standard input")
    document = read(arguments.desired)
    if isinstance(document, dict) and "variants" in document:
        if not arguments.check:
            raise DesiredError("a document with variants can only be checked: pass --check")
        from ..boot import present

        answer["machine"] = present.identity()
        with _alone(arguments):
            answer["variants"] = check_variants(document, arguments.resources)
        return
    resources = engine.read_resources(document, arguments.resources)
    trail.note(resources=[each.name for each in resources])
    host = ManagedHost(arguments.check, say=_say, run_id=arguments.run_id)
    results: List[engine.Result] = []
    try:
        with _alone(arguments):
            engine.run(host, resources, diff=arguments.diff, done=results.append)
    finally:
        answer["resources"] = [result.to_json() for result in results]
        answer["notes"] = host.notes


@contextlib.contextmanager
def _alone(arguments: argparse.Namespace) -> Iterator[None]:
    """Lock this host and handle signals; a check needs no lock.

    SIGHUP (a lost connection) doesn't stop the work.  SIGTERM stops it like Ctrl-C, and the current resource is undone.
    """
    if arguments.check:
        # What it has put into temporary folders goes with it.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end_by_signal)
        yield
        return
    # Every user may read the folders and links that programs make.
    os.umask(0o022)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_by_signal)
    with lock.hold(arguments.run_id, arguments.who):
        yield


def check_variants(document: Dict[str, Any], only: Sequence[str] = ()) -> Dict[str, Any]:
    """Name → results of each variant of a document; the host is observed once."""
    variants = document["variants"]
    if not isinstance(variants, dict):
        raise DesiredError("variants: an object is needed")
    host = ManagedHost(check=True)
    targets = {
        name: engine.read_resources({"version": document.get("version"), "resources": listed}, only)
        for name, listed in sorted(variants.items())
    }
    known: List[Any] = []
    results = {name: engine.run(host, resources, known=known) for name, resources in targets.items()}
    return {name: [result.to_json() for result in listed] for name, listed in results.items()}


def read(path: str) -> Any:
    """A document from a file or standard input; raises DesiredError."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_LIMIT + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(_LIMIT + 1)
        if len(data) > _LIMIT:
            raise DesiredError(f"{name}: larger than {_LIMIT >> 20} MiB")
        trail.note(desired=data)
        return json.loads(data.decode("utf-8"))
    except OSError as error:
        raise DesiredError(f"{name}: {error.strerror}") from None
    except RecursionError:
        raise DesiredError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise DesiredError(f"{name}: not JSON, or cut off: {error}") from None


def _answer(arguments: argparse.Namespace, work: Any) -> int:
    answer: Dict[str, Any] = {"version": engine.VERSION, "check": arguments.check, "error": None}
    status = 0
    try:
        with writing(""), with_kind("modules"):
            work(answer)
    except ApplyError as error:
        answer["error"] = {"kind": error.kind, "message": error.message, "hint": error.hint}
        status = error.exit_code
    if trail.trouble():
        answer["notes"] = [*answer.get("notes", []), trail.trouble()]
    if arguments.json:
        print(json.dumps(answer, sort_keys=True))
    else:
        _print(answer, check=arguments.check)
    return status


def _print(answer: Dict[str, Any], *, check: bool) -> None:
    for name, results in answer.get("variants", {}).items():
        print(f"{name}:")
        _print_results(results, check=check)
    if "resources" in answer:
        _print_results(answer["resources"], check=check, failed=answer["error"] is not None)
    for note in answer.get("notes", []):
        print(line(f"note: {note}"))
    if answer["error"]:
        hint = f" ({answer['error']['hint']})" if answer["error"]["hint"] else ""
        print(f"error: {answer['error']['message']}{hint}", file=sys.stderr)


def _print_results(results: Sequence[Dict[str, Any]], *, check: bool, failed: bool = False) -> None:
    import difflib

    lines = [f"{'would ' if check else ''}{_words(Change(**entry))}" for one in results for entry in one["changes"]]
    for one in results:
        refused = [entry["message"] for entry in one["refusals"]]
        lines += [f"{one['name']}: {text}" for text in [*one["unknown"], *refused]]
    if not lines and not failed:
        lines = ["nothing to change"]
    print(joined(lines), end="\n" if lines else "")
    for entry in (entry for one in results for entry in one["diffs"]):
        before, after = (entry[key].splitlines(keepends=True) for key in ("before", "after"))
        sys.stdout.writelines(difflib.unified_diff(before, after, entry["path"], entry["path"]))


def _words(change: Change) -> str:
    arrow = f" ({change.before or 'nothing'} → {change.after})" if change.after else ""
    return f"{change.kind} {change.subject}{arrow}"


def _say(text: str) -> None:
    # The reader may have gone; the work continues.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
