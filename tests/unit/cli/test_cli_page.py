"""The page of commands has every option and every variable."""

from __future__ import annotations

import re
from pathlib import Path

from docs.gen import cli

ROOT = Path(__file__).parents[3]
#: Variables that gdsdeploy sets for programs that it starts.
INTERNAL = {"GDSDEPLOY_CONTROLLER", "GDSDEPLOY_EVENTS"}


def test_every_variable_is_on_the_page() -> None:
    sources = [path.read_text() for folder in ("gdsdeploy", "lab") for path in (ROOT / folder).rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bGDSDEPLOY_[A-Z_]+\b", text)}
    assert used - INTERNAL == {name for name in cli.VARIABLES if name.startswith("GDSDEPLOY_")}
