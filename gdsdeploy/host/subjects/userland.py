"""What the driver brings beside its modules: the libraries that programs load, and the GPUs' firmware."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Dict, Mapping, Optional, Tuple

from ..facts.document import Document, collected, group_of
from ..facts.unknown import Facts, fact, given, known
from ..paths import FIRMWARE, FIRMWARE_PATH
from .register import collector

if TYPE_CHECKING:
    from ..evidence.recorder import EvidenceRequest, Recorder

LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
#: The driver's libraries as ``ldconfig -p`` lists them; the first line of each is the one that programs get.
LIBRARY_LINE = r"^\s*({})\s.*=>\s*(/\S+)$"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


@collector("userland")
def collect_userland(recorder: Recorder, _request: EvidenceRequest) -> None:
    output = recorder.command("ldconfig", ["ldconfig", "-p"], pattern=LIBRARIES)
    for name in NAMES:
        match = re.search(LIBRARY_LINE.format(re.escape(name)), output.stdout, re.MULTILINE)
        if match:
            # Debian's alternatives make a chain; the name at its end has the version.
            recorder.value("links", match.group(2), os.path.realpath)
    firmware_path = recorder.text(FIRMWARE_PATH)
    for folder in filter(None, ((firmware_path or "").strip(), FIRMWARE)):
        for version in recorder.names(folder + "/nvidia", "[0-9]*"):
            recorder.names(folder + "/nvidia/" + version, "gsp*.bin*")


@dataclass(frozen=True)
class Library:
    """A library as the loader finds it; ``version`` is the one in the name of the file, e.g. 550.163.01."""

    path: str
    version: str


class UserlandFacts(Facts):
    """What the driver brings beside its modules."""

    #: by soname; None: the loader finds none
    libraries = given(lambda document: {name: known(partial(_library, document, name)) for name in NAMES})

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
