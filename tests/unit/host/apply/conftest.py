from __future__ import annotations

import pytest

from gdsdeploy.host import process
from tests.unit.host.apply.apply_tree import Systemctl


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """No process is started: what systemctl is called with, and the links that it would make."""
    fake = Systemctl()
    monkeypatch.setattr(process, "run", fake)
    return fake
