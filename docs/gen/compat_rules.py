"""The rules as JSON: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``.

They are those of compat.yml and those that kernel_changes.yml and tags.yml make together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from typing import Final

from docs.gen import kernel_changes
from docs.gen.kernel_changes import Change, Seen, Tags
from gdsdeploy import lock
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import Block, RuleFile
from gdsdeploy.host.model.compat import Rule

#: Module → (subject that says who made the package, its name for people).
_MODULES: Final = {"driver": ("driver_origin", "driver"), "nvidia_fs": ("nvidia_fs_origin", "nvidia-fs")}


def load(text: str) -> tuple[Rule, ...]:
    """Read compat.yml; raises ValueError (pydantic's) for a rule that is malformed, and for an id given twice."""
    return _rules(RuleFile.model_validate(yamlfile.shipped(text)))


def _rules(file: RuleFile) -> tuple[Rule, ...]:
    if file.repeated():
        raise ValueError(file.repeated()[0][1])
    return tuple(block.rule() for block in file.rules)


def generated() -> Iterator[Block]:
    """The rules about each change of the kernel: for NVIDIA's packages, and for those that Ubuntu patches."""
    read = kernel_changes.tags()
    for change in kernel_changes.changes():
        tags = read[change.module]
        yield from _of_change(change, tags.changes[change.id], tags)


def _of_change(change: Change, seen: Seen, tags: Tags) -> Iterator[Block]:
    origin, name = _MODULES[change.module]
    common = {
        "known": "source",
        "source": f"{change.source}; tags of NVIDIA's repository through {tags.newest}, of {tags.date}",
        "fixed": _fixed(name, seen),
    }
    own = {**change.kernels, origin: ("!=debian, !=ubuntu",)}
    if seen.breaks:
        yield Block.model_validate(
            {"id": change.id, "says": change.says, "when": own, "refuses": {change.module: seen.breaks}, **common}
        )
    if seen.unknown:
        says = f"No source tells whether this release knows a change of the kernel. {change.says}"
        yield Block.model_validate(
            {"id": f"{change.id}-unknown", "says": says, "when": own, "doubts": {change.module: seen.unknown}, **common}
        )
    if seen.breaks or seen.unknown:
        says = f"Whether Ubuntu's patches add this isn't known, so prove it (gdsdeploy lock --prove). {change.says}"
        patched = {**change.kernels, origin: ("ubuntu",)}
        doubts = {change.module: (*seen.breaks, *seen.unknown)}
        yield Block.model_validate(
            {"id": f"{change.id}-ubuntu", "says": says, "when": patched, "doubts": doubts, **common}
        )


def _fixed(name: str, seen: Seen) -> str:
    """The first release of each branch that knows it and whose later ones do; the newest branches are one."""
    first = dict[str, str]()
    for expression in seen.knows:
        low, _, high = expression.partition(", ")
        version = low.lstrip(">=")
        if not high or high == f"<{int(version.split('.')[0]) + 1}":
            first.setdefault(version.split(".")[0], version)
    *others, last = first.values() or [""]
    return f"{name} {', '.join(others)} or {last}" if others else f"{name} {last}" if last else ""


def table() -> str:
    """One rule on each line, without empty fields."""
    text = resources.files(lock).joinpath("compat.yml").read_text(encoding="utf-8")
    own = RuleFile.model_validate(yamlfile.shipped(text))
    rules = _rules(RuleFile(rules=(*own.rules, *generated())))
    rows = ({key: value for key, value in asdict(rule).items() if value} for rule in rules)
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    print(table(), end="")
