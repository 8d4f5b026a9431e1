"""The Python that the roles' filters import, for machines that have Ansible and no gdsdeploy.

The filters run where Ansible runs: beside gdsdeploy in ``gdsdeploy provision``, elsewhere from the rendered folder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

#: Where the modules lie below the playbooks.
FOLDER = "files/python"
#: What is taken along; everything else that they import is the standard library's, or optional.
_OWN, _LIBRARIES = "gdsdeploy", ("debian",)
_FIRST = re.compile(rf"^from {_OWN}\b", re.MULTILINE)
_LOOK = """\
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "{folder}"))

"""


def standing_alone(source: str) -> str:
    """A filter plugin of a role that finds what it imports in the folder."""
    return _FIRST.sub(lambda found: _LOOK.format(folder=FOLDER) + found[0], source, count=1)


def imported(sources: Iterable[str]) -> dict[str, bytes]:
    """Everything of ours, and of the libraries, that ``sources`` import, as path below FOLDER → content."""
    found: dict[str, bytes] = {}
    waiting = [name for source in sources for name in _names(source, "")]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        file = _file(name)
        if file is None or path in found:
            continue
        text = file.read_text(encoding="utf-8")
        found[path] = text.encode()
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        # A module needs the packages that it is in.
        waiting += [*_names(text, package), *([package] if package else []), *_parents(name)]
    return dict(sorted(found.items()))


def _names(source: str, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            # What is imported from a package may be a module of it.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:number]) for number in range(1, len(parts)))


def _file(name: str) -> Path | None:
    """The source file of a module that is taken along; None for other modules, and for what is none."""
    if name.partition(".")[0] not in (_OWN, *_LIBRARIES):
        return None
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _path(name: str) -> str:
    file = _file(name)
    place = name.replace(".", "/")
    return f"{place}/__init__.py" if file is not None and file.name == "__init__.py" else f"{place}.py"
