"""Every resource by its name: the resource ``driver_options`` is the module ``driver_options.py`` of this package.

To add a resource, add a file: see docs/guides/extend.md.  A zipapp is compiled at each start, so only the
modules that are needed are imported.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Type

from ..errors import DesiredError
from ..model import schema
from ..model.discovery import module_names
from .model import Resource

_PACKAGE = __name__.rpartition(".")[0]


def resource(name: str) -> Resource[Any]:
    """The resource of this name; raises DesiredError for one that this program doesn't have."""
    kind = _kind(name) if name.replace("_", "").isalnum() else None
    if kind is None:
        hint = "update gdsdeploy on the side that is older"
        raise DesiredError(f"{name}: unknown resource; known: {', '.join(names())}", hint)
    instance: Resource[Any] = kind()
    return instance


@lru_cache(maxsize=256)
def names() -> List[str]:
    """The names of all resources, sorted."""
    return [name for name in module_names(_PACKAGE) if _kind(name) is not None]


def schemas() -> Dict[str, Dict[str, Any]]:
    """Name of each resource → the JSON schema of its desired state."""
    return {name: schema.schema(resource(name).desired_type) for name in names()}


def removal_order() -> List[str]:
    """The names of the resources that a removal takes back, in its order.

    First what reacts to changes (the guard, the gate), then what is loaded, then packages, then what they came from.
    """
    ranks = {name: resource(name).removal_rank for name in names()}
    return sorted((name for name, rank in ranks.items() if rank), key=lambda name: (ranks[name], name))


@lru_cache(maxsize=2)
def words(attribute: str) -> Dict[str, str]:
    """``kinds`` or ``reasons`` of all resources' changes → in words, as :class:`.model.Resource` has them.

    Raises ValueError where two of them say the same id in other words.
    """
    names()
    together: Dict[str, str] = {}
    for kind in _subclasses(Resource):
        for ident, text in vars(kind).get(attribute, {}).items():
            if together.setdefault(ident, text) != text:
                raise ValueError(f"{kind.name}: {ident} is {together[ident]!r} elsewhere")
    return together


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
