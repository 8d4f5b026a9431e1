"""The drawings of docs/architecture.md: ``python -m docs.gen.architecture`` writes them into that page."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
#: What the page shows of each container of rooms, between ``<!-- rooms NAME -->`` and ``<!-- end -->``.
CONTAINERS = ("gdsdeploy", "gdsdeploy.host", "gdsdeploy.rollout")
_PART = re.compile(r"<!-- rooms (\S+) -->\n.*?<!-- end -->", re.DOTALL)

Rooms = Mapping[str, frozenset[str]]


def page(text: str) -> str:
    """The page with its drawings and tables made from today's code."""
    graph = grimp.build_graph("gdsdeploy", cache_dir=None)
    return _PART.sub(lambda part: f"<!-- rooms {part[1]} -->\n{_part(graph, part[1])}<!-- end -->", text)


def _part(graph: grimp.ImportGraph, container: str) -> str:
    rooms = imports(graph, container)
    return f"{_drawing(rooms, _layers(container))}\n{_table(container, rooms)}"


def imports(graph: grimp.ImportGraph, container: str) -> dict[str, frozenset[str]]:
    """Room → rooms of the same container that its modules import."""
    rooms = sorted(graph.find_children(container))
    members = {module: room for room in rooms for module in (room, *graph.find_descendants(room))}
    return {
        room.rpartition(".")[2]: frozenset(
            members[target].rpartition(".")[2]
            for module in members
            if members[module] == room
            for target in graph.find_modules_directly_imported_by(module)
            if members.get(target, room) != room
        )
        for room in rooms
    }


def reduced(rooms: Rooms) -> dict[str, frozenset[str]]:
    """The same without arrows that other arrows imply."""

    def reach(room: str) -> frozenset[str]:
        return rooms[room].union(*map(reach, rooms[room]))

    return {
        room: frozenset(target for target in targets if not any(target in reach(other) for other in targets - {target}))
        for room, targets in rooms.items()
    }


def _drawing(rooms: Rooms, layers: list[list[str]]) -> str:
    lines = ["```mermaid", "flowchart TD"]
    for number, layer in enumerate(layers):
        lines.append(f'  subgraph layer{number}[" "]')
        lines += [f"    {room.strip('_')}_[{room}]" for room in layer]
        lines.append("  end")
    arrows = reduced(rooms)
    lines += [
        f"  {room.strip('_')}_ --> {target.strip('_')}_" for room in sorted(arrows) for target in sorted(arrows[room])
    ]
    return "\n".join([*lines, "```", ""])


def _layers(container: str) -> list[list[str]]:
    """The rooms of a container as the contracts of import-linter order them, from the top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == [container])
    return [layer.split(" | ") for layer in layers]


def _table(container: str, rooms: Rooms) -> str:
    rows = "".join(f"| `{name}` | {words} |\n" for name, words in _purposes(container, rooms))
    return f"| room | holds |\n| --- | --- |\n{rows}"


def _purposes(container: str, rooms: Rooms) -> Iterator[tuple[str, str]]:
    folder = ROOT / container.replace(".", "/")
    for room in sorted(rooms):
        package = folder / room / "__init__.py"
        path = package if package.is_file() else folder / f"{room}.py"
        words = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        yield f"{room}/" if path == package else f"{room}.py", " ".join(words.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
