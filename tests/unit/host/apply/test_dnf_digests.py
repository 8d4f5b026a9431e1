"""Which files dnf may install: those whose sha256 is in the lock."""

from __future__ import annotations

import pytest

from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.dnf import Dnf
from gdsdeploy.host.apply.packages.managers import Installed, Pin

OURS, THEIRS = "a" * 64, "b" * 64
PINS = [Pin("driver", "3:2-1", OURS)]


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ({OURS}, ""),
        ({THEIRS}, f"has sha256 {THEIRS}, and in the lock {OURS}"),
        ({OURS, THEIRS}, f"has sha256 {THEIRS}, and in the lock {OURS}"),
        # dnf would install a package of another architecture if that is all there is.
        (set(), f"has sha256 none for this machine, and in the lock {OURS}"),
    ],
)
def test_only_the_locked_file_may_be_offered(sums: set[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dnf, "installed", lambda *_: {"driver": Installed(("3:1-1",))})
    changes = Dnf()._changed_files(ManagedHost(), PINS, {"driver=3:2-1": sums})
    assert changes == ([f"driver=3:2-1 {words}"] if words else [])


def test_what_is_installed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dnf, "installed", lambda *_: {"driver": Installed(("3:2-1",))})
    assert Dnf()._changed_files(ManagedHost(), PINS, {"driver=3:2-1": {THEIRS}}) == []
