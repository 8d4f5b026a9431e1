"""The driver's libraries that the loader finds, and the firmware of the GPU's system processor."""

from __future__ import annotations

import os
import re

from ..paths import FIRMWARE, FIRMWARE_PATH
from .recorder import Recorder
from .request import EvidenceRequest

LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
#: The driver's libraries as ``ldconfig -p`` lists them; the first line of each is the one that programs get.
LIBRARY_LINE = r"^\s*({})\s.*=>\s*(/\S+)$"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
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
