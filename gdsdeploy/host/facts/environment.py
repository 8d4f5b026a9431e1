"""Where programs run on this host: in a container or not, and with which of libcufile's variables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from ..paths import CGROUP, CONTAINER_FILES, ENROOT, MOUNTINFO, VARIABLE_FILES, VARIABLE_FOLDERS, VARIABLE_NAMES
from .document import Document
from .unknown import Maybe, Unknown, why_not

#: Files in which a container manager leaves a mark → what to call it when the mark does not say.
_MARKS = dict(zip(CONTAINER_FILES, ("a container", "Docker", "Podman")))
_ASSIGNED = re.compile(r"\b(CUFILE_[A-Z0-9_]+)(?:=|\s+(?:DEFAULT|OVERRIDE)=)[\"']?([^\s\"']*)")


@dataclass(frozen=True)
class Variable:
    """A variable that programs are given; ``place`` says where: a file, or this program's own environment."""

    name: str
    value: str
    place: str
    line: str


@dataclass(frozen=True)
class EnvironmentFacts:
    """``container``: what manages the container that the evidence comes from; None: it comes from the host itself."""

    container: Maybe[Optional[str]]
    #: names in /dev that begin with nvidia, in /dev/infiniband, and in /run/udev; empty where there is no such folder
    devices: Maybe[Tuple[str, ...]]
    infiniband: Maybe[Tuple[str, ...]]
    udev: Maybe[Tuple[str, ...]]
    #: the evidence was collected by root, who sees everything
    root: Maybe[bool]
    #: libcufile's variables by name; of a name that is set in several places, the last
    variables: Mapping[str, Variable] = field(default_factory=dict)
    #: whether every place was looked at
    complete: Maybe[bool] = True

    def variable(self, name: str) -> Maybe[Optional[Variable]]:
        """The variable, or None where no place sets it."""
        if name in self.variables:
            return self.variables[name]
        return self.complete if isinstance(self.complete, Unknown) else None


def environment_facts(document: Document) -> EnvironmentFacts:
    uid = document.uid()
    found, complete = _variables(document)
    return EnvironmentFacts(
        container=_container(document),
        devices=_names(document, "/dev/nvidia*"),
        infiniband=_names(document, "/dev/infiniband"),
        udev=_names(document, "/run/udev"),
        root=uid if isinstance(uid, Unknown) else uid == 0,
        variables={item.name: item for item in found},
        complete=complete,
    )


def _container(document: Document) -> Maybe[Optional[str]]:
    unknown: Optional[Unknown] = None
    layered = _layered(document)
    for path, name in _MARKS.items():
        mark = document.line(path)
        if isinstance(mark, str) and layered is True:
            return (mark.split("\n")[0] if path == CONTAINER_FILES[0] else "") or name
        if isinstance(mark, Unknown) or (isinstance(mark, str) and isinstance(layered, Unknown)):
            unknown = mark if isinstance(mark, Unknown) else why_not(layered, "")
    own = document.environment()
    if isinstance(own, Unknown):
        unknown = own
    elif VARIABLE_NAMES[0] in own:
        return "Kubernetes"
    elif any(name.startswith(ENROOT) for name in own):
        return "Enroot"
    groups = document.lines(CGROUP)
    if isinstance(groups, Unknown):
        unknown = groups
    return "a container" if isinstance(groups, tuple) and groups else unknown


def _names(document: Document, path: str) -> Maybe[Tuple[str, ...]]:
    found = document.names(path)
    return () if found is None else found


def _layered(document: Document) -> Maybe[bool]:
    """Whether / is something other than a whole filesystem on a block device of this kernel's.

    A virtual machine that was made from an image has the marks of the image's container, and is none (seen on one with
    a GPU, whose /run/systemd/container says docker).
    """
    text = document.text(MOUNTINFO)
    if not isinstance(text, str):
        return why_not(text, "there is no " + MOUNTINFO)
    roots = [line.split() for line in text.splitlines() if line.split()[4:5] == ["/"]]
    return bool(roots) and (roots[-1][2].startswith("0:") or roots[-1][3] != "/")


def _variables(document: Document) -> Tuple[List[Variable], Maybe[bool]]:
    found: List[Variable] = []
    complete: Maybe[bool] = True
    paths = list(VARIABLE_FILES)
    for folder in VARIABLE_FOLDERS:
        names = document.names(folder)
        if isinstance(names, Unknown):
            complete = names
        elif names is not None:
            paths += [folder + "/" + name for name in names if name.endswith((".sh", ".conf"))]
    for path in paths:
        lines = document.lines(path)
        if isinstance(lines, Unknown):
            complete = lines
        elif lines:
            found += [item for line in lines for item in _assigned(path, line)]
    own = document.environment()
    if isinstance(own, Unknown):
        return found, own
    place = "the environment of this program"
    here = {name: value for name, value in own.items() if name.startswith("CUFILE_")}
    found += [Variable(name, here[name], place, f"{name}={here[name]}") for name in sorted(here)]
    return found, complete


def _assigned(path: str, line: str) -> List[Variable]:
    if line.lstrip().startswith("#"):
        return []
    pairs: Dict[str, str] = dict(_ASSIGNED.findall(line))
    return [Variable(name, value, path, line.strip()) for name, value in pairs.items()]
