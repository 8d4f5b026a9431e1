"""Every resource by its name: the resource ``driver_options`` is the module ``driver_options.py`` of this package.

To add a resource, add a file.  A zipapp is compiled at each start, so only the modules that are needed are imported.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Any, Iterator, List, Type

from ..errors import DesiredError
from .model import Resource

_PACKAGE = __name__.rpartition(".")[0]


def resource(name: str) -> Resource[Any]:
    """The resource of this name; raises DesiredError for one that this program doesn't have."""
    kind = _kind(name) if name.replace("_", "").isalnum() else None
    if kind is None:
        hint = "update gdsdeploy on the side that is older"
        raise DesiredError(f"{name}: unknown resource; known: {', '.join(names())}", hint)
    found: Resource[Any] = kind()
    return found


@lru_cache(maxsize=256)
def names() -> List[str]:
    """The names of all resources, sorted."""
    found = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return sorted(module.name for module in found if _kind(module.name) is not None)


@lru_cache(maxsize=256)
def _kind(name: str) -> Any:
    try:
        importlib.import_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{_PACKAGE}.{name}":
            raise
        return None
    return next((kind for kind in _subclasses(Resource) if kind.name == name), None)


def _subclasses(parent: Type[Any]) -> Iterator[Type[Any]]:
    for kind in parent.__subclasses__():
        yield kind
        yield from _subclasses(kind)
