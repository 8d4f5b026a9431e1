"""What the loader of shared libraries knows of this stack; a module of its own because a provision imports it."""

from __future__ import annotations

import re
from typing import List

from ..io import cache
from ..process import Output
from .types import Recorder

#: Libraries of the stack in the output of ``ldconfig -p``, and those that the driver brings.
LIBRARIES = r"libcufile|libcuda\.so|libnvidia-ml\.so|libnuma|libmount\.so|libudev\.so|libibverbs\.so"
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def listed(output: str, name: str) -> List[str]:
    """The paths of a library in the output of ``ldconfig -p``; programs get the first one."""
    return re.findall(rf"^\s*{re.escape(name)}\s.*=>\s*(/\S+)$", output, re.MULTILINE)


def known_libraries(recorder: Recorder) -> Output:
    """Record and return what the loader's cache has of the stack."""
    inputs = cache.Inputs(tuple(map(recorder.at, ("/etc/ld.so.cache", "/usr/sbin/ldconfig"))))
    return recorder.command("ldconfig", ["ldconfig", "-p"], pattern=LIBRARIES, inputs=inputs)
