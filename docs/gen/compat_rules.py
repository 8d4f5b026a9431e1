"""The rules of compat.yml as JSON: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources

from gdsdeploy import lock
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import RuleFile
from gdsdeploy.host.model.compat import Rule


def load(text: str) -> tuple[Rule, ...]:
    """Read compat.yml; raises ValueError (pydantic's) for a rule that is malformed, and for an id given twice."""
    file = RuleFile.model_validate(yamlfile.shipped(text))
    if file.repeated():
        raise ValueError(file.repeated()[0][1])
    return tuple(block.rule() for block in file.rules)


def table() -> str:
    """One rule on each line, without empty fields."""
    text = resources.files(lock).joinpath("compat.yml").read_text(encoding="utf-8")
    rows = ({key: value for key, value in asdict(rule).items() if value} for rule in load(text))
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    print(table(), end="")
