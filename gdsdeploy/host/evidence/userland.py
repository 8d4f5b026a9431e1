"""The driver's libraries that the loader finds, and the firmware of the GPU's system processor."""

from __future__ import annotations

import glob
import os
import re

from ..facts.userland import WHEEL
from ..model.consumer import consumers
from ..paths import FIRMWARE, FIRMWARE_PATH, PYTHON_PACKAGES
from .recorder import Recorder
from .request import EvidenceRequest

LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
#: The driver's libraries as ``ldconfig -p`` lists them; the first line of each is the one that programs get.
LIBRARY_LINE = r"^\s*({})\s.*=>\s*(/\S+)$"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: Where Python packages of the whole host are: of distributions, of pip, of conda in images.
SITES = (
    "/usr/lib/python3/dist-packages",
    "/usr/lib/python3*/site-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/conda/lib/python3*/site-packages",
)


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    output = recorder.command("ldconfig", ["ldconfig", "-p"], pattern=LIBRARIES)
    for name in NAMES:
        match = re.search(LIBRARY_LINE.format(re.escape(name)), output.stdout, re.MULTILINE)
        if match:
            # Debian's alternatives make a chain; the name at its end has the version.
            recorder.value("links", match.group(2), os.path.realpath)
    _python_packages(recorder)
    firmware_path = recorder.text(FIRMWARE_PATH)
    for folder in filter(None, ((firmware_path or "").strip(), FIRMWARE)):
        for version in recorder.names(folder + "/nvidia", "[0-9]*"):
            recorder.names(folder + "/nvidia/" + version, "gsp*.bin*")


def _python_packages(recorder: Recorder) -> None:
    """Packages of the consumers in data/consumers.json, and those that install a libcufile."""
    names = {name for consumer in consumers().values() for name in consumer.packages}
    folders = [path for pattern in SITES for path in sorted(glob.glob(pattern + "/*.dist-info"))]
    recorder.document["listings"][PYTHON_PACKAGES] = [
        path
        for path in folders
        if WHEEL.fullmatch(os.path.basename(path)) or os.path.basename(path).split("-")[0].lower() in names
    ]
