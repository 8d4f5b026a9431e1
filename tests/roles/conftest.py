"""The installed collection, once for all modules of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.roles import installing


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection's tarball, and with the collection in ``collections``."""
    folder = tmp_path_factory.mktemp("installed")
    installing.install(folder)
    return folder
