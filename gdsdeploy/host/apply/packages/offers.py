"""What dnf would choose from and what it would change, as dnf_child.py answers.

Both with every exclude, lock and module stream of the host.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ...errors import ApplyError, CannotTellError, NotOfferedError
from ...process import Output
from ...rootdir import read_text
from ..host import ManagedHost
from ..model import INSTALLS, Change
from .managers import REFRESH_SECONDS, run
from .transaction import CONFLICTS, NEEDS, REPLACED

#: Why a locked package can't be taken: as in dnf_child.py; no repository has it; another version may be taken, too.
EXCLUDED, STREAM, MISSING, UNLOCKED = "excluded", "stream", "missing", "unlocked"
#: Why a transaction has no solution, beside MISSING: packages exclude each other; package lists can't be read.
CONFLICT, METADATA = "conflict", "metadata"
HINTS: Mapping[str, str] = {
    EXCLUDED: "An exclude= in /etc/dnf/dnf.conf, an excludepkgs= in /etc/yum.repos.d or another line of"
    " /etc/dnf/plugins/versionlock.list hides them: take it away.",
    STREAM: "Another module stream hides them: run dnf module list --enabled, then dnf module reset NAME.",
    MISSING: 'The repository no longer has them: "gdsdeploy lock FLEET --check" tells.',
    UNLOCKED: "The plugin versionlock isn't at work: look at plugins= in /etc/dnf/dnf.conf and at"
    " /etc/dnf/plugins/versionlock.conf.",
}
_PROGRAM = "/usr/bin/dnf"
#: What follows the name in NAME-EPOCH:VERSION-RELEASE.
_NEVRA = re.compile(r"-[0-9]+:[^-]+-[^-]+$")
_LOOK = "see what is wrong with dnf: dnf repolist"
#: Why there is no transaction → what to do, and the kind of the error.
_UNSOLVED: Mapping[str, Tuple[str, str]] = {
    MISSING: ('The repository no longer has them: "gdsdeploy lock FLEET --check" tells.', "verify"),
    CONFLICT: (
        "Something on this host excludes them: take it away, or lock other versions",
        "refused",
    ),
    METADATA: ("see which repository of this host doesn't answer: dnf makecache", "failed"),
}


#: For a look, while another dnf may be at work.
_SOLVE_SECONDS = 120.0


class Offer(NamedTuple):
    """NAME=EPOCH:VERSION-RELEASE → sha256 of each file of it that this machine can run, or why dnf may not take it."""

    digests: Mapping[str, Set[str]]
    hidden: Mapping[str, str]


class Solution(NamedTuple):
    """``moves``: everything that changes; that of a removal has a reason of transaction.py, or none.

    ``erases``: dnf needs ``--allowerasing`` for it.
    """

    moves: Tuple[Change, ...]
    erases: bool


def ask(host: ManagedHost, names: Sequence[str], options: Sequence[str] = ()) -> Offer:
    """Read the package lists that are older than dnf's limit (or with ``--refresh`` all) and ask; raises ApplyError."""
    run(host, ["dnf", "--quiet", "--assumeyes", *options, "makecache"], REFRESH_SECONDS)
    output = host.attempt(_argv(host, {"names": list(names)}), REFRESH_SECONDS)
    try:
        return _parse(_answer(output))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ApplyError(f"dnf can't be asked what it would install: {output.failure()}", _LOOK) from None


def solve(host: ManagedHost, request: Mapping[str, Any], *, returns: bool = False) -> Solution:
    """The transaction that dnf resolves; request: as dnf_child.py has it.

    returns: it brings back what left.  Raises CannotTellError where dnf finds none, or can't be asked; of packages that
    return NotOfferedError where a repository doesn't offer them.
    """
    output = host.look(_argv(host, request), _SOLVE_SECONDS if request["cached"] else REFRESH_SECONDS)
    try:
        value = _answer(output)
        if "problem" in value:
            words = " ".join(str(value["text"]).split())
            hint, kind = _UNSOLVED[value["problem"]]
            if value["problem"] == MISSING and returns:
                raise NotOfferedError(_NEVRA.sub("", str(word)) for word in value["missing"])
            if returns:
                raise CannotTellError(words, kind=kind)
            raise CannotTellError(f"dnf can't install the locked packages: {words}", hint, kind)
        return Solution(tuple(dict.fromkeys(_move(*row) for row in value["moves"])), value["erases"] is True)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CannotTellError(f"dnf can't be asked what it would change: {output.failure()}", _LOOK) from None


def _move(kind: str, name: str, before: str, after: str, reason: str, by: str) -> Change:
    if kind not in (*INSTALLS, "remove") or reason not in ("", REPLACED, CONFLICTS, NEEDS):
        raise ValueError(kind, reason)
    return Change(kind, str(name), plain(before), plain(after), reason, by=str(by))


def plain(version: str) -> str:
    """Without the epoch 0, as rpm writes versions."""
    return version[2:] if version.startswith("0:") else version


def _argv(host: ManagedHost, request: Mapping[str, Any]) -> List[str]:
    return [_python(host), "-I", "-c", _source(), json.dumps(request)]


def _answer(output: Output) -> Any:
    return json.loads(output.stdout if output.status == 0 and not output.truncated else "")


def _parse(value: Any) -> Offer:
    digests: Dict[str, Set[str]] = {}
    for name, version, arch, digest in value["offered"]:
        sums = digests.setdefault(f"{name}={version}", set())
        if arch in ("noarch", os.uname().machine):
            sums.add(str(digest))
    reasons = {EXCLUDED: EXCLUDED, STREAM: STREAM}
    hidden = {f"{name}={version}": reasons[reason] for name, version, reason in value["hidden"]}
    return Offer(digests, hidden)


def _python(host: ManagedHost) -> str:
    """The interpreter of dnf's program: others don't have its library."""
    first: List[str] = read_text(host.root, _PROGRAM).partition("\n")[0].lstrip("#!").split()
    return first[0] if first and first[0].startswith("/") else "/usr/bin/python3"


def _source() -> str:
    data = pkgutil.get_data(__package__ or "", "dnf_child.py")
    assert data is not None
    return data.decode("utf-8")
