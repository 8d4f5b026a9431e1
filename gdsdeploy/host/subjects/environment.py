"""The environment of programs: in a container or not, and libcufile's variables there."""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.document import Document, collected, recorded_lines, there
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known, known, require
from ..io.mounts import mounts_in
from ..model.expectation import Expectation
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
from .register import Answer, capitalized, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Recorder

#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
#: The namespace of the kernel's first process: PROC_PID_INIT_INO of include/linux/proc_ns.h (3.8 to 6.18).
INITIAL = f"pid:[{0xEFFFFFFC}]"
FIRST = "first"
#: libcufile's variables in files.
VARIABLES = r"CUFILE_[A-Z]"


@collector("environment")
def collect_environment(recorder: Recorder, _request: EvidenceRequest) -> None:
    recorder.texts(CONTAINER_FILES)
    recorder.value("processes", FIRST, lambda _: _is_with_the_first(recorder.at))
    recorder.excerpt(CGROUP, MANAGERS)
    names = [name for name in os.environ if name.startswith(ENROOT) or name in VARIABLE_NAMES]
    own = {name: os.environ[name] for name in sorted(names)}
    recorder.document["environment"] = {**own, **relevant(os.environ)}
    recorder.excerpts((*VARIABLE_FILES, *filter(sets_variables, recorder.paths(*VARIABLE_FOLDERS))), VARIABLES)
    recorder.paths(*OWN_PARENTS, pattern=OWN_NAME)
    # A container may not have these of its host.
    recorder.paths("/run/udev", "/dev/infiniband")
    from .cufile_json import VARIABLE, record_configuration

    named = EnvironmentFacts(Document(recorder.document)).variables.get(VARIABLE)
    if named is not None and named.value.startswith("/"):
        record_configuration(recorder, named.value)


def relevant(environment: Mapping[str, str]) -> Dict[str, str]:
    """Libcufile's variables; any other may hold a secret."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("CUFILE_")}


#: Files that container managers create → the manager's name, unless the file has it.
_MARKS = dict(zip(CONTAINER_FILES, ("a container", "a container", "Docker", "Podman", "Apptainer")))
_NAMING = CONTAINER_FILES[:2]
#: Those that stay in what is made of a container.
_OF_IMAGES = ("/.dockerenv", "/.singularity.d/runscript")
#: Beginning of a variable's name → the manager that sets it.
_VARIABLES = dict(zip((*VARIABLE_NAMES, ENROOT), ("Kubernetes", "Apptainer", "Singularity", "Enroot")))
#: Word in the control group of the first process → the manager.
_GROUPS = {"kubepods": "Kubernetes", "crio": "CRI-O", "libpod": "Podman", "docker": "Docker", "/lxc": "LXC"}
_ASSIGNED = re.compile(r"\b(CUFILE_[A-Z0-9_]+)(?:=|\s+(?:DEFAULT|OVERRIDE)=)[\"']?([^\s\"']*)")


class Variable(NamedTuple):
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


def _is_with_the_first(at: Callable[[str], str]) -> Dict[str, bool]:
    """Whether this program is among the kernel's first processes, and, for root, has the root of process 1.

    Raises OSError.
    """
    result = {"initial": os.readlink(at("/proc/self/ns/pid")) == INITIAL}
    with contextlib.suppress(PermissionError):
        result["same_root"] = os.path.samestat(os.stat(at("/proc/1/root/")), os.stat(at("/")))
    return result


def _container(document: Document) -> Optional[str]:
    first = if_known(lambda: document.record("processes", FIRST), None) or {}
    if first.get("initial") is True and first.get("same_root") is True:
        # A diskless host has all the marks of the image that it was made of.
        return None
    environment = known(document.environment)
    unknown: List[Maybe[object]] = [environment]
    for start, name in _VARIABLES.items():
        if not isinstance(environment, Unknown) and any(key.startswith(start) for key in environment):
            return name
    layered = known(lambda: _layered(document))
    for path, name in _MARKS.items():
        mark = known(partial(document.line, path))
        if isinstance(mark, str) and layered is True:
            if path in _OF_IMAGES and first.get("initial") is True and "same_root" not in first:
                raise UndecidedError(f"{path} is of a container, or of the image of a diskless host: run this as root")
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
    root = mounts_in(there(document.text(MOUNTINFO), MOUNTINFO)).at("/")
    return root is not None and (not root.has_disk or root.root != "/")


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
        # systemd's files have comments of both kinds; in the others nothing begins with a semicolon.
        if not line.lstrip().startswith(("#", ";"))
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


GPUS = "give the container its GPUs: NVIDIA's container runtime and --gpus all; Enroot's 98-nvidia.sh hook"
NVIDIA_FS = "map every /dev/nvidia-fs* of the host into the container (--device)"
UDEV = "mount the host's udev database, read-only: --volume /run/udev:/run/udev:ro"
INFINIBAND = "map /dev/infiniband into the container (--device /dev/infiniband); Enroot's 99-mellanox.sh hook"


@check(
    "container.view",
    "in a container, programs see the parts of the host that cuFile needs",
    expects="device nodes of the GPUs and of nvidia-fs, /run/udev, sysfs, and RDMA devices where the fleet has RDMA",
    prevents="a healthy host with jobs in containers that all go through CPU memory, or fail with 5027",
    of_running=True,
)
def view(facts: HostFacts, expectation: Expectation) -> Answer:
    manager = facts.environment.container
    if manager is None:
        return not_applicable("not in a container")
    missing = _missing(facts, expectation)
    if not missing:
        return passed(f"{manager}: everything is visible")
    words = "{}: no {}".format(manager, ", no ".join(name for name, _ in missing))
    fixes = "; ".join(dict.fromkeys(fix for _, fix in missing))
    return failed(words, capitalized(fixes), ["{}: {}".format(*gap) for gap in missing])


def _missing(facts: HostFacts, expectation: Expectation) -> List[Tuple[str, str]]:
    """(what is missing, its fix)"""
    devices, has_rdma = facts.environment.devices, expectation.rdma != "none"
    has_gpu = "nvidiactl" in devices and any(name[len("nvidia") :].isdigit() for name in devices)
    has_nvidia_fs = any(name.startswith("nvidia-fs") for name in devices)
    has_verbs = has_rdma and any(name.startswith("uverbs") for name in facts.environment.infiniband)
    rows = (
        (has_gpu, "/dev/nvidia0 or /dev/nvidiactl", GPUS),
        ("nvidia-uvm" in devices, "/dev/nvidia-uvm", GPUS),
        (has_nvidia_fs or not expectation.nvidia_fs_version, "/dev/nvidia-fs*", NVIDIA_FS),
        ("data" in facts.environment.udev, "/run/udev/data", UDEV),
        (facts.pci.functions, "/sys/bus/pci/devices", "mount the host's /sys, read-only"),
        (not has_rdma or "rdma_cm" in facts.environment.infiniband, "/dev/infiniband/rdma_cm", INFINIBAND),
        (not has_rdma or has_verbs, "/dev/infiniband/uverbs*", INFINIBAND),
    )
    return [(what, fix) for is_there, what, fix in rows if not is_there]
