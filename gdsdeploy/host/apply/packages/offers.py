"""What dnf would choose from, as dnf_child.py answers: with every exclude, lock and module stream of the host."""

from __future__ import annotations

import json
import os
import pkgutil
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set

from ...errors import ApplyError
from ...rootdir import read_text
from ..host import ManagedHost
from .managers import REFRESH_SECONDS, run

#: Why a locked package can't be taken: as in dnf_child.py; no repository has it; another version may be taken, too.
EXCLUDED, STREAM, MISSING, UNLOCKED = "excluded", "stream", "missing", "unlocked"
HINTS: Mapping[str, str] = {
    EXCLUDED: "An exclude= in /etc/dnf/dnf.conf, an excludepkgs= in /etc/yum.repos.d or another line of"
    " /etc/dnf/plugins/versionlock.list hides them: take it away.",
    STREAM: "Another module stream hides them: run dnf module list --enabled, then dnf module reset NAME.",
    MISSING: 'The repository no longer has them: "gdsdeploy lock FLEET --check" tells.',
    UNLOCKED: "The plugin versionlock isn't at work: look at plugins= in /etc/dnf/dnf.conf and at"
    " /etc/dnf/plugins/versionlock.conf.",
}
_PROGRAM = "/usr/bin/dnf"


@dataclass(frozen=True)
class Offer:
    """NAME=EPOCH:VERSION-RELEASE → sha256 of each file of it that this machine can run, or why dnf may not take it."""

    digests: Mapping[str, Set[str]]
    hidden: Mapping[str, str]


def ask(host: ManagedHost, names: Sequence[str], options: Sequence[str] = ()) -> Offer:
    """Read the package lists that are older than dnf's limit (or with ``--refresh`` all) and ask; raises ApplyError."""
    run(host, ["dnf", "--quiet", "--assumeyes", *options, "makecache"], REFRESH_SECONDS)
    output = host.attempt([_python(host), "-I", "-c", _source(), json.dumps(list(names))], REFRESH_SECONDS)
    try:
        return _parse(json.loads(output.stdout if output.status == 0 and not output.truncated else ""))
    except (ValueError, TypeError, LookupError, AttributeError):
        hint = "see what is wrong with dnf: dnf repolist"
        raise ApplyError(f"dnf can't be asked what it would install: {output.failure()}", hint) from None


def _parse(value: Any) -> Offer:
    digests: Dict[str, Set[str]] = {}
    hidden: Dict[str, str] = {}
    for name, version, arch, digest in value["offered"]:
        sums = digests.setdefault(f"{name}={version}", set())
        if arch in ("noarch", os.uname().machine):
            sums.add(str(digest))
    for name, version, reason in value["hidden"]:
        hidden[f"{name}={version}"] = {EXCLUDED: EXCLUDED, STREAM: STREAM}[reason]
    return Offer(digests, hidden)


def _python(host: ManagedHost) -> str:
    """The interpreter of dnf's program: others don't have its library."""
    first: List[str] = read_text(host.root, _PROGRAM).partition("\n")[0].lstrip("#!").split()
    return first[0] if first and first[0].startswith("/") else "/usr/bin/python3"


def _source() -> str:
    data = pkgutil.get_data(__package__ or "", "dnf_child.py")
    assert data is not None
    return data.decode("utf-8")
