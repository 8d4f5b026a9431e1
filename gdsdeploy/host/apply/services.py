"""Units of systemd that resources put in place: the links that start them at boot, and ``systemctl``.

``systemctl enable`` also works where systemd doesn't run (a container, an image); what only a running systemd can do
is neither predicted nor done there.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from typing import Any, ClassVar, List, NamedTuple, Sequence, Tuple, TypeVar

from .. import derived
from ..derived import Thing
from ..errors import CannotTellError
from ..rootdir import list_folder
from .file_resource import FileResource, restoration_changes, restore, take_back
from .files import FILE, File
from .host import ManagedHost
from .model import NONE, RELOAD, Change, Refusal, Words, writing
from .record import beside

FOLDER = "/etc/systemd/system"
_VENDOR = "/usr/lib/systemd/system"
#: There while systemd runs, see sd_booted(3).
_BOOTED = "/run/systemd/system"
#: The units of gdsdeploy, and the one that it keeps from working: one call of systemctl tells about all.
OWN = ("gds-gate.service", "gds-peermem.service", "gds-watch.service", "nv_peer_mem.service")
#: gds-peermem.service may take 300 s to start; stopping it is one rmmod.
_SECONDS = 360.0
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(service|target|socket|mount|path|timer)")


class Unit(NamedTuple):
    """A unit as it is on the host."""

    #: whether its file is there
    exists: bool
    #: links to it in the folders of other units, sorted
    links: List[str]


def path(unit: str) -> str:
    """The path of a unit file that gdsdeploy writes."""
    return f"{FOLDER}/{unit}"


def observe(host: ManagedHost, unit: str) -> Unit:
    """The unit as it is."""
    folders = [name for name in list_folder(host.root, FOLDER) if name.endswith((".wants", ".requires"))]
    links = [f"{FOLDER}/{folder}/{unit}" for folder in folders]
    present = [link for link in links if os.path.lexists(beside(host.root, link))]
    return Unit(host.entry(path(unit)) is not None, present)


def is_booted(host: ManagedHost) -> bool:
    """Whether systemd runs, and runs this system."""
    return host.root == "/" and host.exists(_BOOTED)


def is_outdated(host: ManagedHost, units: Sequence[str]) -> bool:
    """Whether the running systemd has read another version of a unit than the files say; raises CannotTellError."""
    return is_booted(host) and any(_shown(host, unit).get("NeedDaemonReload") == "yes" for unit in units)


def _shown(host: ManagedHost, unit: str) -> Any:
    """Property → what systemd says about a unit; raises CannotTellError."""
    names = [*OWN, *([] if unit in OWN else [unit])]
    argv = ["systemctl", "show", "--property=ActiveState,NeedDaemonReload", *names]
    blocks = host.query(argv).strip().split("\n\n")
    if len(blocks) != len(names):
        raise CannotTellError(f"systemctl show: {len(blocks)} answers about {len(names)} units")
    return dict(line.partition("=")[::2] for line in blocks[names.index(unit)].splitlines())


def reload_changes(*, outdated: bool, changes: Sequence[Change], reason: str = "outdated") -> List[Change]:
    """What has systemd read its files again, unless one of the changes before does; enabling a unit does."""
    is_read = any(change.kind in ("enable", "reload") for change in changes)
    return [Change("reload", "systemd", "", "", reason)] if outdated and not is_read else []


def links(unit: str, text: str) -> List[str]:
    """The links that ``systemctl enable`` makes for a unit with this text, sorted."""
    paths = set()
    for line in text.splitlines():
        key, _, value = line.partition("=")
        ending = {"WantedBy": "wants", "RequiredBy": "requires"}.get(key)
        paths |= {f"{FOLDER}/{other}.{ending}/{unit}" for other in value.split()} if ending else set()
    return sorted(paths)


def enable_changes(unit: str, text: str, present: Unit, *, written: bool) -> List[Change]:
    """What enables it as its text says; ``written``: its file is about to be written."""
    if written:
        return [Change("enable", unit, "enabled" if present.links else "", "enabled", "unit")]
    if present.links != links(unit, text):
        return [Change("enable", unit, ", ".join(present.links), "enabled", "links")]
    return []


def dismiss_changes(unit: str, present: Unit, disruption: str = NONE) -> List[Change]:
    """What disables a unit that isn't wanted; its file is deleted afterwards."""
    if not present.exists and not present.links:
        return []
    return [Change("disable", unit, "enabled" if present.links else "", "", "not-wanted", disruption)]


