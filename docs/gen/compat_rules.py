"""The host program's compatibility rules: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``."""

from __future__ import annotations

import json
from typing import Any

from gdsdeploy.lock.compat import Rule, shipped


def table() -> str:
    """JSON: the rules of compat.yml in their order, without empty fields."""
    return json.dumps([_row(rule) for rule in shipped()], indent=2, ensure_ascii=False) + "\n"


def _row(rule: Rule) -> dict[str, Any]:
    row = rule.model_dump(mode="json")
    return {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in row.items() if value}


if __name__ == "__main__":
    print(table(), end="")
