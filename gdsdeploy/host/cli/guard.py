"""``guard status|judge|default|hook`` of the program on the host.

Exit status: of ``status`` 0 when what boots next is admitted, of ``judge`` when that kernel is, else 1; of ``default``
0, or 1 when the kernel is not admitted and the default is as before; 2 for anything that cannot be used.  ``hook`` is
called by package managers and always ends with 0: a failing hook leaves packages half-configured, which is worse than
what it warns of.
"""

from __future__ import annotations

import argparse
import json
import sys
import syslog
from dataclasses import asdict
from typing import Any

from ..boot import grub, guard
from ..errors import AuditError, HostError, guarded
from ..model.expectation import PATH, Expectation, from_json

IDENT = "gdsdeploy-guard"


def add_parsers(commands: Any) -> None:
    """Add ``guard`` to the program's commands."""
    text = "which kernels may boot by default, and why not"
    parser = commands.add_parser("guard", help=text, description=text)
    verbs = parser.add_subparsers(metavar="COMMAND")
    verbs.required = True
    status = verbs.add_parser("status", help="say which installed kernels are admitted", description=guard.__doc__)
    status.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    status.set_defaults(run=guarded(_status))
    judge = verbs.add_parser("judge", help="say whether one kernel has the modules that are expected, and audit them")
    judge.add_argument("--kernel", metavar="REL", help="default: the one that is expected")
    judge.set_defaults(run=guarded(_judge))
    default = verbs.add_parser("default", help="make the locked kernel the boot default if its modules are good")
    default.add_argument("--check", action="store_true", help="say what would change and change nothing")
    default.set_defaults(run=guarded(_default))
    hook = verbs.add_parser("hook", help="answer a kernel that was installed or removed; always ends with 0")
    hook.add_argument("event", choices=(guard.INSTALLED, guard.REMOVED))
    hook.add_argument("kernel", metavar="REL", help="kernel release")
    hook.set_defaults(run=_hook)
    for command in (status, judge, default, hook):
        command.add_argument("--expectation", default=PATH, metavar="FILE", help="default: %(default)s")
    for command in (status, judge, default):
        command.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _status(arguments: argparse.Namespace) -> int:
    found = guard.status(_expectation(arguments.expectation), arguments.root)
    if arguments.json:
        print(json.dumps(found, indent=2, sort_keys=True))
        return 0 if found["ok"] else 1
    for item in found["kernels"]:
        marks = [name for name in ("locked", "running", "default", "next") if found[name] == item["release"]]
        word = "admitted" if item["admitted"] else "not admitted: {}".format("; ".join(item["reasons"]))
        print("{}{}: {}".format(item["release"], " ({})".format(", ".join(marks)) if marks else "", word))
    if found["problem"]:
        print("the boot default cannot be told: {}".format(found["problem"]))
    return 0 if found["ok"] else 1


def _judge(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation)
    found = guard.judge(arguments.kernel or expectation.kernel_release, expectation)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2, sort_keys=True))
    else:
        print("{}: {}".format(found.release, "admitted" if found.admitted else "not admitted: " + found.why()))
    return 0 if found.admitted else 1


def _default(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation)
    release = expectation.kernel_release
    # Its modules were audited when it became the default, and again whenever it was installed anew.
    if grub.set_default(release, check=True)["changed"]:
        verdict = guard.judge(release, expectation)
        if not verdict.admitted:
            hint = "the boot default is as before; build or receive the modules first: gdsdeploy provision"
            raise AuditError(f"kernel {release} is not admitted: {verdict.why()}", hint)
    result = grub.set_default(release, check=arguments.check)
    print(json.dumps(result, indent=2, sort_keys=True) if arguments.json else "default: {}".format(result["kernel"]))
    return 0


def _hook(arguments: argparse.Namespace) -> int:
    try:
        answer = guard.respond(arguments.event, arguments.kernel, _expectation(arguments.expectation))
        text, alarm = answer.says, answer.alarm or bool(answer.keep)
    except (HostError, OSError, ValueError) as error:
        words = "cannot tell whether kernel {} may boot by default: {}; look at: gdsdeploy-host.pyz guard status"
        text, alarm = words.format(arguments.kernel, error), True
    print(f"gdsdeploy: {text}", file=sys.stderr)
    syslog.openlog(IDENT)
    syslog.syslog(syslog.LOG_WARNING if alarm else syslog.LOG_NOTICE, text)
    return 0


def _expectation(path: str) -> Expectation:
    try:
        with open(path, encoding="utf-8") as file:
            return from_json(file.read())
    except OSError as error:
        hint = "have the host provisioned, which puts it there"
        raise HostError(f"{path} cannot be read: {error.strerror}", hint) from None
    except ValueError as error:
        raise HostError(f"{path} is not an expectation: {error}") from None
