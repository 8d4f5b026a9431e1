"""What apt would do: a simulation of a transaction, and the moves in it with their reasons."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from ...errors import CannotTellError, NotOfferedError
from ...evidence.recorder import Recorder
from ...model import compat
from ...process import Output
from ...subjects.packages import apt_inputs
from ..host import ManagedHost
from ..model import Change
from . import state as database
from .managers import Package, list_packages
from .transaction import CONFLICTS, NEEDS, REPLACED

#: No questions, and no service that needrestart restarts: containerd or slurmd of a host at work.
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    # For a needrestart that doesn't know the variable above: it lists services.
    "NEEDRESTART_MODE": "l",
}
#: A query must neither wait for a lock nor leave a cache behind.
LOOK = ["--simulate", "--option=Debug::NoLocking=1"]


def simulate(host: ManagedHost, words: Sequence[str]) -> List[Change]:
    """What apt says it would change.  Raises CannotTellError."""
    return moves(host, host.query(["apt-get", "--assume-yes", *LOOK, *words], env=ENVIRONMENT))


REMOVED = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[(\S+)\])?", re.MULTILINE)
_INST = re.compile(r"^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Architecture|Version|Replaces|Provides|Conflicts|Breaks|SHA256): (.*)$", re.MULTILINE)
#: The names in a field of relations.
_RELATION = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")
#: What apt prints of packages that can't be installed together, and its errors.
_UNMET = re.compile(r"^ (\S+) : (\S.*)$", re.MULTILINE)
_ERROR = re.compile(r"^E: (.*)$", re.MULTILINE)
_RELATIONS = "${Package}\\t${Architecture}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"
_SECONDS = 120.0


def moves(host: ManagedHost, shown: str) -> List[Change]:
    """The changes in the output of a simulation, removals first and with their reasons.  Raises CannotTellError."""
    changes = []
    for name, before, after in _INST.findall(shown):
        if before != after:
            newer = not before or compat.version_order(before) < compat.version_order(after)
            kind = ("upgrade" if newer else "downgrade") if before else "install"
            changes.append(Change(kind, name, before, after))
    going: Dict[str, str] = dict(REMOVED.findall(shown))
    reasons = _reasons(host, going, changes) if going else {}
    removals = [replace(Change("remove", name, going[name]), **reasons.get(name, {})) for name in going]
    return [*removals, *changes]


def _reasons(host: ManagedHost, going: Mapping[str, str], coming: Sequence[Change]) -> Dict[str, Dict[str, Any]]:
    """Name → why it leaves, and the package by which, as fields of a change."""
    names = [f"{change.subject}={change.after}" for change in coming]
    shown = show(host, names) if names else ""
    records = [dict(_FIELD.findall(record)) for record in shown.split("\n\n")]
    listed = host.query(["dpkg-query", "--show", "--showformat", _RELATIONS, "--", *going])
    own, moving = _native(host), {name.partition(":")[0] for name in [*going, *(change.subject for change in coming)]}
    return {
        database.full_name(name, architecture, own): {"reason": reason, "by": by}
        for name, architecture, provides, depends in (line.split("\t") for line in listed.splitlines())
        for reason, by in [_reason({name, *_names(provides)}, _names(depends), records, moving)]
    }


def _native(host: ManagedHost) -> str:
    return database.native(list_packages(host, database.DPKG))


def _reason(own: Set[str], needs: Set[str], records: Sequence[Mapping[str, str]], moving: Set[str]) -> Tuple[str, str]:
    """One that comes replaces it: by Replaces, or by a name that both provide; or excludes it; or it needs another."""
    for reason, fields in ((REPLACED, ("Replaces", "Provides")), (CONFLICTS, ("Conflicts", "Breaks"))):
        for record in records:
            if own & {name for field in fields for name in _names(record.get(field, ""))}:
                return reason, record["Package"]
    return next(((NEEDS, name) for name in sorted(needs & moving - own)), ("", ""))


def _names(field: str) -> Set[str]:
    return set(_RELATION.findall(field))


def simulate_return(host: ManagedHost, install: Sequence[Package], words: Sequence[str]) -> List[Change]:
    """What bringing these back would change.

    words: the transaction.  Raises NotOfferedError and CannotTellError, with what apt says.
    """
    on_offer = offered(host, install)
    missing = [package.package for package in install if str(package) not in on_offer]
    if missing:
        raise NotOfferedError(missing)
    output = host.look(["apt-get", "--assume-yes", *LOOK, *words], _SECONDS)
    if output.status != 0 or output.truncated:
        raise CannotTellError(_problem(output), kind="refused")
    return moves(host, output.stdout)


def offered(host: ManagedHost, packages: Sequence[Package]) -> Set[str]:
    """Those of ``packages``, as NAME=VERSION, that a repository offers; raises CannotTellError."""
    if not packages:
        return set()
    shown = show(host, list(map(str, packages)))
    # What dpkg alone knows, of a package that left its configuration, has no checksum.
    records = (dict(_FIELD.findall(record)) for record in shown.split("\n\n"))
    found, own = [one for one in records if "SHA256" in one and "Package" in one], _native(host)
    names = [database.full_name(one["Package"], one.get("Architecture", ""), own) for one in found]
    return {f"{name}={one.get('Version')}" for name, one in zip(names, found)}


def show(host: ManagedHost, names: Sequence[str]) -> str:
    """The records of those ``names`` that apt knows; its status is 100 where it doesn't know all.  As for ask()."""
    return ask(host, ["show", "--", *names], (0, 100))


def ask(host: ManagedHost, words: Sequence[str], statuses: Sequence[int] = (0,)) -> str:
    """What apt-cache prints.  Raises CannotTellError.

    apt 2.6.1 that meets a cache of before an update may say "Cache is out of sync", and makes another one: so
    it did in 4 of 308 runs that followed a killed one.
    """
    return host.query(["apt-cache", *words], statuses, again=True, inputs=_inputs(host))


def targets(host: ManagedHost, form: str) -> List[str]:
    """A line of this form for each list of packages that apt has.  Raises CannotTellError."""
    argv = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    return host.query(argv, inputs=_inputs(host)).splitlines()


def _inputs(host: ManagedHost) -> Any:
    return host.once("apt's inputs", lambda: apt_inputs(Recorder(root=host.root)))


def _problem(output: Output) -> str:
    unmet = [f"{name}: {' '.join(text.split())}" for name, text in _UNMET.findall(output.stdout)]
    return "; ".join(unmet or _ERROR.findall(output.stderr)[-2:]) or output.failure()
