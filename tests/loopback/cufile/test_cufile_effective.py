"""What real libraries work with, key by key, and the verb that shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.model import P2PDMA, known_keys
from gdsdeploy.host.facts.cufile import SHOWN, differences, given_keys, same
from tests.cufile import libraries
from tests.cufile.effective import Effective, Value, effective
from tests.cufile.library import Answer

H200 = Path(__file__).parents[2] / "evidence" / "h200"


def values(version: str, document: dict[str, Any] | str) -> dict[str, Value]:
    content = document if isinstance(document, str) else json.dumps(document)
    (result,) = effective(libraries.library(version), {"cufile.json": content.encode()})
    return {value.key: value for value in result.values}


@pytest.mark.parametrize("version", ["1.4.0.31", "1.13.1.3", "1.20.0.107"])
def test_every_state_of_a_key(version: str) -> None:
    states = values(
        version,
        """{
            "properties": {
                // the last one counts
                "io_batchsize": 5, "io_batchsize": 7,
                "allow_compat_mode": false, "posix_pool_slab_size_kb": [4, 64], "posix_pool_slab_count": [1, 2],
                "max_batch_io_size": 9, "rdma_dynamic_routing": true, "io_priority": "low"
            }
        } and what follows""",
    )
    assert states["properties.io_batchsize"] == Value("properties.io_batchsize", "7", "7", "128", "set")
    assert states["properties.allow_compat_mode"] == Value(
        "properties.allow_compat_mode", "false", "false", "true", "set"
    )
    assert states["properties.posix_pool_slab_size_kb"].effective == "4 64"
    assert states["properties.rdma_dynamic_routing"].state == "set"
    assert states["properties.io_priority"].state == "not logged"
    order = states["properties.rdma_dynamic_routing_order"]
    assert (order.intended, order.state) == (None, "follows")
    assert states["properties.use_poll_mode"] == Value("properties.use_poll_mode", None, "false", "false", "default")


def test_a_key_of_a_newer_release_is_ignored() -> None:
    newer = {"properties": {"use_pci_p2pdma": True}}
    assert values("1.9.1.3", newer)["properties.use_pci_p2pdma"].state == "ignored"
    assert values("1.13.1.3", newer)["properties.use_pci_p2pdma"].state == "set"


NVME = "block.nvme.use_pci_p2pdma"


@pytest.mark.parametrize(
    ("version", "properties", "block", "states", "problem"),
    [
        ("1.15.1.6", True, None, {P2PDMA: "set"}, None),
        ("1.16.1.26", True, None, {P2PDMA: "half-set"}, f"without the intended effect: {P2PDMA} (half-set)"),
        ("1.20.0.107", True, False, {P2PDMA: "half-set", NVME: "set"}, f"{P2PDMA} (half-set)"),
        ("1.20.0.107", None, True, {NVME: "half-set"}, f"{NVME} (half-set)"),
        ("1.20.0.107", True, True, {P2PDMA: "set", NVME: "set"}, None),
    ],
)
def test_either_half_of_p2pdma_alone_has_no_effect(
    version: str, properties: bool | None, block: bool | None, states: dict[str, str], problem: str | None
) -> None:
    document: dict[str, Any] = {} if properties is None else {"properties": {"use_pci_p2pdma": properties}}
    document |= {} if block is None else {"block": {"nvme": {"use_pci_p2pdma": block}}}
    (result,) = effective(libraries.library(version), {"cufile.json": json.dumps(document).encode()})
    assert {value.key: value.state for value in result.values if value.intended} == states
    assert result.problem is None if problem is None else str(result.problem).endswith(problem)


def test_what_another_key_overrules_differs() -> None:
    """From 1.17 on, a list of bounce buffers decides over the size of their cache."""
    slabs = {"slab_size_kb": [64, 128], "slab_count": [2, 1]}
    document = {"properties": {"gpu_bounce_buffer_slab_config": slabs, "max_device_cache_size_kb": 131072}}
    states = values("1.20.0.107", document)
    assert states["properties.gpu_bounce_buffer_slab_config.slab_size_kb"].effective == "64 128"
    cache = states["properties.max_device_cache_size_kb"]
    assert (cache.intended, cache.effective, cache.state) == ("131072", "256", "differs")


def test_a_mount_table_is_compared_as_a_whole(tmp_path: Path) -> None:
    table = {str(tmp_path): {"rdma_dev_addr_list": ["192.0.2.1", "192.0.2.2"]}}
    document = {"fs": {"nfs": {"mount_table": table}}}
    assert values("1.9.1.3", document)["fs.nfs.mount_table"].state == "set"
    logged = {"fs.nfs.mount_table": f"{tmp_path}: 192.0.2.1"}
    assert [value.key for value in differences(document, logged)[0]] == ["fs.nfs.mount_table"]


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


def test_an_answer_without_values_is_no_success() -> None:
    """As with the real libcuda on a machine without a GPU: it returns before it names a value."""
    answer = Answer(
        accepted=True, reason=None, key=None, effective={}, error=5001, output=("why",), log="", hung=False, seconds=0.1
    )
    silent = Effective("a.json", "1.9.1.3", answer, ())
    words = "libcufile 1.9.1.3 returned 5001 without logging its values: why"
    assert silent.problem == words
    log = (H200 / "libcufile-1.20.0-compat-not-allowed.log").read_text()
    assert str(replace(silent, answer=replace(answer, log=log)).problem).endswith(": nvidia-fs.ko driver not loaded")
    assert "did not return" in str(Effective("a", "1", replace(answer, error=None, hung=True), ()).problem)


@pytest.mark.parametrize("version", ["1.15.1.6", "1.20.0.107"])
def test_a_real_gpu_and_the_stand_in_say_the_same(version: str) -> None:
    """On a host with an H200 its file was rendered and shown to the library, with the real libcuda."""
    real = json.loads((H200 / f"effective-{version}.json").read_text())
    assert (real["accepted"], real["error"], real["problem"]) == (True, 0, None)
    content = (H200 / f"rendered-{version}.json").read_bytes()
    (result,) = effective(libraries.library(version), {"file": content}, folders=["/var/log/cufile"])
    assert json.loads(result.to_json())["values"] == real["values"]
    assert len(real["values"]) > 30
