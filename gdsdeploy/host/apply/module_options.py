"""Options of kernel modules in the profile's ``boot``, and the initramfs that carries them.

nvme_core is loaded from the initramfs, before the root filesystem with its modprobe.d is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List

from ..errors import DesiredError
from . import files, initramfs
from .files import ABSENT, File
from .host import ManagedHost
from .initramfs import CarriedFiles
from .model import Change

PATH = initramfs.CARRIED[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_PARAMETER = re.compile(r"[A-Za-z0-9_]+\Z")
#: modprobe splits at blanks, and continues a line that ends with a backslash.
_VALUE = re.compile(r"[^\s\"'\\#\x00-\x1f\x7f]*\Z")


@dataclass(frozen=True)
class Desired:
    """Options of kernel modules."""

    #: Release of the locked kernel, as ``uname -r`` prints it.  Its initramfs has them, too.
    kernel_release: str
    #: Module to its parameters and their values.
    module_options: Dict[str, Dict[str, str]] = field(default_factory=dict)


class ModuleOptions(CarriedFiles[Desired]):
    """``modprobe.d``, and the initramfs of the locked kernel."""

    name = "module_options"
    desired_type = Desired
    removal_rank = 92
    reverts = (PATH,)
    carried = PATH

    def desired_files(self, desired: Desired) -> List[File]:
        return [File.of(PATH, text(desired.module_options)) if desired.module_options else File(PATH, ABSENT)]

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        _check(desired.module_options)
        return super().observe(host, desired)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Take the file away, and make each initramfs again that may have a copy of it."""
        return initramfs.revert(host, self.reverts, carried=True)


def text(options: Dict[str, Dict[str, str]]) -> str:
    """The text of the file."""
    given = [(module, sorted(values.items())) for module, values in sorted(options.items()) if values]
    lines = [" ".join(["options", module, *map("=".join, values)]) for module, values in given]
    return "\n".join([f"# {files.MARK}; changes here are overwritten.", *lines]) + "\n"


def _check(options: Dict[str, Dict[str, str]]) -> None:
    for module, values in options.items():
        if not _NAME.match(module):
            raise DesiredError(f"module_options.options: {module!r} is not the name of a module")
        for name, value in values.items():
            if not _PARAMETER.match(name) or not _VALUE.match(value):
                raise DesiredError(f"module_options.options.{module}: {name}={value}: one word each is needed")
