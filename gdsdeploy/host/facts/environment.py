"""The environment of programs: in a container or not, libcufile's variables, and the driver's libraries and firmware.

CUFILE_ENV_PATH_JSON names a second configuration, which libcufile lays over /etc/cufile.json.  The rules were seen in
the real libcufile 1.9.1, 1.15.1 and 1.20.0: it reads /etc/cufile.json, then the named file, key by key.  null and an
empty list change nothing, and a mount table gets further mounts.  A missing file is ignored; if one of both is broken,
every cuFile call fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
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
from .document import Document, collected, group_of, recorded_lines, there
from .unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known, known, require

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


class EnvironmentFacts(Facts):
    """Where the evidence comes from, and the variables of programs there."""

    #: the manager of the container that the evidence comes from; None: it comes from the host itself
    container = given(lambda document: _container(document))
    #: names in /dev that begin with nvidia
    devices = given(lambda document: document.names("/dev/nvidia*") or ())
    #: names in /dev/infiniband; empty where there is no such folder
    infiniband = given(lambda document: document.names("/dev/infiniband") or ())
    #: names in /run/udev; empty where there is no such folder
    udev = given(lambda document: document.names("/run/udev") or ())
    #: the evidence was collected by root, who sees everything
    root = given(lambda document: document.uid() == 0)
    #: libcufile's variables by name; of a name that is set in several places, the last
    variables = given(lambda document: {variable.name: variable for variable in _variables(document)})

    @fact
    def complete(self) -> bool:
        """True where every place of variables was looked at."""
        self.document.environment()
        for folder in VARIABLE_FOLDERS:
            self.document.names(folder)
        for path in _variable_files(self.document):
            self.document.lines(path)
        return True

    @fact
    def own_folders(self) -> Tuple[str, ...]:
        """Gdsdeploy's own folders on this host; empty: gdsdeploy has never changed it, or its change was reverted."""
        folders = [f"{parent}/{OWN_NAME}" for parent in OWN_PARENTS]
        existing = tuple(filter(self.document.existing, folders))
        for folder in () if existing else folders:
            if folder not in self.document.paths("listings"):
                raise self.document.not_collected(f"whether {folder} exists was", "environment")
            collected(self.document.names(folder), f"whether {folder} exists is not known")
        return existing

    def variable(self, name: str) -> Optional[Variable]:
        """The variable, or None where no place sets it."""
        return self.variables.get(name) if name in self.variables or self.complete else None

    def switch(self, name: str) -> Optional[bool]:
        """A switch of libcufile; None where no place sets it, or libcufile ignores its value.

        libcufile takes ``true`` and ``false`` in any case, and ignores all else (seen in 1.4.0 to 1.20.0).
        """
        variable = self.variable(name)
        return {"true": True, "false": False}.get(variable.value.lower()) if variable is not None else None


def _container(document: Document) -> Optional[str]:
    environment = known(document.environment)
    unknown: List[Maybe[object]] = [environment]
    for start, name in _VARIABLES.items():
        if not isinstance(environment, Unknown) and any(key.startswith(start) for key in environment):
            return name
    layered = known(lambda: _layered(document))
    for path, name in _MARKS.items():
        mark = known(partial(document.line, path))
        if isinstance(mark, str) and layered is True:
            return (mark.split("\n")[0] if path in _NAMING else "") or name
        unknown += [mark, layered if isinstance(mark, str) else None]
    groups = known(lambda: document.lines(CGROUP))
    if not isinstance(groups, Unknown) and groups:
        return next((name for word, name in _GROUPS.items() if any(word in line for line in groups)), "a container")
    tuple(map(require, reversed([*unknown, groups])))
    return None


def _layered(document: Document) -> bool:
    """Whether / is something other than a whole filesystem on one of this kernel's block devices.

    A virtual machine that was made from a container's image keeps its files, and isn't a container (seen on one with a
    GPU, whose /run/systemd/container says docker).
    """
    text = there(document.text(MOUNTINFO), MOUNTINFO)
    root_mounts = [line.split() for line in text.splitlines() if line.split()[4:5] == ["/"]]
    return bool(root_mounts) and (root_mounts[-1][2].startswith("0:") or root_mounts[-1][3] != "/")


def _variable_files(document: Document) -> List[str]:
    """Where variables may be set, in the order in which the places count."""
    named = [f"{folder}/{name}" for folder in VARIABLE_FOLDERS for name in document.existing(folder)]
    return [*VARIABLE_FILES, *filter(sets_variables, named)]


def _variables(document: Document) -> List[Variable]:
    """Every variable, in the order in which places count."""
    files = {path: recorded_lines(document, path) for path in _variable_files(document)}
    variables = [
        Variable(name, value, path, line.strip())
        for path, lines in files.items()
        for line in lines
        if not line.lstrip().startswith("#")
        for name, value in dict(_ASSIGNED.findall(line)).items()
    ]
    own, place = if_known(document.environment, {}), "the environment of this program"
    return variables + [
        Variable(name, value, place, f"{name}={value}")
        for name, value in sorted(own.items())
        if name.startswith("CUFILE_")
    ]


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


def overlay(document: Document, key: str, variable: Variable) -> Overlay:
    """The file that was recorded as ``key``; raises UndecidedError."""
    try:
        value = document.record("configs", key)
    except UndecidedError as error:
        raise UndecidedError(f"{VARIABLE} names a configuration that is unknown: {error}") from None
    if value is None:
        return Overlay(variable, exists=False)
    config, broken = value.get("config"), value.get("broken", "")
    if isinstance(config, dict):
        sections = {name: config[name] for name in SECTIONS if isinstance(config.get(name), dict)}
        return Overlay(variable, sections, broken=_wrong_type(sections))
    if broken and isinstance(broken, str):
        return Overlay(variable, broken=broken)
    raise UndecidedError(f"the record of {key} is malformed")


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


class UserlandFacts(Facts):
    """What the driver brings beside its modules."""

    #: by soname; None: the loader finds none
    libraries = given(lambda document: {name: known(partial(_library, document, name)) for name in LIBRARIES})

    @fact
    def firmware(self) -> Mapping[str, Tuple[str, ...]]:
        """Driver version → its firmware files (gsp_*.bin), in the folders where the kernel looks."""
        firmware: Dict[str, Tuple[str, ...]] = {}
        for folder in filter(None, (self.document.line(FIRMWARE_PATH), FIRMWARE)):
            for version in self.document.names(folder + "/nvidia/[0-9]*") or ():
                files = self.document.names(f"{folder}/nvidia/{version}/gsp*.bin*")
                firmware.setdefault(version, files or ())
        return firmware


def _library(document: Document, name: str) -> Optional[Library]:
    run = document.ran("ldconfig")
    match = re.search(rf"^\s*{re.escape(name)}\s.*=>\s*(/\S+)$", run.stdout, re.MULTILINE)
    if not match:
        return None
    path = collected(document.link(match.group(1)), f"{match.group(1)} is gone")
    version = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return Library(path, group_of(version, f"{path} has no version in its name"))
