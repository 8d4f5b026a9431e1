"""``/etc/cufile.json`` as a link of the alternatives system, which NVIDIA's packages of libcufile make it.

The postinst of ``libcufile-X-Y`` registers ``/usr/local/cuda-X.Y/gds/cufile.json`` in the group ``cufile.json``.  A
file in the link's place would leave that group broken, so gdsdeploy registers its own file with a higher priority.
``update-alternatives`` exists on Debian, Ubuntu and the RHEL family, with databases of the same form.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional

from ..rootdir import inside
from .files import File
from .host import ManagedHost
from .model import Change
from .record import beside

GROUP, LINK = "cufile.json", "/etc/cufile.json"
#: gdsdeploy's file, and its priority: libcufile of CUDA 13.0 has 130 at the most.
OWN, PRIORITY = "/etc/gdsdeploy/cufile.json", 1000000
_CHOICE = f"/etc/alternatives/{GROUP}"
#: Debian's and Red Hat's.
_DATABASES = (f"/var/lib/dpkg/alternatives/{GROUP}", f"/var/lib/alternatives/{GROUP}")
#: What was chosen before gdsdeploy's file: ``auto``, or the path that an administrator had chosen.
BEFORE = "/var/lib/gdsdeploy/alternative"
#: Packages that register an alternative; Debian's own libcufile0 registers none.
PACKAGE = re.compile(r"libcufile-[0-9]+-[0-9]+")
_PRIORITY = re.compile(r"(?:@[^@]*@)?([0-9]+)")
_SECONDS = 60.0


class Group(NamedTuple):
    """The group as its database has it."""

    #: whether the choice follows the priorities
    auto: bool
    #: path → priority
    choices: Dict[str, int]
    #: where the link leads; empty: there is none
    chosen: str
    #: whether /etc/cufile.json is the group's link
    linked: bool

    @property
    def is_ours(self) -> bool:
        """Whether the link leads to gdsdeploy's file."""
        return self.linked and OWN in self.choices and self.chosen == OWN


def observe(host: ManagedHost) -> Optional[Group]:
    """The group, None where there is none; raises CannotTellError."""
    text = next(filter(None, map(host.text, _DATABASES)), "")
    lines = text.splitlines()
    if len(lines) < 3 or lines[0] not in ("auto", "manual"):
        return None
    end = lines.index("", 2) if "" in lines[2:] else len(lines)
    # Slaves have a name and a link each, and in each choice a path.
    step = 2 + (end - 2) // 2
    rows = zip(lines[end + 1 :: step], map(_PRIORITY.fullmatch, lines[end + 2 :: step]))
    choices = {path: int(priority[1]) for path, priority in rows if path.startswith("/") and priority}
    return Group(lines[0] == "auto", choices, _readlink(host, _CHOICE), _readlink(host, LINK) == _CHOICE)


def choose_change(group: Optional[Group]) -> List[Change]:
    """What makes gdsdeploy's file the one that /etc/cufile.json leads to."""
    if group is not None and group.is_ours:
        return []
    return [Change("choose", LINK, "" if group is None else group.chosen, OWN, "alternative")]


def choose(host: ManagedHost) -> None:
    """Register gdsdeploy's file and choose it; raises ApplyError, and then it isn't registered."""
    group = observe(host)
    if not host.exists(BEFORE) and group is not None and OWN not in group.choices:
        before = "auto" if group.auto else group.chosen
        host.write_unrecorded(File.of(BEFORE, before + "\n"))
    if os.path.lexists(beside(host.root, LINK)) and not (group and group.linked):
        # A file in the link's place: the tool wouldn't replace it.  It is recorded, and put back on an error.
        host.preserve(LINK)
        host.remove_tree(LINK)
    host.undo_by(LINK, lambda: _unchoose(host, group))
    _run(host, "--install", LINK, GROUP, OWN, str(PRIORITY))
    now = observe(host)
    if now is None or not now.is_ours:
        # An administrator had chosen another one, which a priority doesn't change.
        _run(host, "--auto", GROUP)


def _unchoose(host: ManagedHost, before: Optional[Group]) -> None:
    """Take back what :func:`choose` has done, also in part.  Raises ApplyError."""
    now = observe(host)
    if now is not None and OWN in now.choices and (before is None or OWN not in before.choices):
        _run(host, "--remove", GROUP, OWN)
    if before is not None and not before.auto and before.chosen in before.choices:
        _run(host, "--set", GROUP, before.chosen)


def leave_changes(host: ManagedHost) -> List[Change]:
    """What takes gdsdeploy's file out of the group."""
    group = observe(host)
    if group is None or OWN not in group.choices:
        return []
    others = {path: priority for path, priority in group.choices.items() if path != OWN}
    before = host.text(BEFORE).strip()
    after = before if before in others else max(others, key=lambda path: others[path], default="")
    if group.chosen != OWN:
        # An administrator's choice of later stays.
        after = group.chosen
    return [Change("choose", LINK, OWN, after, "restore")] if after else [Change("delete", LINK, OWN, "", "restore")]


def leave(host: ManagedHost) -> None:
    """Take gdsdeploy's file out of the group, and choose what an administrator had chosen before; raises ApplyError.

    Afterwards the link is the alternatives system's: what it was before gdsdeploy is no longer of interest.
    """
    ours = _readlink(host, _CHOICE) == OWN
    _run(host, "--remove", GROUP, OWN)
    before, group = host.text(BEFORE).strip(), observe(host)
    if group is not None and ours and before in group.choices and group.chosen != before:
        _run(host, "--set", GROUP, before)
    recorded = host.record.paths.get(LINK)
    if group is not None and "content" not in (recorded or {}):
        host.record.forget(LINK)
    elif recorded is not None and "link" in recorded and not host.exists(str(recorded["link"])):
        # Its package has left meanwhile.
        host.record.forget(LINK)
    host.remove_tree(BEFORE)


def _readlink(host: ManagedHost, path: str) -> str:
    place = beside(host.root, path)
    return os.readlink(place) if os.path.islink(place) else ""


def _run(host: ManagedHost, *words: str) -> None:
    root = [] if host.root == "/" else ["--root", inside(host.root, "/")]
    host.run(["update-alternatives", *root, *words], _SECONDS)
