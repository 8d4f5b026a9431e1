"""What an upgrade does to programs beyond its versions."""

from __future__ import annotations

import pytest

from gdsdeploy.lock.lockfile import Change, consequences


@pytest.mark.parametrize(
    ("what", "before", "after", "subject", "speaks"),
    [
        ("libcufile", "1.11.1.6", "1.17.1.22", True, True),
        ("libcufile", "1.9.1.3~12.4.1-2", "1.16.0.49-1", True, True),
        ("libcufile", "1.16.1.26", "1.20.0.107", True, False),
        ("libcufile", "1.11.1.6", "1.15.1.6", True, False),
        ("libcufile", "", "1.17.1.22", True, False),
        ("libcufile", "1.17.1.22", "1.11.1.6", True, False),
        ("libcufile", "1.11.1.6", "1.17.1.22", False, False),
        ("driver", "550.163.01", "580.65.06", True, False),
    ],
)
def test_an_upgrade_past_the_silent_registration_is_told(
    what: str, before: str, after: str, subject: bool, speaks: bool
) -> None:
    change = Change("gds", "upgraded", what, before, after, subject)
    assert ("fall back silently" in consequences(change)) is speaks
