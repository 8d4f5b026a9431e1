"""The rules of compat.yml as JSON: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources

from gdsdeploy import lock
from gdsdeploy.fleetfile.rules import load


def table() -> str:
    """One rule on each line, without empty fields."""
    text = resources.files(lock).joinpath("compat.yml").read_text(encoding="utf-8")
    rows = ({key: value for key, value in asdict(rule).items() if value} for rule in load(text))
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    print(table(), end="")
