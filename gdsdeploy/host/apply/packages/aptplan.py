"""What apt would do: its lists of packages, a simulation of a transaction, and the moves that follow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from ...errors import CannotTellError, NotOfferedError
from ...model import compat
from ...process import Output
from ...rootdir import inside, list_folder
from ..host import ManagedHost
from ..model import Change
from . import state as database
from .future import looking, scratch_sources
from .managers import Package, list_packages
from .removals import CONFLICTS, NEEDS, REPLACED

_LISTS, _LIST_PARTS = "/var/lib/apt/lists", "/etc/apt/sources.list.d"
#: Seconds for all repositories, and without any data from one, after which it is out of reach of a look.
_LIST_SECONDS, _SILENCE = 120.0, 10
#: With which apt begins what is wrong; its last error only says that there was one.
_LIST_ERROR = "E: "
#: Hooks of an update change the host.  A look doesn't try again.
_CONFIGURATION = """\
#clear APT::Update;
#clear Acquire::Languages;
Acquire::Languages "none";
Dir::Etc::sourceparts "{parts}";
Dir::State::lists "{lists}";
Dir::Cache "{cache}";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Acquire::Retries "0";
Acquire::http::Timeout "{seconds}";
Acquire::https::Timeout "{seconds}";
"""


def options(host: ManagedHost, sources: str) -> List[str]:
    """Options with which apt knows what a check predicts for the file ``sources``; none where nothing is predicted.

    Raises CannotTellError where a repository can't be read.
    """
    if not host.prediction.offers:
        return []
    with looking():
        configuration = str(host.once(("apt-lists", sources), lambda: _prepare(host, sources)))
    argv = ["apt-get", f"--config-file={configuration}", "--quiet", "--error-on=any", "update"]
    output = host.look(argv, _LIST_SECONDS)
    if output.status != 0:
        errors = [line[len(_LIST_ERROR) :] for line in output.stderr.splitlines() if line.startswith(_LIST_ERROR)]
        words = errors[0] if errors else output.failure()
        raise CannotTellError(f"this host can't read the repositories that it will have: {words}")
    return [f"--config-file={configuration}"]


def _prepare(host: ManagedHost, sources: str) -> str:
    """The path of a configuration; apt's folders beside it have the host's sources and lists."""
    parts, lists, cache = (host.scratch(name) for name in ("sources", "lists", "cache"))
    scratch_sources(host, sources)
    _link_all(inside(host.root, _LIST_PARTS), parts)
    _link_all(inside(host.root, _LISTS), lists)
    os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
    path = os.path.join(host.scratch("configuration"), "apt.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_CONFIGURATION.format(parts=parts, lists=lists, cache=cache, seconds=_SILENCE))
    return path


def _link_all(folder: str, place: str) -> None:
    """Links to the files of a folder, but for those whose names are taken.

    What apt may touch, the descriptions of repositories, is copied; it never writes into a list.
    """
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        source, target = os.path.join(folder, name), os.path.join(place, name)
        if name == "lock" or os.path.lexists(target) or not os.path.isfile(source):
            continue
        if name.endswith(("Release", "Release.gpg")):
            shutil.copyfile(source, target)
            shutil.copystat(source, target)
        else:
            os.symlink(source, target)


_STATUS = "/var/lib/dpkg/status"
#: An administrator's preferences outside of preferences.d.
_MAIN = "/etc/apt/preferences"
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


def simulate(host: ManagedHost, options: Sequence[str], words: Sequence[str], loose: Sequence[str]) -> str:
    """What apt says it would do, given that the holds of ``loose`` are gone and preferences are as predicted.

    options: of aptlists.options.  Raises CannotTellError.
    """
    argv = ["apt-get", *options, "--assume-yes", *LOOK]
    with contextlib.ExitStack() as stack:
        if host.prediction.preferences:
            # apt reads this file before those of preferences.d, as it will read ours.
            text = f"{host.prediction.preferences}\n{host.text(_MAIN)}"
            argv.append(f"--option=Dir::Etc::preferences={stack.enter_context(_temporary('preferences', text))}")
        if loose:
            status = host.once(("loose", *loose), lambda: _loose_status(host, loose))
            # apt's own cache is of another status; it takes a second of processor time to make one.
            argv += [f"--option=Dir::State::status={status}", f"--option=Dir::Cache::pkgcache={status}.pkgcache"]
        return host.query([*argv, *words], env=ENVIRONMENT)


def _loose_status(host: ManagedHost, names: Sequence[str]) -> str:
    """The path of a copy of dpkg's status where ``names`` aren't held; apt puts its cache of it beside it."""
    with looking():
        path = tempfile.mkdtemp(prefix="loose-", dir=host.scratch("status")) + "/status"
        with open(path, "w", encoding="utf-8") as file:
            file.write(_without_holds(host.text(_STATUS), names))
    return path


@contextlib.contextmanager
def _temporary(name: str, text: str) -> Iterator[str]:
    """The path of a file with this text."""
    with tempfile.NamedTemporaryFile("w", prefix=f"gdsdeploy-{name}-", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


def _without_holds(status: str, names: Sequence[str]) -> str:
    """Dpkg's status where ``names`` aren't held."""
    for name, _, architecture in (name.partition(":") for name in names):
        of = rf"(?=(?:.+\n)*Architecture: {re.escape(architecture)}\n)" if architecture else ""
        pattern = rf"^(Package: {re.escape(name)}\n{of}(?:.+\n)*?Status: )hold "
        status = re.sub(pattern, r"\1install ", status, flags=re.MULTILINE)
    return status


REMOVED = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[(\S+)\])?", re.MULTILINE)
_INST = re.compile(r"^Inst (\S+) (?:\[(\S+)\] )?\((\S+) ", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Architecture|Version|Replaces|Provides|Conflicts|Breaks|SHA256): (.*)$", re.MULTILINE)
#: The names in a field of relations.
_RELATION = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")
#: What apt prints of packages that can't be installed together, and its errors.
_UNMET = re.compile(r"^ (\S+) : (\S.*)$", re.MULTILINE)
_ERROR = re.compile(r"^E: (.*)$", re.MULTILINE)
_RELATIONS = "${Package}\\t${Architecture}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"
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
            newer = not before or compat.version_order(before) < compat.version_order(after)
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
    shown = show(host, names, options(host, sources)) if names else ""
    records = [dict(_FIELD.findall(record)) for record in shown.split("\n\n")]
    listed = host.query(["dpkg-query", "--show", "--showformat", _RELATIONS, "--", *going])
    own, moving = _native(host), {name.partition(":")[0] for name in [*going, *_subjects(coming)]}
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
    shown = show(host, list(map(str, packages)), options)
    # What dpkg alone knows, of a package that left its configuration, has no checksum.
    records = (dict(_FIELD.findall(record)) for record in shown.split("\n\n"))
    found, own = [one for one in records if "SHA256" in one and "Package" in one], _native(host)
    names = [database.full_name(one["Package"], one.get("Architecture", ""), own) for one in found]
    return {f"{name}={one.get('Version')}" for name, one in zip(names, found)}


def show(host: ManagedHost, names: Sequence[str], options: Sequence[str] = ()) -> str:
    """The records of those ``names`` that apt knows; its status is 100 where it doesn't know all.  As for ask()."""
    return ask(host, [*options, "show", "--", *names], (0, 100))


def ask(host: ManagedHost, words: Sequence[str], statuses: Sequence[int] = (0,)) -> str:
    """What apt-cache prints.  Raises CannotTellError.

    apt 2.6.1 that meets a cache of before an update may say "Cache is out of sync", and makes another one: so
    it did in 4 of 308 runs that followed a killed one.
    """
    return host.query(["apt-cache", *words], statuses, again=True)


def _problem(output: Output) -> str:
    unmet = [f"{name}: {' '.join(text.split())}" for name, text in _UNMET.findall(output.stdout)]
    return "; ".join(unmet or _ERROR.findall(output.stderr)[-2:]) or output.failure()
