"""Tables of the host program: JSON beside this module, of which tests compare each file with its schema."""

from __future__ import annotations

import json
import pkgutil
from functools import cache
from typing import Any, Callable, Dict, Tuple, TypeVar

Row = TypeVar("Row")


@cache
def rows(name: str, row: Callable[..., Row]) -> Tuple[Row, ...]:
    """The rows of the table ``name``, in its order: ``row`` is called with the fields of each as keyword arguments.

    The file is read once.  Raises OSError when this program isn't complete.
    """
    # The program may run from an archive, where the table isn't a file of its own.
    content = pkgutil.get_data(__name__, name + ".json")
    if content is None:
        raise FileNotFoundError(f"{name}.json can't be read")
    table = json.loads(content.decode("utf-8"), object_hook=_with_tuples)
    return tuple(row(**fields) for fields in table)


def _with_tuples(fields: Dict[str, Any]) -> Dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
