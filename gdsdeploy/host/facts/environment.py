"""The environment of programs: in a container or not, libcufile's variables, and the driver's libraries and firmware.

CUFILE_ENV_PATH_JSON names a second configuration, which libcufile lays over /etc/cufile.json.  The rules were seen in
the real libcufile 1.9.1, 1.15.1 and 1.20.0: it reads /etc/cufile.json, then the named file, key by key.  null and an
empty list change nothing, and a mount table gets further mounts.  A missing file is ignored; if one of both is broken,
every cuFile call fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    ENROOT,
    FIRMWARE,
    FIRMWARE_PATH,
    MOUNTINFO,
    OWN_NAME,
    OWN_PARENTS,
    VARIABLE_FILES,
    VARIABLE_FOLDERS,
    VARIABLE_NAMES,
)
from .document import Document
from .unknown import (
    Maybe,
    Unknown,
    all_known,
    decided,
    if_known,
    if_present,
    or_else,
    require,
    when_known,
    why_not,
    with_default,
)

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
        for line in or_else(lines, ()) or ()
        if not line.lstrip().startswith("#")
        for name, value in dict(_ASSIGNED.findall(line)).items()
    ]
    variables += [
        Variable(name, value, place, f"{name}={value}")
        for name, value in sorted(if_known(lambda: own, {}).items())
        if name.startswith("CUFILE_")
    ]
    return variables, when_known(all_known([own, *folders.values(), *files.values()]), lambda _: True)


def sets_variables(name: str) -> bool:
    """Whether a file in one of VARIABLE_FOLDERS counts."""
    return name.endswith((".sh", ".conf"))


#: The variable that names the file.
VARIABLE = "CUFILE_ENV_PATH_JSON"
#: The sections that some release reads.
SECTIONS = (
    "logging", "profile", "execution", "properties", "block", "sparse", "fs", "denylist", "miscellaneous",
)  # fmt: skip


#: Switches of ``properties`` that every release reads.
SWITCHES = ("allow_compat_mode", "force_compat_mode")


@dataclass(frozen=True)
class Overlay:
    """``variable`` names the file."""

    variable: Variable
    #: its known sections; empty where there is no such file
    config: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = True
    #: why libcufile refuses it; empty where it doesn't
    broken: str = ""

    @property
    def path(self) -> str:
        return self.variable.value

    def value(self, section: str, key: str) -> Any:
        """The value that the file gives the key, at any depth of the section; None where it doesn't."""
        return next((value for name, value in _values(self.config.get(section)) if name == key), None)


def overlay(document: Document, key: str, variable: Variable) -> Maybe[Overlay]:
    """The file that was recorded as ``key``."""
    value = document.record("configs", key)
    if isinstance(value, Unknown):
        return Unknown(f"{VARIABLE} names a configuration that is unknown: {value.reason}")
    if value is None:
        return Overlay(variable, exists=False)
    config, broken = value.get("config"), value.get("broken", "")
    if isinstance(config, dict):
        sections = {name: config[name] for name in SECTIONS if isinstance(config.get(name), dict)}
        return Overlay(variable, sections, broken=_wrong_type(sections))
    if broken and isinstance(broken, str):
        return Overlay(variable, broken=broken)
    return Unknown(f"the record of {key} is malformed")


def merged(base: Optional[Mapping[str, Any]], over: Mapping[str, Any]) -> Dict[str, Any]:
    """``over`` laid over ``base`` key by key."""
    result = dict(base or {})
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merged(below if isinstance(below, Mapping) else None, value)
        elif value is not None and value != []:
            result[key] = value
    return result


def _values(section: Any) -> Iterator[Tuple[str, Any]]:
    for name, value in section.items() if isinstance(section, Mapping) else ():
        yield name, value
        yield from _values(value)


def _wrong_type(config: Mapping[str, Any]) -> str:
    """The switch with a value of another type, for which every release refuses the file; empty where there is none."""
    values = {key: config.get("properties", {}).get(key) for key in SWITCHES}
    wrong = [key for key, value in values.items() if value is not None and not isinstance(value, bool)]
    return f"its properties.{wrong[0]} is neither true nor false" if wrong else ""


LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: The folder of an NVIDIA wheel with a libcufile; the groups are its CUDA release, up to 12, and its version.
WHEEL = re.compile(r"nvidia_cufile(_cu\d+)?-(\d[\d.]*)\.dist-info")


@dataclass(frozen=True)
class Library:
    """A library as the loader finds it; ``version`` is the one in the name of the file, e.g. 550.163.01."""

    path: str
    version: str


@dataclass(frozen=True)
class UserlandFacts:
    """``libraries``: by soname; None: the loader finds none."""

    libraries: Mapping[str, Maybe[Optional[Library]]]
    #: driver version → its firmware files (gsp_*.bin), in the folders where the kernel looks
    firmware: Maybe[Mapping[str, Tuple[str, ...]]]


def userland_facts(document: Document) -> UserlandFacts:
    libraries = {name: _library(document, name) for name in LIBRARIES}
    return UserlandFacts(libraries, _firmware(document))


@decided
def _library(document: Document, name: str) -> Maybe[Optional[Library]]:
    run = require(document.ran("ldconfig"))
    match = re.search(rf"^\s*{re.escape(name)}\s.*=>\s*(/\S+)$", run.stdout, re.MULTILINE)
    if not match:
        return None
    path = document.link(match.group(1))
    if not isinstance(path, str):
        return why_not(path, f"{match.group(1)} is gone")
    version = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return Library(path, version.group(1)) if version else Unknown(f"{path} has no version in its name")


@decided
def _firmware(document: Document) -> Maybe[Mapping[str, Tuple[str, ...]]]:
    first_folder = require(document.line(FIRMWARE_PATH))
    firmware: Dict[str, Tuple[str, ...]] = {}
    for folder in (first_folder or "", FIRMWARE):
        names = require(document.names(folder + "/nvidia/[0-9]*") if folder else ())
        for version in names or ():
            files = require(document.names(f"{folder}/nvidia/{version}/gsp*.bin*"))
            firmware.setdefault(version, tuple(files or ()))
    return firmware
