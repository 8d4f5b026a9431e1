"""The service of ``watch --metrics`` as a resource: put in place, changed, dismissed and taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host.apply import services, watch
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.watch import Desired, Watch
from tests.unit.host.apply.apply_tree import Systemctl, apply, check, tree

ON = Desired(metrics="/var/lib/metrics")
UNIT = "/etc/systemd/system/gds-watch.service"
LINK = "/etc/systemd/system/multi-user.target.wants/gds-watch.service"


def both(root: Path, desired: Desired) -> list[tuple[str, str, str]]:
    """Apply what was predicted; a second run is without change."""
    predicted = check(root, Watch(), desired)
    assert (predicted.refusals, predicted.unknown) == ([], [])
    changes = [(change.kind, change.subject, change.reason) for change in apply(root, Watch(), desired)]
    assert changes == [(change.kind, change.subject, change.reason) for change in predicted.changes]
    assert check(root, Watch(), desired).changes == []
    return changes


@pytest.fixture
def root(tmp_path: Path, systemctl: Systemctl) -> Path:
    for folder in ("etc/systemd/system", "etc/gdsdeploy", "usr/lib/gdsdeploy", "var/lib/gdsdeploy", "run/gdsdeploy"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_it_is_put_in_place_changed_and_dismissed(root: Path, systemctl: Systemctl) -> None:
    before = tree(root)
    assert both(root, ON) == [
        ("write", UNIT, "missing"),
        ("enable", "gds-watch.service", "unit"),
    ]
    assert LINK in tree(root)
    assert both(root, Desired(every=60)) == [
        ("write", UNIT, "content"), ("enable", "gds-watch.service", "unit"),
    ]  # fmt: skip
    assert "watch --metrics --every 30 --folder /var/lib/metrics\n" in watch.unit(ON)
    assert "watch --metrics --every 60\n" in (root / UNIT[1:]).read_text()
    both(root, Desired(enabled=False))
    assert {path for path in tree(root) if "watch" in path} == set()
    assert {path for path in before if path not in tree(root)} == set()


def test_a_removal_takes_it_back(root: Path) -> None:
    both(root, ON)
    (root / "run/gdsdeploy/watch.json").write_text("{}")
    predicted = Watch().revert(ManagedHost(check=True, root=str(root)))
    assert [change.kind for change in predicted][:1] == ["disable"]
    assert Watch().revert(ManagedHost(root=str(root))) == predicted
    assert {path for path in tree(root) if "watch" in path} == set()


def test_its_folder_is_in_the_unit() -> None:
    text = watch.unit(Desired(metrics="/srv/textfile"))
    assert " --folder /srv/textfile\n" in text
    assert "ExecStopPost=-/bin/rm -f /srv/textfile/gdsdeploy-watch.prom\n" in text
    usual = "/var/lib/prometheus/node-exporter/gdsdeploy-watch.prom"
    assert f"rm -f {usual} /var/lib/node_exporter/" in watch.unit(Desired())


@pytest.mark.parametrize("folder", ["relative", "/with space", "/a\nExecStart=/bin/true", "/a%n", "/a;b", "/$HOME"])
def test_a_folder_that_would_become_something_else_in_the_unit_is_refused(root: Path, folder: str) -> None:
    refusals = check(root, Watch(), replace(ON, metrics=folder)).refusals
    assert [refusal.id for refusal in refusals] == ["path"]


@pytest.mark.parametrize("every", [0, -1, 3601])
def test_an_interval_out_of_range_is_refused(root: Path, every: int) -> None:
    assert [refusal.id for refusal in check(root, Watch(), replace(ON, every=every)).refusals] == ["interval"]


@pytest.mark.parametrize(
    ("active", "outdated", "changes"),
    [
        (True, False, []),
        (False, False, [("start", "stopped")]),
        (True, True, [("reload", "outdated"), ("start", "unit")]),
    ],
)
def test_a_service_that_does_not_run_is_started(
    root: Path, monkeypatch: pytest.MonkeyPatch, active: bool, outdated: bool, changes: list[tuple[str, str]]
) -> None:
    both(root, ON)
    monkeypatch.setattr(services, "is_booted", lambda host: True)
    monkeypatch.setattr(services, "is_active", lambda host, unit: active)
    monkeypatch.setattr(services, "is_outdated", lambda host, units: outdated)
    assert [(change.kind, change.reason) for change in check(root, Watch(), ON).changes] == changes
