"""What apt says it would do, as changes: why packages leave, and how those that left come back."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from ...errors import CannotTellError, NotOfferedError
from ...model import version_rules
from ...process import Output
from ...rootdir import inside, list_folder
from ..host import ManagedHost
from ..model import Change
from . import aptlists
from .managers import Package
from .removals import CONFLICTS, NEEDS, REPLACED

REMOVED = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[(\S+)\])?", re.MULTILINE)
_INST = re.compile(r"^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Version|Replaces|Provides|Conflicts|Breaks|SHA256): (.*)$", re.MULTILINE)
#: The names in a field of relations.
_RELATION = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")
#: What apt prints of packages that can't be installed together, and its errors.
_UNMET = re.compile(r"^ (\S+) : (\S.*)$", re.MULTILINE)
_ERROR = re.compile(r"^E: (.*)$", re.MULTILINE)
_RELATIONS = "${Package}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"
#: Folders of apt, and their option.
_PARTS = {"/etc/apt/sources.list.d": "sourceparts", "/etc/apt/preferences.d": "preferencesparts"}
_SECONDS = 120.0


def moves(host: ManagedHost, shown: str, sources: str) -> List[Change]:
    """The changes in the output of a simulation, removals first and with their reasons.

    sources: the file of gdsdeploy's repositories.  Raises CannotTellError.
    """
    changes = []
    for name, before, after in _INST.findall(shown):
        if before != after:
            newer = not before or version_rules.order(before) < version_rules.order(after)
            kind = ("upgrade" if newer else "downgrade") if before else "install"
            changes.append(Change(kind, name, before, after))
    going: Dict[str, str] = dict(REMOVED.findall(shown))
    reasons = _reasons(host, going, changes, sources) if going else {}
    removals = [replace(Change("remove", name, going[name]), **reasons.get(name, {})) for name in going]
    return [*removals, *changes]


def _reasons(
    host: ManagedHost, going: Mapping[str, str], coming: Sequence[Change], sources: str
) -> Dict[str, Dict[str, Any]]:
    """Name → why it leaves, and the package by which, as fields of a change."""
    names = [f"{change.subject}={change.after}" for change in coming]
    argv = ["apt-cache", *aptlists.options(host, sources), "show", "--", *names]
    shown = host.query(argv, statuses=(0, 100)) if names else ""
    records = [dict(_FIELD.findall(record)) for record in shown.split("\n\n")]
    listed = host.query(["dpkg-query", "--show", "--showformat", _RELATIONS, "--", *going])
    return {
        name: {"reason": reason, "by": by}
        for name, provides, depends in (line.split("\t") for line in listed.splitlines())
        for reason, by in [_reason({name, *_names(provides)}, _names(depends), records, {*going, *_subjects(coming)})]
    }


def _reason(own: Set[str], needs: Set[str], records: Sequence[Mapping[str, str]], moving: Set[str]) -> Tuple[str, str]:
    """One that comes replaces it: by Replaces, or by a name that both provide; or excludes it; or it needs another."""
    for reason, fields in ((REPLACED, ("Replaces", "Provides")), (CONFLICTS, ("Conflicts", "Breaks"))):
        for record in records:
            if own & {name for field in fields for name in _names(record.get(field, ""))}:
                return reason, record["Package"]
    return next(((NEEDS, name) for name in sorted(needs & moving - own)), ("", ""))


def _names(field: str) -> Set[str]:
    return set(_RELATION.findall(field))


def _subjects(changes: Sequence[Change]) -> Iterator[str]:
    return (change.subject for change in changes)


def without_ours(host: ManagedHost) -> List[str]:
    """Options with which apt reads neither gdsdeploy's repositories nor its preferences, as after a removal."""
    # The host's cache would be that of other sources.
    options = ["--option=Dir::Cache::pkgcache=", "--option=Dir::Cache::srcpkgcache="]
    for folder, option in _PARTS.items():
        place = host.scratch(f"without-{option}")
        for name in list_folder(host.root, folder):
            target = os.path.join(place, name)
            if not re.fullmatch(r"(?:00-)?gdsdeploy(?:-restore)?\..*", name) and not os.path.lexists(target):
                os.symlink(os.path.join(inside(host.root, folder), name), target)
        options.append(f"--option=Dir::Etc::{option}={place}")
    return options


def simulate_return(
    host: ManagedHost, options: Sequence[str], install: Sequence[Package], words: Sequence[str]
) -> List[Change]:
    """What bringing these back would change.

    options: of apt.  words: the transaction.  Raises NotOfferedError and CannotTellError, with what apt says.
    """
    on_offer = offered(host, install, [option for option in options if option.startswith("--option=Dir::")])
    missing = [package.package for package in install if str(package) not in on_offer]
    if missing:
        raise NotOfferedError(missing)
    output = host.look(["apt-get", "--assume-yes", *options, *words], _SECONDS)
    if output.status != 0 or output.truncated:
        raise CannotTellError(_problem(output), kind="refused")
    return [
        *(Change("remove", name, before) for name, before in REMOVED.findall(output.stdout)),
        *(change for change in moves(host, REMOVED.sub("", output.stdout), "")),
    ]


def offered(host: ManagedHost, packages: Sequence[Package], options: Sequence[str] = ()) -> Set[str]:
    """Those of ``packages``, as NAME=VERSION, that a repository offers; raises CannotTellError."""
    if not packages:
        return set()
    shown = host.query(["apt-cache", *options, "show", "--", *map(str, packages)], statuses=(0, 100))
    # What dpkg alone knows, of a package that left its configuration, has no checksum.
    records = (dict(_FIELD.findall(record)) for record in shown.split("\n\n"))
    return {f"{one.get('Package')}={one.get('Version')}" for one in records if "SHA256" in one}


def _problem(output: Output) -> str:
    unmet = [f"{name}: {' '.join(text.split())}" for name, text in _UNMET.findall(output.stdout)]
    return "; ".join(unmet or _ERROR.findall(output.stderr)[-2:]) or output.failure()
