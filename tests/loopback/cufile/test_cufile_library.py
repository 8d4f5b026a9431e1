"""What libcufile logs about its file, against real libraries: names and values; and the stand-in against a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.cufile.model import known_keys
from gdsdeploy.host.facts.cufile import SHOWN, differences, effective_values, given_keys, same
from tests.cufile import libraries
from tests.cufile.effective import effective

H200 = Path(__file__).parents[2] / "evidence" / "h200"


def test_a_mount_table_is_compared_as_a_whole(tmp_path: Path) -> None:
    table = {str(tmp_path): {"rdma_dev_addr_list": ["192.0.2.1", "192.0.2.2"]}}
    logged = {"fs.nfs.mount_table": f"{tmp_path}: 192.0.2.1"}
    found, _ = differences({"fs": {"nfs": {"mount_table": table}}}, logged)
    assert [value.key for value in found] == ["fs.nfs.mount_table"]


def test_the_names_that_the_library_uses_are_those_of_the_keys() -> None:
    assert {name: key.shown for name, key in known_keys().items() if key.shown}.items() <= SHOWN.items()
    printed = {key for answer in _defaults() for key in answer}
    assert set(SHOWN.values()) - printed == {
        "properties.gpu_bounce_buffer_slab_size_kb",
        "properties.gpu_bounce_buffer_slab_count",
    }, "these two are logged only where they are set"


def _defaults() -> list[dict[str, str]]:
    return [dict(libraries.library(version).ask("{}").effective) for version in ("1.4.0.31", "1.20.0.107")]


@pytest.mark.parametrize(
    ("value", "logged", "equal"),
    [
        (True, "true", True),
        (True, "1", True),
        (False, "true", False),
        (128, "128", True),
        (128, "12", False),
        ([4, 64], "4 64 ", True),
        ([4, 64], "64 4", False),
        (["P2P"], "P2P", True),
        ("RoundRobin", "roundrobin", False),
    ],
)
def test_values_are_compared_as_they_are_logged(value: object, logged: str, equal: bool) -> None:
    assert same(value, logged) is equal


def test_keys_are_given_by_their_dotted_names() -> None:
    document = {"fs": {"nfs": {"mount_table": {"/a": {}}, "use_pci_p2pdma": True}}, "denylist": {"drivers": []}}
    assert dict(given_keys(document)) == {
        "fs.nfs.mount_table": {"/a": {}},
        "fs.nfs.use_pci_p2pdma": True,
        "denylist.drivers": [],
    }


@pytest.mark.parametrize("version", ["1.15.1.6", "1.20.0.107"])
def test_a_real_gpu_and_the_stand_in_say_the_same(version: str) -> None:
    """On a host with an H200 its file was rendered and shown to the library, with the real libcuda."""
    real = json.loads((H200 / f"effective-{version}.json").read_text())
    assert (real["accepted"], real["error"], real["problem"]) == (True, 0, None)
    content = (H200 / f"rendered-{version}.json").read_bytes()
    (result,) = effective(libraries.library(version), {"file": content}, folders=["/var/log/cufile"])
    assert json.loads(result.to_json())["values"] == real["values"]
    assert len(real["values"]) > 30


@pytest.mark.parametrize(
    ("log", "count", "expected"),
    [
        ("libcufile-1.15.1-trace.log", 33, ("properties.use_pci_p2pdma", "true")),
        ("libcufile-1.20.0-p2pdma-requested-trace.log", 63, ("properties.use_pci_p2pdma", "true")),
        ("libcufile-1.20.0-compat-not-allowed.log", 0, None),
    ],
)
def test_logs_of_a_host_with_a_gpu_read_the_same(log: str, count: int, expected: tuple[str, str] | None) -> None:
    values = effective_values((H200 / log).read_text())
    assert len(values) == count
    assert expected is None or values[expected[0]] == expected[1]
