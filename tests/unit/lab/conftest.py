"""Labs below a temporary folder, and an invented archive."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gdslab import state
from gdslab.archive import DEBIAN_KEYRING, Archive


@pytest.fixture
def mirror() -> Archive:
    return Archive(
        uri="http://mirror.example/debian",
        security_uri="http://mirror.example/debian-security",
        keyring=DEBIAN_KEYRING,
        proxy={},
        options={"Acquire::Check-Valid-Until": "false"},
        ca_bundle=None,
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary state and cache folders, and a random first port: these labs don't know those of other processes."""
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    first = random.randrange(state.FIRST_PORT["vm"], state.LAST_PORT - 1000)
    monkeypatch.setattr(state, "FIRST_PORT", dict.fromkeys(state.FIRST_PORT, first))
    return tmp_path
