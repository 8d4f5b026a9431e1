"""``boot …``: what the next boot starts, and whether one is needed.

``guard status|judge|default|hook`` of the program on the host.

Exit status: of ``status`` 0 when what boots next is admitted, of ``judge`` when that kernel is, else 1; of ``default``
0, or 1 when the kernel is not admitted and the default is as before; 2 for anything that cannot be used.  ``hook`` is
called by package managers and always ends with 0: a failing hook leaves packages half-configured, which is worse than
what it warns of.
"""

from __future__ import annotations

import argparse
import sys
import syslog
from dataclasses import asdict
from typing import Any, Dict

from ..boot import guard, needed
from ..boot.loader import loader
from ..errors import AuditError, HostError, failing, guarded
from ..io.wording import line
from ..model.expectation import Expectation, from_json
from ..paths import EXPECTATION
from .parsers import PROGRAM, ROOT, option, show, show_indented

BOOT = PROGRAM.group("boot", "what the next boot starts, and whether one is needed", guarded)
GUARD = PROGRAM.group("guard", "which kernels may boot by default, and why not", guarded)
_WOULD_PRINT = option("--check", action="store_true", help="print what would change and change nothing")
_EXPECTATION = option("--expectation", default=EXPECTATION, metavar="FILE", help="default: %(default)s")


@BOOT.command(
    "needed",
    "print whether a reboot is needed to reach the installed state",
    option("--kernel", required=True, metavar="RELEASE", help="the expected kernel"),
    option(
        "--argument",
        action="append",
        default=[],
        metavar="WORD",
        help="an argument that the running kernel should have; may be repeated",
    ),
    option(
        "--parameter",
        action="append",
        default=[],
        metavar="MODULE.NAME=VALUE",
        help="a parameter of a loaded module and its value; may be repeated",
    ),
    option("modules", nargs="*", metavar="MODULE", help="modules that should be loaded from their installed files"),
)
def _boot_needed(arguments: argparse.Namespace) -> int:
    parameters = {key: value for key, _, value in (word.partition("=") for word in arguments.parameter)}
    result = needed.pending(arguments.kernel, arguments.modules, arguments.argument, parameters)
    return show(arguments, asdict(result), ["; ".join(result.reasons) or "no reboot is needed"])


@BOOT.command(
    "default",
    "make a kernel the default until changed again",
    option("--kernel", required=True, metavar="REL", help="kernel release"),
    _WOULD_PRINT,
)
def _boot_default(arguments: argparse.Namespace) -> int:
    return _show_default(arguments, loader().default(arguments.kernel, check=arguments.check))


@BOOT.command("clear", "leave the choice of the kernel to the boot loader's own configuration again", _WOULD_PRINT)
def _boot_clear(arguments: argparse.Namespace) -> int:
    return _show_default(arguments, loader().undo_default(check=arguments.check))


def _show_default(arguments: argparse.Namespace, result: Dict[str, Any]) -> int:
    did = "would change" if arguments.check else "changed"
    now = f"default: {result['kernel']} ({result['entry']})"
    return show_indented(arguments, result, [*(f"{did} {change}" for change in result["changes"]), now])


@BOOT.command(
    "show",
    "print which kernel boots by default and which boots next",
    option("--root", default="/", metavar="DIR", help="a root folder; it needn't be running"),
)
def _boot_show(arguments: argparse.Namespace) -> int:
    value = loader(arguments.root).kernels()
    lines = (
        f"{key}: {value[key] or 'no Linux kernel'} ({value[key + '_entry'] or 'no entry'})"
        for key in ("default", "next")
    )
    return show_indented(arguments, value, lines)


IDENT = "gdsdeploy-guard"


@GUARD.command("status", "say which installed kernels are admitted", ROOT, _EXPECTATION, description=guard.__doc__)
def _status(arguments: argparse.Namespace) -> int:
    answer = guard.status(_expectation(arguments.expectation), arguments.root)
    lines = []
    for kernel in answer["kernels"]:
        release = kernel["release"]
        marks = [name for name in ("locked", "running", "default", "next") if answer[name] == release]
        word = "admitted" if kernel["admitted"] else f"not admitted: {'; '.join(kernel['reasons'])}"
        suffix = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"{release}{suffix}: {word}")
    lines += [f"the boot default cannot be told: {answer['problem']}"] if answer["problem"] else []
    show_indented(arguments, answer, lines)
    return 0 if answer["ok"] else 1


@GUARD.command(
    "judge",
    "say whether one kernel has the modules that are expected, and audit them",
    option("--kernel", metavar="REL", help="default: the one that is expected"),
    _EXPECTATION,
)
def _judge(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation)
    verdict = guard.judge(arguments.kernel or expectation.kernel_release, expectation)
    text = f"{verdict.release}: {'admitted' if verdict.admitted else f'not admitted: {verdict.why()}'}"
    show_indented(arguments, asdict(verdict), [text])
    return 0 if verdict.admitted else 1


@GUARD.command(
    "default",
    "make the locked kernel the boot default if its modules are good",
    option("--check", action="store_true", help="say what would change and change nothing"),
    _EXPECTATION,
)
def _default(arguments: argparse.Namespace) -> int:
    expectation = _expectation(arguments.expectation)
    release = expectation.kernel_release
    # Its modules were audited when it became the default, and at every later installation.
    if loader().default(release, check=True)["changed"]:
        verdict = guard.judge(release, expectation)
        if not verdict.admitted:
            hint = "the boot default is as before; build or receive the modules first: gdsdeploy provision"
            raise AuditError(f"kernel {release} is not admitted: {verdict.why()}", hint)
    result = loader().default(release, check=arguments.check)
    return show_indented(arguments, result, [f"default: {result['kernel']}"])


@GUARD.command(
    "hook",
    "answer a kernel that was installed or removed; always ends with 0",
    option("event", choices=(guard.INSTALLED, guard.REMOVED)),
    option("kernel", metavar="REL", help="kernel release"),
    _EXPECTATION,
    with_json=False,
)
def _hook(arguments: argparse.Namespace) -> int:
    try:
        answer = guard.respond(arguments.event, arguments.kernel, _expectation(arguments.expectation))
        text, alarm = answer.says, answer.alarm or bool(answer.keep)
    except (HostError, OSError, ValueError) as error:
        text = f"cannot tell whether kernel {arguments.kernel} may boot by default: {error}"
        text, alarm = f"{text}; look at: gdsdeploy-host.pyz guard status", True
    print(line(f"gdsdeploy: {text}"), file=sys.stderr)
    syslog.openlog(IDENT)
    syslog.syslog(syslog.LOG_WARNING if alarm else syslog.LOG_NOTICE, text)
    return 0


def _expectation(path: str) -> Expectation:
    try:
        hint = "have the host provisioned, which puts it there"
        with failing(HostError, f"{path} cannot be read", hint), open(path, encoding="utf-8") as file:
            return from_json(file.read())
    except ValueError as error:
        raise HostError(f"{path} is not an expectation: {error}") from None
