"""``gdsdeploy-host.pyz rollout …``; exit status 0 done, 30 refused, 2 unusable arguments."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, List

from ..errors import REFUSED, HostError, RolloutError
from ..io.wording import quoted
from ..rootdir import read_text
from .parsers import PROGRAM, ROOT, UNUSABLE, matching, one_of, option, show

_ident = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "cannot be the id of a rollout")
_package = matching(r"[A-Za-z0-9][A-Za-z0-9+._-]*", "is not the name of a package")
_release = matching(r"[A-Za-z0-9][A-Za-z0-9._+~-]*", "is not a kernel release; give it as uname -r shows it")
_boot_id = matching(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "is not a boot id; see /proc/sys/kernel/random/boot_id"
)


def _names(text: str) -> List[str]:
    return [_package(name) for name in text.split(",") if name]


def _answering(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Print an error as text or JSON, as the caller asked, and return its exit status."""

    def inner(arguments: Any) -> int:
        try:
            return run(arguments)
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            return _print_error(arguments, "io", name + (error.strerror or str(error)), "")
        except HostError as error:
            return _print_error(arguments, getattr(error, "kind", "host"), error.message, error.hint)

    return inner


def _print_error(arguments: Any, kind: str, message: str, hint: str) -> int:
    if arguments.json:
        print(json.dumps({"error": {"kind": kind, "message": message, "hint": hint}}, sort_keys=True))
    else:
        print(quoted(f"error: {message}{f' ({hint})' if hint else ''}"), file=sys.stderr)
    return UNUSABLE if kind == "usage" else REFUSED


ROLLOUT = PROGRAM.group(
    "rollout", "steps of a rollout on this host: snapshot, boot once, reboot, reload, space", _answering
)
_IDENT = option("--id", type=_ident, required=True, metavar="ID", help="of the rollout")
_BOOT = option("--boot-id", type=_boot_id, required=True, metavar="ID", help="as status has it")


@ROLLOUT.command(
    "snapshot",
    "the state of this host, as a document that a rollback compares with",
    option("--packages", type=_names, default=[], metavar="A,B", help="also these packages"),
    ROOT,
)
def _snapshot(arguments: argparse.Namespace) -> int:
    from ..rollout import snapshot

    document = snapshot.take(arguments.packages, arguments.root)
    return show(arguments, document, snapshot.lines(document))


@ROLLOUT.command(
    "compare",
    "how this host differs now from such a document; 0 also where it does",
    option("--with", dest="document", required=True, metavar="FILE", help="- reads it from standard input"),
    ROOT,
)
def _compare(arguments: argparse.Namespace) -> int:
    from ..rollout import snapshot

    before = _document(arguments.document, "a snapshot")
    names = list(before.get("packages") or {}) if isinstance(before, dict) else []
    differences = snapshot.differences(before, snapshot.take(names, arguments.root))
    value = {"same": not differences, "differences": differences}
    return show(arguments, value, [entry["says"] for entry in differences] or ["this host is unchanged"])


@ROLLOUT.command(
    "keep",
    "keep the modules of a kernel, so that they can be put back without a network",
    option("--kernel", type=_release, metavar="REL", help="default: the one that runs"),
    _IDENT,
)
def _keep(arguments: argparse.Namespace) -> int:
    from ..archive import pack

    answer = pack.keep(arguments.id, arguments.kernel or "")
    kernel = f"kernel {answer['kernel']}"
    text = f"{answer['archive']} has {', '.join(answer['modules'])} of {kernel}"
    return show(arguments, answer, [text if answer["archive"] else f"{kernel} has none of NVIDIA's modules"])


@ROLLOUT.command("forget", "delete what was kept", _IDENT)
def _forget(arguments: argparse.Namespace) -> int:
    from ..archive import pack

    answer = pack.forget_kept(arguments.id)
    return show(arguments, answer, [f"{answer['folder']} is deleted"])


@ROLLOUT.command("status", "boot, kernel, package manager, users of the GPUs, space")
def _status(arguments: argparse.Namespace) -> int:
    from ..rollout import reboot

    document = reboot.status()
    return show(arguments, document, reboot.lines(document))


