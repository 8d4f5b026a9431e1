"""Files that other files name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.paths import locate


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("keys/a.pub", "/fleet/keys/a.pub"),
        ("/etc/a.pub", "/etc/a.pub"),
        ("~/a.pub", "/home/me/a.pub"),
        ("~no-such-user/a.pub", "/fleet/~no-such-user/a.pub"),
    ],
)
def test_where_a_name_leads(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert locate(Path("/fleet"), name) == Path(expected)
