from __future__ import annotations

from tests.unit.lab.conftest import home, mirror

__all__ = ["home", "mirror"]
