"""The driver's other halves: which libraries the loader finds, and the firmware of the GPU's system processor."""

from __future__ import annotations

import os
import re

from ..paths import FIRMWARE, FIRMWARE_PATH
from .recorder import Recorder
from .wanted import Wanted

LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
#: The driver's libraries as ``ldconfig -p`` lists them; the first line of each is the one that programs get.
FOUND = r"^\s*({})\s.*=>\s*(/\S+)$"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def collect(recorder: Recorder, _wanted: Wanted) -> None:
    shown = recorder.command("ldconfig", ["ldconfig", "-p"], pattern=LIBRARIES)
    for name in NAMES:
        found = re.search(FOUND.format(re.escape(name)), shown.stdout, re.MULTILINE)
        if found:
            # Debian's alternatives make a chain; where it ends says the version.
            recorder.value("links", found.group(2), os.path.realpath)
    own = recorder.text(FIRMWARE_PATH)
    for folder in (own.strip() if own else "", FIRMWARE):
        if folder:
            for version in recorder.names(folder + "/nvidia", "[0-9]*"):
                recorder.names(folder + "/nvidia/" + version, "gsp*.bin*")
