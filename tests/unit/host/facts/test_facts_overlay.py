"""A second configuration, laid over the first; and programs that run, each with its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.environment import merged
from tests.unit.host import cases, hosts
from tests.unit.host.patches import patched


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
    look = next(cases.read("facts/programs")["the first file stays what it is"].looks())
    both = facts_from(look.document).cufile
    assert both.setting("properties", "force_compat_mode", False) is True
    assert both.setting("properties", "io_batchsize", 128) == 7


def test_a_setting_that_may_be_in_a_file_that_was_not_read() -> None:
    record = {"environment": {"CUFILE_ENV_PATH_JSON": "/x"}, "configs": {"/x": {"error": "EACCES"}}}
    facts = facts_from(patched(hosts.named("capable"), record))
    assert isinstance(facts.cufile.setting("properties", "force_compat_mode", False), Unknown)


def test_a_program_has_a_label() -> None:
    running = facts_from(hosts.named("capable, with a program")).processes.programs
    assert not isinstance(running, Unknown)
    assert running[0].label == "process 4711 (train) of /docker/0123"
