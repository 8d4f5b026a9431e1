"""The rules of facts/overlay.py, compared with what real libraries do with two configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.evidence.environment import read_configuration
from gdsdeploy.host.facts.environment import merged
from gdsdeploy.host.gdscheck import document, runs
from tests.cufile.gdschecks import HOOKS, SYSFS, program, started

RELEASES = ("1.9.1.3", "1.15.1.6", "1.20.0.107")
#: /etc/cufile.json, then the file over it.
PAIRS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"properties": {"force_compat_mode": True, "io_batchsize": 7}}, {"properties": {"force_compat_mode": False}}),
    ({"properties": {"force_compat_mode": True}}, {"properties": {"force_compat_mode": None}}),
    ({"properties": {"io_batchsize": 7}}, {"properties": {"force_compat_mode": True}}),
    ({"properties": {"io_batchsize": 7}}, {"properties": None, "unknown": {"io_batchsize": 9}}),
    ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": ["nfs"]}}),
    ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": []}}),
    ({}, {"denylist": {"drivers": ["nvme"]}}),
)
LOGGED = ("properties.force_compat_mode", "properties.max_batch_io_size")


def ask(version: str, base: str, over: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit status and the parsed output of gdscheck with both files."""
    named = folder / "over.json"
    named.write_text(over)
    argv = ["/usr/bin/env", f"CUFILE_ENV_PATH_JSON={named}", str(program("debian-13")), "-p"]
    printed = started(argv, version, config=base, proc=HOOKS, sys_files=SYSFS)
    return printed.status, document.document(runs.read(printed.text.encode(), printed.status), "live")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("base", "over"), PAIRS, ids=json.dumps)
def test_two_files_are_what_the_rules_make_of_them(
    version: str, base: dict[str, Any], over: dict[str, Any], tmp_path: Path
) -> None:
    _, both = ask(version, json.dumps(base), json.dumps(over), tmp_path)
    _, one = ask(version, json.dumps(merged(base, over)), "{}", tmp_path)
    assert both["verdict"] == one["verdict"]
    assert both["storage"] == one["storage"]
    assert {key: both["config"][key] for key in LOGGED} == {key: one["config"][key] for key in LOGGED}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"properties": {"io_batchsize": 007}}',
        "",
        "{",
        '{"properties": {"io_batchsize": 7,}}',
        '{"denylist": {"drivers": ["nvme",]}}',
        '{"properties": 5}',
        "root:x:0:0",
    ],
)
def test_a_file_that_is_recorded_as_broken_is_refused(version: str, text: str, tmp_path: Path) -> None:
    status, _ = ask(version, "{}", text, tmp_path)
    try:
        record = read_configuration(str(tmp_path / "over.json"))
    except ValueError:
        return  # undecided
    assert ("broken" in record) == (status != 0), record


@pytest.mark.parametrize("version", RELEASES)
def test_a_missing_file_is_ignored(version: str) -> None:
    argv = ["/usr/bin/env", "CUFILE_ENV_PATH_JSON=/nowhere/over.json", str(program("debian-13")), "-p"]
    assert started(argv, version, config="{}", proc=HOOKS, sys_files=SYSFS).status == 0
