"""The checks of running programs, beyond what the table of faults shows."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import EXPECTATION, GOOD, Change, findings
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.checks.faults_cufile import OWN, from_wheel, job, with_config


def after(*changes: Change, **expectation: Any) -> dict[str, Finding]:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    results = findings(document, replace(EXPECTATION, **expectation))
    return {name: results[name] for name in ("cufile.processes", "cufile.bundled") if name in results}


def verdicts(*changes: Change) -> tuple[str, ...]:
    return tuple(finding.verdict for finding in after(*changes).values())


def summary(**values: Any) -> Change:
    return lambda document: document["processes"]["libcufile"].update(values)


def test_what_a_finding_says() -> None:
    result = after(FAULTS["a job forces compat mode by its file"][0])["cufile.processes"]
    label = "process 4711 (train) of /system.slice/train.service"
    assert result.found == f"{label}: cufile.json forces compat mode"
    assert f"{OWN}: properties: force_compat_mode: true" in result.evidence
    assert f"the environment of process 4711: CUFILE_ENV_PATH_JSON={OWN}" in result.evidence
    other = after(FAULTS["a job runs with a wheel's libcufile"][0])["cufile.bundled"]
    assert f"{label}: libcufile 1.13.1.3 (" in other.found


def test_no_program_uses_libcufile() -> None:
    assert verdicts(summary(programs=[])) == (NOT_APPLICABLE, NOT_APPLICABLE)
    assert verdicts(summary(programs=[], unread=1)) == (UNKNOWN, UNKNOWN)


def test_processes_that_were_not_read_are_no_pass_and_hide_no_failure() -> None:
    assert verdicts(summary(unread=2)) == (UNKNOWN, UNKNOWN)
    assert verdicts(summary(more=True)) == (UNKNOWN, UNKNOWN)
    results = after(summary(unread=2), FAULTS["a job's file is broken"][0])
    assert results["cufile.processes"].verdict == FAIL


def test_a_file_that_was_not_read_is_no_pass() -> None:
    assert verdicts(with_config({"error": "EACCES"})) == (UNKNOWN, PASS)


def test_a_library_without_a_version_is_no_pass() -> None:
    assert verdicts(from_wheel()) == (PASS, UNKNOWN)


def test_another_configuration_alone_is_no_failure() -> None:
    result = after(with_config({"config": {"properties": {"io_batchsize": 9}}}))["cufile.processes"]
    assert (result.verdict, result.found) == (PASS, "1 programs; 1 with another configuration")
    assert result.evidence == [f"process 4711 (train) of /system.slice/train.service: /etc/cufile.json with {OWN}"]


def level(value: Any) -> Change:
    text = json.dumps({"profile": {"cufile_stats": value}})
    return lambda document: document["files"].update({"/etc/cufile.json": text})


def statistics(*changes: Change) -> Finding:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return findings(document, EXPECTATION)["cufile.statistics"]


def test_statistics_that_no_fleet_asks_for() -> None:
    assert (statistics().verdict, statistics().found) == (PASS, "off")
    assert statistics(level(0), summary(dead=5000)).verdict == FAIL
    assert statistics(level(0), summary(dead=None)).verdict == UNKNOWN


def test_levels_without_paths_fail() -> None:
    for value in (1, 2):
        assert statistics(level(value)).verdict == FAIL


def test_statistics_of_programs_and_of_those_that_ended() -> None:
    result = statistics(level(3), job(statistics={"reason": "statistics-off"}), summary(dead=3))
    assert (result.verdict, result.found) == (PASS, "1 programs, 1 without; 3 left of programs that ended")
    assert "statistics are off" in result.evidence[0]
    assert statistics(level(3), summary(dead=None)).verdict == UNKNOWN
    assert statistics(level(3), summary(dead=1000)).verdict == PASS
    full = statistics(level(3), summary(dead=1001))
    assert (full.verdict, full.hint) == (FAIL, "Remove them on the host: gdsdeploy-host.pyz watch --collect")


def test_a_fleet_in_compat_mode_does_not_ask() -> None:
    results = after(job(variables={"CUFILE_FORCE_COMPAT_MODE": "true"}), mode="compat")
    assert results["cufile.processes"].verdict == NOT_APPLICABLE
