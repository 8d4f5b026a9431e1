"""The environment of programs on this host: in a container or not, and libcufile's variables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    ENROOT,
    MOUNTINFO,
    OWN_NAME,
    OWN_PARENTS,
    VARIABLE_FILES,
    VARIABLE_FOLDERS,
    VARIABLE_NAMES,
)
from .document import Document
from .unknown import Maybe, Unknown, all_known, if_known, if_present, when_known, why_not, with_default

#: Files that container managers create → the manager's name, unless the file has it.
_MARKS = dict(zip(CONTAINER_FILES, ("a container", "a container", "Docker", "Podman", "Apptainer")))
_NAMING = CONTAINER_FILES[:2]
#: Beginning of a variable's name → the manager that sets it.
_VARIABLES = dict(zip((*VARIABLE_NAMES, ENROOT), ("Kubernetes", "Apptainer", "Singularity", "Enroot")))
#: Word in the control group of the first process → the manager.
_GROUPS = {"kubepods": "Kubernetes", "crio": "CRI-O", "libpod": "Podman", "docker": "Docker", "/lxc": "LXC"}
_ASSIGNED = re.compile(r"\b(CUFILE_[A-Z0-9_]+)(?:=|\s+(?:DEFAULT|OVERRIDE)=)[\"']?([^\s\"']*)")


@dataclass(frozen=True)
class Variable:
    """A variable of programs; ``place`` is the file that sets it, or this program's own environment."""

    name: str
    value: str
    place: str
    line: str


@dataclass(frozen=True)
class EnvironmentFacts:
    """``container``: the manager of the container that the evidence comes from; None: it comes from the host itself."""

    container: Maybe[Optional[str]]
    #: names in /dev that begin with nvidia, in /dev/infiniband, and in /run/udev; empty where there is no such folder
    devices: Maybe[Tuple[str, ...]]
    infiniband: Maybe[Tuple[str, ...]]
    udev: Maybe[Tuple[str, ...]]
    #: the evidence was collected by root, who sees everything
    root: Maybe[bool]
    #: libcufile's variables by name; of a name that is set in several places, the last
    variables: Mapping[str, Variable]
    #: whether every place was looked at
    complete: Maybe[bool]
    #: gdsdeploy's own folders on this host; an empty tuple: gdsdeploy has never changed it, or its change was reverted
    own_folders: Maybe[Tuple[str, ...]]

    def variable(self, name: str) -> Maybe[Optional[Variable]]:
        """The variable, or None where no place sets it."""
        if name in self.variables:
            return self.variables[name]
        return self.complete if isinstance(self.complete, Unknown) else None

    def switch(self, name: str) -> Maybe[Optional[bool]]:
        """A switch of libcufile; None where no place sets it, or libcufile ignores its value.

        libcufile takes ``true`` and ``false`` in any case, and ignores all else (seen in 1.4.0 to 1.20.0).
        """
        values = {"true": True, "false": False}
        return if_present(self.variable(name), lambda variable: values.get(variable.value.lower()))


def environment_facts(document: Document) -> EnvironmentFacts:
    variables, complete = _variables(document)
    return EnvironmentFacts(
        container=_container(document),
        devices=with_default(document.names("/dev/nvidia*"), ()),
        infiniband=with_default(document.names("/dev/infiniband"), ()),
        udev=with_default(document.names("/run/udev"), ()),
        root=when_known(document.uid(), lambda uid: uid == 0),
        variables={variable.name: variable for variable in variables},
        complete=complete,
        own_folders=_own_folders(document),
    )


def _own_folders(document: Document) -> Maybe[Tuple[str, ...]]:
    """Those that exist; Unknown where none is known to exist and one of them was not looked for."""
    listings = {f"{parent}/{OWN_NAME}": document.names(f"{parent}/{OWN_NAME}") for parent in OWN_PARENTS}
    existing = tuple(folder for folder, names in listings.items() if isinstance(names, tuple) and names)
    unread = [folder for folder, names in listings.items() if not isinstance(names, tuple)]
    if existing or not unread:
        return existing
    if unread[0] not in document.paths("listings"):
        return document.not_collected(f"whether {unread[0]} exists was", "environment")
    return why_not(listings[unread[0]], f"whether {unread[0]} exists is not known")


def _container(document: Document) -> Maybe[Optional[str]]:
    unknown: Optional[Unknown] = None
    environment = document.environment()
    if isinstance(environment, Unknown):
        unknown = environment
    else:
        names = [name for start, name in _VARIABLES.items() if any(key.startswith(start) for key in environment)]
        if names:
            return names[0]
    layered = _layered(document)
    for path, name in _MARKS.items():
        mark = document.line(path)
        if isinstance(mark, str) and layered is True:
            return (mark.split("\n")[0] if path in _NAMING else "") or name
        if isinstance(mark, Unknown) or (isinstance(mark, str) and isinstance(layered, Unknown)):
            unknown = mark if isinstance(mark, Unknown) else why_not(layered, "")
    groups = document.lines(CGROUP)
    if isinstance(groups, Unknown):
        unknown = groups
    elif groups:
        return next((name for word, name in _GROUPS.items() if any(word in line for line in groups)), "a container")
    return unknown


def _layered(document: Document) -> Maybe[bool]:
    """Whether / is something other than a whole filesystem on one of this kernel's block devices.

    A virtual machine that was made from a container's image keeps its files, and isn't a container (seen on one with a
    GPU, whose /run/systemd/container says docker).
    """
    text = document.text(MOUNTINFO)
    if not isinstance(text, str):
        return why_not(text, "there is no " + MOUNTINFO)
    root_mounts = [line.split() for line in text.splitlines() if line.split()[4:5] == ["/"]]
    return bool(root_mounts) and (root_mounts[-1][2].startswith("0:") or root_mounts[-1][3] != "/")


def _variables(document: Document) -> Tuple[List[Variable], Maybe[bool]]:
    """Every variable, in the order in which places count; and whether every place was looked at."""
    folders = {folder: document.names(folder) for folder in VARIABLE_FOLDERS}
    paths = [f"{folder}/{name}" for folder in folders for name in document.existing(folder) if sets_variables(name)]
    files = {path: document.lines(path) for path in (*VARIABLE_FILES, *paths)}
    own, place = document.environment(), "the environment of this program"
    variables = [
        Variable(name, value, path, line.strip())
        for path, lines in files.items()
        for line in if_known(lines, ()) or ()
        if not line.lstrip().startswith("#")
        for name, value in dict(_ASSIGNED.findall(line)).items()
    ]
    variables += [
        Variable(name, value, place, f"{name}={value}")
        for name, value in sorted(if_known(own, {}).items())
        if name.startswith("CUFILE_")
    ]
    return variables, when_known(all_known([own, *folders.values(), *files.values()]), lambda _: True)


def sets_variables(name: str) -> bool:
    """Whether a file in one of VARIABLE_FOLDERS counts."""
    return name.endswith((".sh", ".conf"))
