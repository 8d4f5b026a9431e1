"""The driver's libraries for programs, and the firmware that it loads into GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from ..paths import FIRMWARE, FIRMWARE_PATH
from .document import Document
from .unknown import Maybe, Unknown, why_not

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


def _library(document: Document, name: str) -> Maybe[Optional[Library]]:
    run = document.ran("ldconfig")
    if isinstance(run, Unknown):
        return run
    match = re.search(rf"^\s*{re.escape(name)}\s.*=>\s*(/\S+)$", run.stdout, re.MULTILINE)
    if not match:
        return None
    path = document.link(match.group(1))
    if not isinstance(path, str):
        return why_not(path, f"{match.group(1)} is gone")
    version = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return Library(path, version.group(1)) if version else Unknown(f"{path} has no version in its name")


def _firmware(document: Document) -> Maybe[Mapping[str, Tuple[str, ...]]]:
    first_folder = document.line(FIRMWARE_PATH)
    if isinstance(first_folder, Unknown):
        return first_folder
    firmware: Dict[str, Tuple[str, ...]] = {}
    for folder in (first_folder or "", FIRMWARE):
        names = document.names(folder + "/nvidia/[0-9]*") if folder else ()
        if isinstance(names, Unknown):
            return names
        for version in names or ():
            files = document.names(f"{folder}/nvidia/{version}/gsp*.bin*")
            if isinstance(files, Unknown):
                return files
            firmware.setdefault(version, tuple(files or ()))
    return firmware