def enable(host: ManagedHost, unit: str) -> None:
    """Enable a unit as its file says now: links that it no longer asks for go.  Raises ApplyError."""
    _undo_links(host, unit, host.text(path(unit)))
    systemctl(host, "reenable", unit)


def vendor_text(host: ManagedHost, unit: str) -> str:
    """The text of a unit that a package brought; empty where it is missing or masked.  Raises CannotTellError."""
    own = host.entry(path(unit))
    if own is not None:
        # A link to /dev/null is an administrator's mask.
        return host.text(path(unit)) if own.kind == FILE else ""
    return host.text(f"{_VENDOR}/{unit}")


def missing_links(unit: str, text: str, present: Unit) -> List[str]:
    """The links that enabling a package's unit would make; a unit without [Install] has none."""
    return [link for link in links(unit, text) if link not in present.links]


def enable_vendor(host: ManagedHost, unit: str, missing: Sequence[str]) -> None:
    """Enable a package's unit; ``missing`` links are recorded, and a removal deletes them.  Raises ApplyError."""
    for link in missing:
        host.preserve(link)
    systemctl(host, "enable", unit)


def is_active(host: ManagedHost, unit: str) -> bool:
    """Whether a unit runs; raises CannotTellError."""
    return bool(_shown(host, unit).get("ActiveState") == "active")


def has_failed(host: ManagedHost, unit: str) -> bool:
    """Whether the latest start of a unit failed; raises CannotTellError."""
    return is_booted(host) and _shown(host, unit).get("ActiveState") == "failed"


def disable(host: ManagedHost, unit: str, *, stop: bool = False) -> None:
    """Disable a unit, and stop it if systemd runs; raises ApplyError."""
    _undo_links(host, unit)
    if observe(host, unit).exists:
        systemctl(host, "disable", *(["--now"] if stop and is_booted(host) else []), unit)
    # systemctl refuses a unit whose file is missing, and leaves its links.
    for link in observe(host, unit).links:
        host.remove_tree(link)


def _undo_links(host: ManagedHost, unit: str, text: str = "") -> None:
    """Have the unit's links, and those that its text asks for, be as they are now when the resource fails."""
    for link in dict.fromkeys([*observe(host, unit).links, *links(unit, text)]):
        for folder in host.missing_folders(link):
            # systemctl takes the folder away with its last link, and may be cut off before that.
            host.preserve(folder)
        host.undoable(link)
    host.undo_by("systemd", lambda: reload(host), last=True)


def running(host: ManagedHost, unit: str, sources: Sequence[str]) -> Thing:
    """A unit that runs as a thing that was made from the files that it read when it started."""
    return derived.in_this_boot(unit, sources, host.root)


def systemd(host: ManagedHost) -> Thing:
    """What the running systemd has read of its files, while a removal changes them."""
    return derived.in_this_boot("systemd", (), host.root)


def reload(host: ManagedHost) -> None:
    """Have systemd read its files again, if it runs; raises ApplyError."""
    if is_booted(host):
        systemctl(host, "daemon-reload")


def apply(host: ManagedHost, change: Change, *, stop: bool = False) -> bool:
    """Make a change of :func:`enabling`, :func:`dismissing` or ``restoring``; whether it is one.  Raises ApplyError."""
    if change.kind == "enable":
        enable(host, change.subject)
    elif change.kind == "disable":
        disable(host, change.subject, stop=stop)
    elif change.kind == "reload":
        reload(host)
    elif change.reason in ("restore", "not-recorded"):
        take_back(host, change.subject)
    else:
        return False
    return True


