"""Imports every module of a package, which registers what they add.  Also works inside a zipapp."""

from __future__ import annotations

import importlib
import pkgutil
from typing import List


def module_names(package: str) -> List[str]:
    """The names of the modules of ``package``, without the package's own, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__))


def import_modules(package: str) -> None:
    """Import every module of ``package`` in the order of their names."""
    for name in module_names(package):
        importlib.import_module(f"{package}.{name}")