@ROLLOUT.command(
    "once",
    "boot a kernel once; the boot after that is of the default again",
    one_of(
        option("--kernel", type=_release, metavar="REL", help="kernel release to boot next"),
        option("--clear", action="store_true", help="take that back"),
    ),
    option("--default", type=_release, metavar="REL", help="make this kernel the default first"),
)
def _once(arguments: argparse.Namespace) -> int:
    from ..boot import once

    answer = once.clear() if arguments.clear else once.arm(arguments.kernel, arguments.default or "")
    default = answer["default"] or "an unknown entry"
    text = f"boots {answer['kernel']} once, then {default}" if answer["once"] else f"boots {default} at every boot"
    return show(arguments, answer, [text])


@ROLLOUT.command(
    "space",
    "whether sizes fit: 0 if they do, 30 if not",
    option("--need", required=True, metavar="FILE", help='e.g. {"/boot": 90000000}; - reads standard input'),
    option("--margin", type=float, default=0.1, metavar="SHARE", help="more than that (default: %(default)s)"),
)
def _space(arguments: argparse.Namespace) -> int:
    from ..io import space

    answer = space.fits(_document(arguments.need, "a need"), arguments.margin)
    show(arguments, answer, [filesystem["says"] for filesystem in answer["filesystems"]])
    return 0 if answer["fits"] else REFUSED


@ROLLOUT.command(
    "reboot",
    "reboot if this is still the boot with that id, and at most once in it",
    _BOOT,
    option("--rollout", default="", metavar="PLAN", help="who orders it, for the journal"),
)
def _reboot(arguments: argparse.Namespace) -> int:
    from ..rollout import reboot

    answer = reboot.order(arguments.boot_id, arguments.rollout)
    return show(arguments, answer, [f"{answer['did']}: this is boot {answer['boot_id']}"])


@ROLLOUT.command(
    "enrol",
    "ask the firmware to take the key of the modules, by a person at the console",
    option("--certificate", required=True, metavar="FILE", help="PEM or DER; - reads it from standard input"),
    option("--check", action="store_true", help="only say whether it has the key"),
    option("--withdraw", action="store_true", help="withdraw the request"),
)
def _enrol(arguments: argparse.Namespace) -> int:
    from ..boot.present import boot_id
    from ..secure_boot import signing

    if arguments.certificate == "-":
        owners = signing.parse_certificate(sys.stdin.buffer.read(), "standard input")
    else:
        owners = signing.read_certificate_file(arguments.certificate)
    if arguments.withdraw:
        signing.withdraw()
    answer = signing.enrol(owners, check=arguments.check or arguments.withdraw, where_needed=True)
    # For the controller alone, which keeps it for the person at the console.
    password = read_text("/", signing.ONE_TIME).strip() if answer["state"] == "pending" and arguments.json else ""
    value = {**{name: answer[name] for name in ("state", "fingerprint")}, "boot_id": boot_id(), "password": password}
    return show(arguments, value, [signing.ENROLMENTS[answer["state"]], *answer["steps"]])


@ROLLOUT.command(
    "reload",
    "exchange NVIDIA's modules without a reboot, if that is safe",
    _BOOT,
    option("--id", type=_ident, required=True, metavar="ID", help="of the rollout that kept what is loaded"),
    option("--kernel", type=_release, metavar="REL", help="refuse unless this kernel runs"),
    option("--check", action="store_true", help="say whether it is safe, and what would be done"),
)
def _reload(arguments: argparse.Namespace) -> int:
    from ..rollout import reload

    words = (arguments.boot_id, arguments.id, arguments.kernel or "")
    if not arguments.check:
        answer = reload.exchange(*words)
        return show(arguments, answer, [f"{answer['did']}: {', '.join(answer['modules']) or 'no modules'}"])
    plan = reload.plan(*words)
    text = [
        "needed" if plan.needed else "not needed: the loaded modules are the installed ones",
        *(f"not safe: {reason}" for reason in plan.reasons),
        f"unloads {', '.join(plan.modules) or 'nothing'}",
        *(f"stops and starts {unit}" for unit in plan.services),
    ]
    document = plan.document()
    if not plan.safe:
        document["error"] = {"kind": "unsafe", "message": "; ".join(plan.reasons), "hint": reload.INSTEAD}
    show(arguments, document, text)
    return 0 if plan.safe else REFUSED


def _document(path: str, what: str) -> Any:
    try:
        if path == "-":
            return json.load(sys.stdin)
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)
    except ValueError as error:
        raise RolloutError("usage", f"{path} is not {what}: {error}") from None
