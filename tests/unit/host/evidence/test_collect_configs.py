"""What is recorded of a file that any user may have named, and what isn't."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy import cufile
from gdsdeploy.host.evidence.environment import LIMIT, record_configuration, relevant
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts.environment import SECTIONS


def recorded(folder: Path, text: str | bytes) -> Any:
    file = folder / "own.json"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    recorder = Recorder()
    key = record_configuration(recorder, str(file))
    return recorder.document["configs"][key]


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('{"properties": {"force_compat_mode": true}}', {"properties": {"force_compat_mode": True}}),
        ('// a comment\n{"fs": {} /* and */ } and more', {"fs": {}}),
        ("{}", {}),
        ("[]", {}),
        ('{"properties": null}', {}),
        ('{"auths": {"registry": {"auth": "c2VjcmV0"}}, "logging": {}}', {"logging": {}}),
    ],
)
def test_only_known_sections_are_recorded(tmp_path: Path, text: str, config: Any) -> None:
    assert recorded(tmp_path, text) == {"config": config}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " // nothing\n",
        "{",
        '{"properties": {"a": 1,}}',
        '{"denylist": {"drivers": ["nvme",]}}',
        "\ufeff{}",
        "root:$6$hash:19000:0:99999:7:::\n",
        '{"properties": 5}',
        "[1]",
    ],
)
def test_a_file_that_libcufile_refuses_is_broken_and_its_content_unrecorded(tmp_path: Path, text: str) -> None:
    record = recorded(tmp_path, text)
    assert set(record) == {"broken"}
    assert "hash" not in str(record)


@pytest.mark.parametrize("text", ['{"properties": {"io_batchsize": 007}}', '{"properties": {"a": -}}'])
def test_what_libcufile_may_accept_is_neither(tmp_path: Path, text: str) -> None:
    assert set(recorded(tmp_path, text)) == {"error"}


def test_other_than_a_small_regular_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"{}" + b" " * LIMIT)
    recorder = Recorder()
    for name in ("pipe", "large", "gone", "."):
        record_configuration(recorder, str(tmp_path / name))
    records = {Path(key).name: record for key, record in recorder.document["configs"].items()}
    assert records.pop("gone") == {"error": "ENOENT"}
    assert all(set(record) == {"error"} for record in records.values())
    assert records["pipe"] == {"error": "it isn't a regular file"}
    assert records["large"] == {"error": "EFBIG"}


def test_links_of_a_container_lead_into_the_container(tmp_path: Path) -> None:
    secret = tmp_path / "outside.json"
    secret.write_text('{"properties": {"outside": 1}}')
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/cufile.json").symlink_to(secret)
    recorder = Recorder()
    key = record_configuration(recorder, "/etc/cufile.json", str(root))
    assert recorder.document["configs"] == {key: {"error": "ENOENT"}}
    assert key == f"{root}/etc/cufile.json"


def test_no_other_variable_is_recorded() -> None:
    environment = {"CUFILE_X": "/a b", "KVIKIO_COMPAT_MODE": "ON", "AWS_SECRET": "x"}
    assert relevant(environment) == {"CUFILE_X": "/a b"}


def test_the_sections_are_those_that_releases_read() -> None:
    keys = yaml.safe_load((Path(str(cufile.__file__)).parent / "keys.yml").read_text())
    assert {row["key"].partition(".")[0] for row in keys} == set(SECTIONS)
