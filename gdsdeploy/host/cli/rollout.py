"""``gdsdeploy-host.pyz rollout …``; exit status 0 done, 30 refused, 2 unusable arguments."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any, Callable, Dict, List

from ..errors import REFUSED, RolloutError
from ..rollout.errors import answering

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def add_parsers(commands: Any) -> None:
    """Add ``rollout`` to the program's commands."""
    text = "what a rollout asks of this host: snapshot, boot once, reboot, reload, space"
    parser = commands.add_parser("rollout", help=text, description=text)
    verbs = parser.add_subparsers(metavar="COMMAND")
    verbs.required = True
    verb = _add(verbs, "snapshot", _snapshot, "what this host is: the document that a rollback is held against")
    verb.add_argument("--packages", type=_names, default=[], metavar="A,B", help="also these packages")
    verb.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    verb = _add(verbs, "compare", _compare, "how this host differs now from such a document; 0 also where it does")
    verb.add_argument("--with", dest="document", required=True, metavar="FILE", help="- reads it from standard input")
    verb.add_argument("--root", default="/", metavar="DIR", help="a root folder that need not be running")
    verb = _add(verbs, "keep", _keep, "keep the modules of a kernel, so that they can be put back without a network")
    verb.add_argument("--kernel", type=_release, metavar="REL", help="default: the one that runs")
    verb.add_argument("--id", type=_ident, required=True, metavar="ID", help="of the rollout")
    verb = _add(verbs, "forget", _forget, "delete what was kept")
    verb.add_argument("--id", type=_ident, required=True, metavar="ID", help="of the rollout")
    _add(verbs, "status", _status, "boot, kernel, package manager, users of the GPUs, space")
    verb = _add(verbs, "once", _once, "boot a kernel once; the boot after that is of the default again")
    either = verb.add_mutually_exclusive_group(required=True)
    either.add_argument("--kernel", type=_release, metavar="REL", help="kernel release to boot next")
    either.add_argument("--clear", action="store_true", help="take that back")
    verb.add_argument("--default", type=_release, metavar="REL", help="make this kernel the default first")
    verb = _add(verbs, "space", _space, "whether sizes fit: 0 if they do, 30 if not")
    verb.add_argument("--need", required=True, metavar="FILE", help='e.g. {"/boot": 90000000}; - reads standard input')
    verb.add_argument(
        "--margin", type=float, default=0.1, metavar="SHARE", help="more than that (default: %(default)s)"
    )
    verb = _add(verbs, "reboot", _reboot, "reboot if this is still the boot with that id, and at most once in it")
    verb.add_argument("--boot-id", type=_boot_id, required=True, metavar="ID", help="as status has it")
    verb.add_argument("--rollout", default="", metavar="PLAN", help="who orders it, for the journal")

    verb = _add(verbs, "reload", _reload, "exchange NVIDIA's modules without a reboot, if that is safe")
    verb.add_argument("--boot-id", type=_boot_id, required=True, metavar="ID", help="as status has it")
    verb.add_argument("--id", type=_ident, required=True, metavar="ID", help="of the rollout that kept what is loaded")
    verb.add_argument("--kernel", type=_release, metavar="REL", help="refuse unless this kernel runs")
    verb.add_argument("--check", action="store_true", help="say whether it is safe, and what would be done")


def _add(verbs: Any, name: str, run: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=answering(run))
    return parser


def _snapshot(arguments: argparse.Namespace) -> int:
    from ..rollout import snapshot

    found = snapshot.take(arguments.packages, arguments.root)
    return _print(arguments, found, snapshot.lines(found))


def _compare(arguments: argparse.Namespace) -> int:
    from ..rollout import compare, snapshot

    was = _document(arguments.document, "a snapshot")
    names = list(was.get("packages") or {}) if isinstance(was, dict) else []
    found = compare.differences(was, snapshot.take(names, arguments.root))
    value = {"same": not found, "differences": found}
    return _print(arguments, value, [item["says"] for item in found] or ["this host is as it was"])


def _keep(arguments: argparse.Namespace) -> int:
    from ..archive import keep

    found = keep.keep(arguments.id, arguments.kernel or "")
    words = (
        "{archive} has {} of kernel {kernel}" if found["archive"] else "kernel {kernel} has none of NVIDIA's modules"
    )
    return _print(arguments, found, [words.format(", ".join(found["modules"]), **found)])


def _forget(arguments: argparse.Namespace) -> int:
    from ..archive import keep

    found = keep.forget(arguments.id)
    return _print(arguments, found, ["{folder} is gone".format(**found)])


def _space(arguments: argparse.Namespace) -> int:
    from ..io import space

    found = space.fits(_document(arguments.need, "a need"), arguments.margin)
    _print(arguments, found, [item["says"] for item in found["filesystems"]])
    return 0 if found["fits"] else REFUSED


def _status(arguments: argparse.Namespace) -> int:
    from ..rollout import status

    found = status.status()
    return _print(arguments, found, status.lines(found))


def _once(arguments: argparse.Namespace) -> int:
    from ..boot import once

    found = once.clear() if arguments.clear else once.arm(arguments.kernel, arguments.default or "")
    text = "{} once, then {}" if found["once"] else "{1}, and nothing else"
    return _print(arguments, found, ["boots " + text.format(found["kernel"], found["default"] or "something unknown")])


def _reboot(arguments: argparse.Namespace) -> int:
    from ..rollout import reboot

    found = reboot.order(arguments.boot_id, arguments.rollout)
    return _print(arguments, found, ["{}: this is boot {}".format(found["did"], found["boot_id"])])


def _reload(arguments: argparse.Namespace) -> int:
    from ..rollout import reload

    words = (arguments.boot_id, arguments.id, arguments.kernel or "")
    if not arguments.check:
        found = reload.exchange(*words)
        return _print(arguments, found, ["{}: {}".format(found["did"], ", ".join(found["modules"]) or "no modules")])
    chosen = reload.plan(*words)
    text = ["needed" if chosen.needed else "not needed: what is loaded is what is installed"]
    text += [f"not safe: {item}" for item in chosen.reasons]
    text += ["unloads {}".format(", ".join(chosen.modules) or "nothing")]
    text += [f"stops and starts {unit}" for unit in chosen.services]
    document = chosen.document()
    if not chosen.safe:
        document["error"] = {"kind": "unsafe", "message": "; ".join(chosen.reasons), "hint": reload.INSTEAD}
    _print(arguments, document, text)
    return 0 if chosen.safe else REFUSED


def _print(arguments: argparse.Namespace, value: Dict[str, Any], lines: List[str]) -> int:
    print(json.dumps(value, sort_keys=True) if arguments.json else "\n".join(lines))
    return 0


def _document(path: str, what: str) -> Any:
    text = sys.stdin.read() if path == "-" else _text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise RolloutError("usage", f"{path} is not {what}: {error}") from None


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _ident(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the id of a rollout")
    return text


def _names(text: str) -> List[str]:
    names = [item for item in text.split(",") if item]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*", name):
            raise argparse.ArgumentTypeError(f"{name!r} is not the name of a package")
    return names


def _release(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+~-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a kernel release; give it as uname -r shows it")
    return text


def _boot_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a boot id; see /proc/sys/kernel/random/boot_id")
    return text
