"""A second configuration, laid over the first; and programs that run, each with its own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import HostFacts, Unknown, facts_from
from gdsdeploy.host.facts.environment import Overlay, merged
from gdsdeploy.host.facts.processes import Program
from tests.unit.later_evidence import complete

HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"
BARE = json.loads((HOSTS / "lab-vm-bare.json").read_text())
OWN = "/home/u/cufile.json"
CUDA12 = "/v/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0"
CUDA13 = "/v/lib/python3.12/site-packages/nvidia/cu13/lib/libcufile.so.0"


def facts(record: Any = None, base: str = "{}", program: dict[str, Any] | None = None, **sections: Any) -> HostFacts:
    document = complete(copy.deepcopy(BARE))
    document["files"]["/etc/cufile.json"] = base
    if record is not None:
        document["environment"] = {"CUFILE_ENV_PATH_JSON": OWN}
        document["configs"][OWN] = record
    if program is not None:
        document["processes"]["libcufile"]["programs"] = [program]
    for section, value in sections.items():
        document[section].update(value)
    return facts_from(document)


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ({"properties": {"a": 1, "b": 2}}, {"properties": {"b": 3}}, {"properties": {"a": 1, "b": 3}}),
        ({"properties": {"a": True}}, {"properties": {"a": None}}, {"properties": {"a": True}}),
        ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": []}}, {"denylist": {"drivers": ["nvme"]}}),
        ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": ["nfs"]}}, {"denylist": {"drivers": ["nfs"]}}),
        (
            {"fs": {"nfs": {"mount_table": {"/a": {}}}}},
            {"fs": {"nfs": {"mount_table": {"/b": {}}}}},
            {"fs": {"nfs": {"mount_table": {"/a": {}, "/b": {}}}}},
        ),
        (None, {"fs": {"x": 0}}, {"fs": {"x": 0}}),
    ],
)
def test_one_configuration_over_another(base: Any, over: Any, result: Any) -> None:
    before = copy.deepcopy(base)
    assert merged(base, over) == result
    assert base == before


def test_settings_are_those_of_both_files() -> None:
    both = facts({"config": {"properties": {"force_compat_mode": True}}}, '{"properties": {"io_batchsize": 7}}').cufile
    assert both.setting("properties", "force_compat_mode", False) is True
    assert both.setting("properties", "io_batchsize", 128) == 7
    assert both.config == {"properties": {"io_batchsize": 7}}, "the file itself stays what it is"


def test_what_can_be_with_the_named_file() -> None:
    assert facts().cufile.overlay is None
    missing = facts({"error": "ENOENT"}).cufile.overlay
    assert isinstance(missing, Overlay)
    assert (missing.exists, missing.config, missing.variable.place) == (False, {}, "the environment of this program")
    denied = facts({"error": "EACCES"}).cufile
    assert isinstance(denied.overlay, Unknown)
    assert isinstance(denied.setting("properties", "force_compat_mode", False), Unknown)
    broken = facts({"broken": "no JSON"}).cufile.overlay
    assert isinstance(broken, Overlay)
    assert broken.broken == "no JSON"
    for record in ({}, {"config": 5}, {"broken": 5}, [], 5):
        assert isinstance(facts(record).cufile.overlay, Unknown), record


def program(**values: Any) -> dict[str, Any]:
    return {
        "pid": 7, "program": "train", "unit": "/system.slice/a.service", "container": False, "libraries": [],
        "wheels": {}, "base": "/etc/cufile.json", "variables": {}, **values,
    }  # fmt: skip


def only(**values: Any) -> Program:
    running = facts(program=program(**values)).processes.programs
    assert not isinstance(running, Unknown)
    return running[0]


BOTH = ["nvidia_cufile-1.15.1.6.dist-info", "nvidia_cufile_cu12-1.13.1.3.dist-info"]


@pytest.mark.parametrize(
    ("library", "wheels", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcufile.so.1.9.1", [], "1.9.1"),
        ("/usr/lib/x86_64-linux-gnu/libcufile.so.1.9.1 (deleted)", [], "1.9.1"),
        (CUDA12, BOTH, "1.13.1.3"),
        (CUDA13, BOTH, "1.15.1.6"),
        (CUDA13, [], None),
        (CUDA13, BOTH[1:], None),
        (CUDA13 + " (deleted)", BOTH, None),
        ("/opt/x/libcufile.so.0", "nonsense", None),
    ],
)
def test_the_version_of_a_loaded_library(library: str, wheels: Any, version: str | None) -> None:
    result = only(libraries=[library], wheels={library: wheels}).libraries[library]
    assert isinstance(result, Unknown) if version is None else result == version


def test_a_program_in_a_container_has_its_own_files() -> None:
    root = "/proc/7/root"
    values = program(
        container=True, base=root + "/etc/cufile.json", config=root + OWN, variables={"CUFILE_ENV_PATH_JSON": OWN}
    )
    configs = {
        root + "/etc/cufile.json": {"config": {"properties": {"io_batchsize": 9}}},
        root + OWN: {"config": {"properties": {"force_compat_mode": True}}},
    }
    running = facts(base='{"properties": {"io_batchsize": 7}}', program=values, configs=configs).processes.programs
    assert not isinstance(running, Unknown)
    assert running[0].base == {"properties": {"io_batchsize": 9}}
    assert isinstance(running[0].overlay, Overlay)
    assert running[0].overlay.path == OWN
    assert running[0].label == "process 7 (train) of /system.slice/a.service"


def test_what_was_not_read_of_a_program_is_unknown() -> None:
    ended = only(variables=None, base=None, container=None, error="FileNotFoundError: gone")
    assert isinstance(ended.variables, Unknown)
    assert isinstance(ended.overlay, Unknown)
    assert isinstance(ended.base, Unknown)
    assert isinstance(only(variables={"CUFILE_ENV_PATH_JSON": "own.json"}).overlay, Unknown)


@pytest.mark.parametrize("record", [5, {}, {"programs": 5}, {"programs": [5]}, {"error": "EACCES"}])
def test_a_malformed_record_is_no_list_of_programs(record: Any) -> None:
    document = complete(copy.deepcopy(BARE))
    document["processes"]["libcufile"] = record
    assert isinstance(facts_from(document).processes.programs, Unknown)
    assert isinstance(facts_from(document).processes.complete, Unknown)


def test_whether_all_programs_were_looked_at() -> None:
    assert facts().processes.complete is True
    for change in ({"unread": 2}, {"more": True}, {"unread": None}, {"more": "no"}):
        record = {"programs": [], "unread": 0, "more": False, **change}
        assert isinstance(facts(processes={"libcufile": record}).processes.complete, Unknown), change
