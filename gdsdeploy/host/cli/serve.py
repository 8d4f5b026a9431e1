"""``serve``: answer one question that only reads, from standard input, for a user who may run nothing else as root.

``gdsdeploy sudoers`` prints the rule of sudo for it.  The caller is a local user, so a request can name only what this
table has: no file to read or write, no program, no expectation but the host's own, and of mounts only those that the
kernel lists.  Nothing of the caller's environment, folder, umask or signals counts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from .. import trail
from ..errors import DesiredError, HostError, UsageError, failing
from ..io import jsontext
from ..io.mounts import Mounts
from ..io.reading import whole
from ..model import schema
from ..model.expectation import Expectation, from_json
from ..paths import EXPECTATION, MOUNTINFO, SERVE_SECONDS
from ..process import end_by_signal
from ..rootdir import read_file
from .parsers import PROGRAM
from .watch import interval, job

VERSION = 1
#: Bytes of a request; an expectation has some 100 KB.
LIMIT = 4 << 20
#: Seconds in which the request has to arrive.
ARRIVAL = 30
_MARK = re.compile(r"[0-9a-f]{32}")
#: What an expectation has that only the controller judges by: it changes nothing that is collected.
_JUDGED = frozenset({"host", "cufile_sha256", "topology", "hardware", "lock_digest", "fleet_id", "lock_serial"})


class RefusedError(HostError):
    """The question isn't answered; ``hint`` says what to do."""


@dataclass(frozen=True)
class Request:
    """One question."""

    version: int
    #: SHA-256 of the program that the controller would send
    program: str
    #: printed before the answer: what comes before it is from login scripts
    mark: str
    #: that the answer may take
    seconds: int
    argv: List[str]
    #: what the program would read on standard input
    text: str = field(default="", metadata=schema.LINES)
    #: USER@MACHINE of the controller, which nothing verifies
    claimed: str = ""


@PROGRAM.command(
    "serve",
    "answer one question that only reads, from standard input, for users who may do nothing else as root",
    with_json=False,
)
def serve(arguments: argparse.Namespace) -> int:
    """Read a request, and have another command answer it; an object ``refused`` says why none does.

    Raises UsageError.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(number, end_by_signal)
    os.umask(0o022)
    os.chdir("/")
    os.environ.clear()
    os.environ["PATH"] = f"/usr/local/bin:{os.defpath}"
    signal.alarm(ARRIVAL)
    request = _request(sys.stdin.buffer.read(LIMIT + 1))
    signal.alarm(0)
    importlib.import_module("gdsdeploy_bootstrap").guard(request.seconds)
    trail.note(verb=f"serve {trail.verb_of(request.argv[:1])}", claimed=request.claimed)
    os.write(1, f"\n{request.mark}\n".encode())
    try:
        words = question(request, trail.program())
    except RefusedError as error:
        import json

        print(json.dumps({"refused": {"message": str(error), "hint": error.hint}}))
        return 2
    status: int = arguments.answer(words)
    return status


def _request(data: bytes) -> Request:
    """Raises UsageError."""
    if len(data) > LIMIT:
        raise UsageError(f"the request is larger than {LIMIT >> 20} MiB")
    try:
        request = schema.load(Request, jsontext.loads(data.decode("utf-8"), items=100_000), "request")
    except DesiredError as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        raise UsageError(f"the request is malformed: {error}") from None
    if request.version != VERSION or not _MARK.fullmatch(request.mark) or not 0 < request.seconds <= SERVE_SECONDS:
        raise UsageError("the request is malformed: its version, mark or seconds")
    return request


def question(request: Request, program: str) -> List[str]:
    """The arguments that answer ``request``; raises RefusedError.  program: the digest of the one that runs."""
    if request.program != program:
        raise RefusedError(
            "the program that is installed isn't that of this controller",
            "Install the controller's, as root: gdsdeploy provision, or the package of its version",
        )
    verb, *words = request.argv or [""]
    allowed = _QUESTIONS.get(verb)
    if allowed is None:
        raise _unanswered(verb)
    kept, given = [verb], set()
    while words:
        option = words.pop(0)
        if option not in allowed or option in given:
            raise _unanswered(f"{verb} {option}")
        given.add(option)
        check = allowed[option]
        value = words.pop(0) if check is not None and words else ""
        kept += _option(option, check, value, request)
    return kept


def _option(option: str, check: Optional[Callable[[str], Any]], value: str, request: Request) -> List[str]:
    """The words of one option.  check: of its value; None: it has none."""
    if option == "--expectation":
        # The host's own says the same, and is read without being named.
        _require_own(request.text)
        return []
    if check is None:
        return [option]
    try:
        check(value)
    except argparse.ArgumentTypeError as error:
        raise RefusedError(str(error), "Correct the request") from None
    return [option, value]


def _mount_point(path: str) -> None:
    """Raise RefusedError unless something is mounted at ``path``.

    Root would open any other path for its flags, and what it opens there would be up to the caller.
    """
    if path not in Mounts(read_file(MOUNTINFO)).visible:
        raise RefusedError(
            f"nothing is mounted at {path[:200]!r}, and the installed program looks at whole mounts only",
            "Name the mount point; for a file, ask as a user who may become root, without ssh.read_only",
        )


def _require_own(text: str) -> None:
    """Raise RefusedError unless the host's own expectation has the same collected as the one in ``text``."""
    try:
        own, sent = vars(_own()), vars(from_json(text))
    except ValueError as error:
        raise RefusedError(f"the expectation can't be used: {error}", "Provision this host again") from None
    other = sorted(key for key in sent if key not in _JUDGED and sent[key] != own[key])
    if other:
        raise RefusedError(
            f"this host was provisioned for another {', '.join(other)} than the fleet file and the lock have now, and"
            f" the installed program collects what {EXPECTATION} names",
            "Provision it, or ask as a user who may become root, without ssh.read_only",
        )


def _own() -> Expectation:
    with failing(RefusedError, f"{EXPECTATION} can't be read", "Provision this host"):
        return from_json(whole(EXPECTATION, LIMIT).decode("utf-8"))


def _unanswered(words: str) -> RefusedError:
    return RefusedError(
        f"{words[:80]!r} isn't a question that the installed program answers",
        "Ask as a user who may become root, without ssh.read_only",
    )


#: Verb → options that a request may give, with what checks their value; None: they have none.
_QUESTIONS: Mapping[str, Dict[str, Optional[Callable[[str], Any]]]] = {
    "evidence": {
        **dict.fromkeys(("--json", "--trail", "--nvlink", "--fresh")),
        "--expectation": str,
        "--mount": _mount_point,
    },
    "watch": {"--json": None, "--once": None, "--every": interval, "--job": job},
}
