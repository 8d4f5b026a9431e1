"""Running programs whose configuration is another one, as an explanation shows them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gdsdeploy.host.explain import as_document, explain
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts import facts_from
from tests.unit.host.explain.capable_host import MOUNT, PROVISIONED, Document, capable

OWN = "/home/u/cufile.json"


def running(record: Any = None, **values: Any) -> Document:
    """A capable host where one program uses libcufile."""
    document = capable()
    program = {
        "pid": 4711, "program": "train", "unit": "/docker/0123", "container": False,
        "libraries": ["/usr/lib/x86_64-linux-gnu/libcufile.so.1.9.1"], "wheels": {}, "base": "/etc/cufile.json",
        "variables": {}, **values,
    }  # fmt: skip
    if record is not None:
        program.update(config=OWN, variables={"CUFILE_ENV_PATH_JSON": OWN})
        document["configs"][OWN] = record
    document["processes"]["libcufile"]["programs"] = [program]
    return document


def listed(document: Document) -> list[dict[str, Any]]:
    rows = as_document(explain(facts_from(document), ()))["processes"]
    assert json.loads(json.dumps(rows)) == rows
    return list(rows)


def test_a_program_with_the_default_configuration_is_not_listed() -> None:
    assert listed(running()) == []
    assert listed(running({"config": {}})) == []
    assert listed(running({"error": "ENOENT"})) == []
    assert listed(running(variables={"CUFILE_LOGFILE_PATH": "/tmp/x.log"})) == []
    assert "Running programs" not in render(explain(facts_from(running()), ()))


def test_a_program_that_forces_compat_mode() -> None:
    document = running({"config": {"properties": {"force_compat_mode": True}}})
    (row,) = listed(document)
    assert (row["pid"], row["program"], row["unit"], row["container"]) == (4711, "train", "/docker/0123", False)
    assert row["libcufile"] == {"/usr/lib/x86_64-linux-gnu/libcufile.so.1.9.1": "1.9.1"}
    assert (row["differs"], row["configuration"]) == (True, f"/etc/cufile.json with {OWN}")
    (cause,) = row["causes"]
    assert cause["id"] == "cufile.force-compat"
    assert cause["evidence"] == [
        f"{OWN}: properties: force_compat_mode: true",
        f"the environment of process 4711: CUFILE_ENV_PATH_JSON={OWN}",
    ]
    explanation = explain(facts_from(document), (), MOUNT)
    assert explanation.mounts[0].path.path == "nvidia-fs", "the mount is judged by the default configuration"
    text = render(explanation)
    assert "Running programs with another configuration of libcufile" in text
    assert "process 4711 (train) of /docker/0123" in text
    assert "[cufile.force-compat]" in text


@pytest.mark.parametrize(
    ("record", "values", "cause"),
    [
        ({"broken": "it isn't JSON: x"}, {}, "cufile.overlay-refused"),
        ({"config": {"denylist": {"mounts": [MOUNT]}}}, {}, "cufile.denied"),
        (None, {"variables": {"CUFILE_FORCE_COMPAT_MODE": "true"}}, "cufile.variable-forces-compat"),
        (None, {"variables": {"CUFILE_FORCE_COMPAT_MODE": "TRUE"}}, "cufile.variable-forces-compat"),
    ],
)
def test_what_else_keeps_a_program_off_the_direct_path(record: Any, values: Any, cause: str) -> None:
    (row,) = listed(running(record, **values))
    assert [each["id"] for each in row["causes"]] == [cause]


def test_the_base_of_a_container_is_quoted_as_its_own() -> None:
    document = running(container=True, base="/proc/4711/root/etc/cufile.json")
    document["configs"]["/proc/4711/root/etc/cufile.json"] = {"config": {"properties": {"force_compat_mode": True}}}
    (row,) = listed(document)
    assert row["causes"][0]["evidence"] == ["/proc/4711/root/etc/cufile.json: properties: force_compat_mode: true"]


def test_another_harmless_configuration_is_listed_without_a_cause() -> None:
    (row,) = listed(running({"config": {"properties": {"io_batchsize": 7}}}))
    assert (row["differs"], row["causes"], row["unseen"]) == (True, [], [])


def test_what_could_not_be_read_is_said() -> None:
    (row,) = listed(running({"error": "EACCES"}))
    assert (row["differs"], row["causes"]) == (None, [])
    assert "EACCES" in row["unseen"][0]
    assert "not known: " in render(explain(facts_from(running({"error": "EACCES"})), ()))
    document = running()
    document["processes"]["libcufile"]["unread"] = 3
    assert "3 processes could not be read: permission denied" in explain(facts_from(document), ()).unseen


def test_older_evidence_has_none() -> None:
    report = as_document(explain(facts_from(copy.deepcopy(PROVISIONED)), ()))
    assert report["processes"] is None
    assert "running programs were not collected: an older gdsdeploy recorded this evidence" in report["unseen"]
