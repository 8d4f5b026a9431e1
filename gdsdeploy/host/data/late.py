"""Regular expressions and dataclasses that are made when something first needs them.

A start of the host program imports every page of subjects, and needs few of their patterns and classes: making all of
them took a third of its time.
"""

from __future__ import annotations

import re as _re
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Dict

__all__ = ["asdict", "dataclass", "field", "re", "replace"]

#: Whether dataclasses wait, too: the host program's start sets it.  On the controller they can't, since threads would
#: meet a class that another one is making.
CLASSES_WAIT = False

if TYPE_CHECKING:
    import re
    from dataclasses import asdict, dataclass, field, replace
else:

    class Pattern:
        """What ``re.compile`` returns; the compiled pattern has the methods."""

        def __init__(self, *words: Any) -> None:
            self._words = words

        def __getattr__(self, name: str) -> Any:
            import re

            value = getattr(re.compile(*self._words), name)
            setattr(self, name, value)
            return value

    re = SimpleNamespace(**{**vars(_re), "compile": Pattern})

    class Field:
        def __init__(self, **settings: Any) -> None:
            self.settings = settings

    class Fields:
        """Stands for the fields of a class that isn't made yet."""

        def __init__(self, make: Callable[[], object]) -> None:
            self._make = make

        def __get__(self, _instance: Any, owner: type) -> Any:
            self._make()
            return owner.__dataclass_fields__

    def dataclass(kind: Any = None, **settings: Any) -> Any:
        if kind is None:
            return partial(dataclass, **settings)
        if not CLASSES_WAIT:
            return _made(kind, settings)

        def make() -> None:
            del kind.__init__, kind.__dataclass_fields__
            _made(kind, settings)

        def init(self: Any, *words: Any, **named: Any) -> None:
            make()
            kind.__init__(self, *words, **named)

        kind.__init__, kind.__dataclass_fields__ = init, Fields(make)
        return kind

    def _made(kind: Any, settings: Dict[str, Any]) -> Any:
        import dataclasses

        for name, value in list(vars(kind).items()):
            if isinstance(value, Field):
                setattr(kind, name, dataclasses.field(**value.settings))
        return dataclasses.dataclass(**settings)(kind)

    field = Field

    def replace(record: Any, **changes: Any) -> Any:
        import dataclasses

        return dataclasses.replace(record, **changes)

    def asdict(record: Any) -> Dict[str, Any]:
        import dataclasses

        return dataclasses.asdict(record)
