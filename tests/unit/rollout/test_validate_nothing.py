"""A rollout doesn't take a host for healthy on which no check examined anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdsdeploy.errors import ChecksUnknown
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, Finding
from gdsdeploy.report.model import HostReport, Report
from gdsdeploy.rollout.steps import upgrade
from gdsdeploy.rollout.steps.work import Work

SKIPPED, CHECKED = (Finding(f"x.{verdict}", verdict, "t", "e", "f") for verdict in (NOT_APPLICABLE, PASS))


def check(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> HostReport:
    report = Report("f", "d", "w", (HostReport("gpu1", "gds", findings),))
    monkeypatch.setattr(upgrade.validation, "validate", lambda *_, **__: report)
    parts: dict[str, Any] = dict.fromkeys(("fleet", "lock"))
    work = SimpleNamespace(
        name="gpu1", fleet_path="fleet.yml", patience=SimpleNamespace(validation=1.0), say=print, **parts
    )
    return upgrade.check_host(cast("Work", work))


def test_checks_that_are_not_applicable_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch, SKIPPED, CHECKED).verdict == PASS


@pytest.mark.parametrize("findings", [(SKIPPED,), ()])
def test_a_host_without_any_other_check_does(monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...]) -> None:
    with pytest.raises(ChecksUnknown, match="gpu1: no check examined anything"):
        check(monkeypatch, *findings)