def dismiss(host: ManagedHost, unit: str, paths: Sequence[str], disruption: str = NONE) -> List[Change]:
    """Disable and stop a unit, then restore its file and ``paths``; with ``host.check`` only say it."""
    changes = dismiss_changes(unit, observe(host, unit), disruption)
    every = (path(unit), *paths)
    if not host.check and is_booted(host) and (changes or restoration_changes(host, every)):
        with writing(derived.PATH):
            derived.outdate([systemd(host)], host.root)
    if changes and not host.check:
        disable(host, unit, stop=True)
    return changes + restore(host, every)


def names_refused(names: Sequence[str]) -> List[Refusal]:
    """Names that aren't those of units: they would become other lines of a unit file."""
    words, hint = "isn't the name of a systemd unit", "correct the fleet file"
    return [Refusal("unit-name", f"{name!r} {words}", hint) for name in names if not _NAME.fullmatch(name)]


def systemctl(host: ManagedHost, *words: str) -> None:
    """Have systemd do this, to this system; raises ApplyError."""
    root = [] if host.root == "/" else [f"--root={host.root}"]
    host.run(["systemctl", *root, *words], _SECONDS)


D = TypeVar("D")


class UnitResource(FileResource[D]):
    """A unit that is enabled, with its files, or none.  A subclass says what the unit is, in :meth:`unit_text`."""

    kinds: ClassVar[Words] = {
        "enable": "enable {}",
        "disable": "disable {}",
        "start": "start {}",
        "reload": "have {} read its configuration again",
    }
    reasons: ClassVar[Words] = {
        "unit": "a unit that changes",
        "links": "started by other units",
        "outdated": "an older version was read",
        "drop-in": "an older version was read",
    }
    unit: ClassVar[str]
    #: other files of :meth:`desired_files`, and those that the unit's program leaves
    places: ClassVar[Tuple[str, ...]] = ()
    results: ClassVar[Tuple[str, ...]] = ()
    #: other units of which systemd has to have read the files
    read: ClassVar[Tuple[str, ...]] = ()
    #: folder of the kernel's module that the unit loads, and unloads when it stops; empty: it loads none
    module: ClassVar[str] = ""
    #: whether it is stopped when it is disabled
    stops: ClassVar[bool] = True

    @abstractmethod
    def unit_text(self, desired: D) -> str:
        """The text of the unit; empty: it isn't wanted."""

    def desired_files(self, desired: D) -> List[File]:
        text = self.unit_text(desired)
        return [File.of(path(self.unit), text)] if text else []

    def observe(self, host: ManagedHost, desired: D) -> Any:
        observed = super().observe(host, desired)
        wanted, units = {*observed}, [*self.read, *([self.unit] if self.unit_text(desired) else [])]
        every = (path(self.unit), *self.places, *(() if self.unit_text(desired) else self.results))
        observed["back"] = restoration_changes(host, [each for each in every if each not in wanted])
        observed["unit"] = observe(host, self.unit)
        observed["booted"] = is_booted(host)
        observed["outdated"] = bool(units) and is_outdated(host, units)
        observed["loaded"] = bool(self.module) and host.exists(self.module)
        return observed

    def changes(self, desired: D, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """Files and the links of the unit; systemd reads them as they are enabled."""
        changes, text = super().changes(desired, observed, pending), self.unit_text(desired)
        if text:
            written = any(change.subject == path(self.unit) for change in changes)
            changes += [*observed["back"], *enable_changes(self.unit, text, observed["unit"], written=written)]
        else:
            disruption = RELOAD if observed["loaded"] else NONE
            changes += [*dismiss_changes(self.unit, observed["unit"], disruption), *observed["back"]]
        outdated = observed["booted"] and observed["outdated"]
        return changes + reload_changes(outdated=outdated, changes=[*pending, *changes])

    def apply(self, host: ManagedHost, desired: D, change: Change) -> None:
        if not apply(host, change, stop=self.stops):
            super().apply(host, desired, change)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Stop the unit, which unloads its module, forget it, and take back its files."""
        disruption = RELOAD if self.module and host.exists(self.module) else NONE
        return dismiss(host, self.unit, (*self.places, *self.results), disruption)
