"""docs/architecture.md: every path that it names exists."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs_prose import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
#: Paths are in code spans and begin with a folder of the repository.
PATH = re.compile(r"`((?:gdsdeploy|playbooks|plugins|roles|templates|tests|docs)/[\w./-]*)`")


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_a_path_exists(path: str) -> None:
    file = ROOT / path
    assert file.is_dir() if path.endswith("/") else file.is_file()
