"""Rows of text as a table."""

from __future__ import annotations

from gdsdeploy.host.io.wording import aligned


def test_columns_are_aligned() -> None:
    rows = [("host", "state"), ("gpu1", "done"), ("builder", "")]
    assert aligned(rows) == ["host     state", "gpu1     done", "builder"]
    assert aligned(rows, "  ")[1:] == ["  gpu1     done", "  builder"]
    assert aligned([]) == []
