from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.cufile.model import NEWEST, OLDEST, Problem, check, known_keys, release_of
from gdsdeploy.host.libcufile import p2pdma


def messages(document: dict[str, Any], release: str) -> list[str]:
    return [f"{p.key}: {p.message}" for p in check(document, release_of(release))]


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.9.1.3", (1, 9)), ("1.20.0.107", (1, 20)), ("1.4", (1, 4)), ("1.4.0.31~11.8.0-5", (1, 4))],
)
def test_release_of_a_version(version: str, release: tuple[int, int]) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("text", ["", "1", "x.4", "one.two"])
def test_release_of_something_else(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        release_of(text)


def test_the_data_holds_together() -> None:
    for name, key in known_keys().items():
        assert OLDEST <= release_of(key.since) <= NEWEST, name
        if key.until:
            assert release_of(key.since) <= release_of(key.until), name
        for by_release in (key.defaults, key.limits_from):
            assert by_release is None or min(map(release_of, by_release)) == release_of(key.since), name
        for minor in range(OLDEST[1], NEWEST[1] + 1):
            default = key.default_for((1, minor)) if key.read_by((1, minor)) else None
            if default is not None:
                document: dict[str, Any] = {}
                section = document
                *path, last = name.split(".")
                for part in path:
                    section = section.setdefault(part, {})
                section[last] = default
                relation = "may not exceed" if last == "per_buffer_cache_size_kb" else "entries"
                assert [m for m in messages(document, f"1.{minor}") if relation not in m] == [], (name, minor)


@pytest.mark.parametrize(
    ("release", "document", "expected"),
    [
        ("1.9", {"properties": {"max_directio_size_kb": 64}}, "did you mean properties.max_direct_io_size_kb?"),
        ("1.9", {"properties": {"use_compat_mode": True}}, "gdscheck prints properties.allow_compat_mode under"),
        ("1.9", {"profile": {"io_batchsize": 5}}, "did you mean properties.io_batchsize?"),
        ("1.9", {"blacklist": {"mounts": ["/x"]}}, "no longer reads this key; it is denylist.mounts now"),
        ("1.9", {"loging": {"level": "INFO"}}, "which libcufile would ignore (did you mean logging.level?)"),
        ("1.16", {"fs": {"block": {"nvme": {}}}}, "would ignore: block is a section at the top of the file"),
        ("1.9", {"nonsense": {}}, "nonsense: unknown key, which libcufile would ignore"),
        ("1.9", {"properties": {"use_pci_p2pdma": True}}, "libcufile reads this key from 1.13 on; this is 1.9"),
        ("1.16", {"profile": {"nvtx": True}}, "libcufile reads this key up to 1.15; this is 1.16"),
        ("1.9", {"properties": 3}, "properties: expected an object (found 3)"),
        ("1.9", {"properties": {"allow_compat_mode": 1}}, "expected true or false (found 1)"),
        ("1.9", {"properties": {"io_batchsize": True}}, "expected a whole number (found True)"),
        ("1.9", {"properties": {"io_batchsize": 257}}, "must be 1 to 256 (found 257)"),
        ("1.9", {"properties": {"max_direct_io_size_kb": 1025}}, "must be a multiple of 64 KiB (found 1025)"),
        ("1.9", {"properties": {"max_direct_io_size_kb": 32768}}, "must be 64 to 16384 KiB (found 32768)"),
        ("1.9", {"execution": {"max_io_threads": 64}}, "must be 0 to 32 (found 64)"),
        ("1.9", {"execution": {"min_io_threshold_size_kb": 2**32}}, "to 4294967295 KiB"),
        ("1.20", {"logging": {"max_file_size_mb": 0}}, "must be 1 to 4096 MiB or -1 (found 0)"),
        ("1.9", {"logging": {"level": "LOUD"}}, "one of NOTICE, ERROR, WARN, INFO, DEBUG, TRACE (found 'LOUD')"),
        ("1.9", {"logging": {"dir": "logs"}}, "must be an absolute path (found 'logs')"),
        ("1.9", {"properties": {"rdma_dev_addr_list": "192.0.2.1"}}, "expected a list of texts"),
        ("1.9", {"properties": {"rdma_dev_addr_list": ["192.0.2"]}}, "an IPv4 or IPv6 address (found '192.0.2')"),
        ("1.9", {"properties": {"rdma_peer_type": "auto"}}, "must be one of dmabuf, nvidia_peermem (found 'auto')"),
        ("1.9", {"properties": {"rdma_dynamic_routing_order": ["P2P", "X"]}}, "(found 'X')"),
        ("1.9", {"properties": {"rdma_dc_key": "zz"}}, "must look like"),
        ("1.9", {"properties": {"max_direct_io_size_kb": 512}}, "per_buffer_cache_size_kb (1024) may not exceed"),
        ("1.9", {"properties": {"posix_pool_slab_size_kb": [4]}}, "has 1 entries but posix_pool_slab_count has 3"),
        ("1.9", {"properties": {"posix_pool_slab_size_kb": [4, 6, 8]}}, "must be a multiple of 4 KiB (found 6)"),
        ("1.17", {"properties": {"gpu_bounce_buffer_slab_config": {"slab_size_kb": [64]}}}, "but slab_count has 0"),
        ("1.9", {"properties": {"allow_compat_mode": False, "force_compat_mode": True}}, "contradicts allow"),
        ("1.19", {"properties": {"rdma_transport_type": "DC"}}, "gdsdeploy does not write this key"),
        ("1.3", {}, "libcufile 1.3 is older than 1.4"),
    ],
)  # fmt: skip
def test_each_kind_of_problem(release: str, document: dict[str, Any], expected: str) -> None:
    problems = messages(document, release)
    assert len(problems) == 1, problems
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("release", "document"),
    [
        ("1.4", {}),
        ("1.13", {"properties": {"use_pci_p2pdma": True}}),
        ("1.17", {"execution": {"max_io_threads": 128}}),
        ("1.19", {"properties": {"compat_odirect_unaligned_read_split_min_size_kb": 0}}),
        ("1.19", {"fs": {"panfs": {"mount_table": {"/mnt/any": {"rdma_dev_addr_list": []}}}}}),
        ("1.9", {"properties": {"rdma_dev_addr_list": ["192.0.2.1", "2001:db8::1"]}}),
        ("1.9", {"properties": {"max_device_pinned_mem_size_kb": 18014398509481980}}),
        ("1.99", {"miscellaneous": {"enable_static_config": True}}),
    ],
)
def test_what_the_library_takes_is_no_problem(release: str, document: dict[str, Any]) -> None:
    assert messages(document, release) == []


def test_every_problem_is_reported_at_once() -> None:
    problems = check({"properties": {"io_batchsize": 0, "poll_mode_max_size_kb": 5}, "loging": {}}, (1, 9))
    assert [problem.key for problem in problems] == [
        "properties.io_batchsize",
        "properties.poll_mode_max_size_kb",
        "loging",
    ]
    assert problems[0] == Problem("properties.io_batchsize", "must be 1 to 256 (found 0)")


_NAMES = st.sampled_from(sorted({part for name in known_keys() for part in name.split(".")})) | st.text(max_size=5)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_NAMES, _VALUES, max_size=5), st.integers(min_value=0, max_value=30))
def test_any_document_is_judged_and_never_breaks_the_check(document: dict[str, Any], minor: int) -> None:
    for problem in check(document, (1, minor)):
        assert problem.message


def test_the_table_of_p2pdma_keys_and_keys_yml_agree() -> None:
    """Hosts have the table, and the controller also keys.yml."""
    name = ".use_pci_p2pdma"
    expected = {key.key: release_of(key.since) for key in known_keys().values() if key.key.endswith(name)}
    assert {p2pdma.GLOBAL: (1, 13), **{row.name: row.since for row in p2pdma.storage_keys()}} == expected
    assert min(row.since for row in p2pdma.storage_keys()) == p2pdma.OWN_KEYS_SINCE
    assert p2pdma.keys_for((1, 15)) == ()
    assert {row.storage for row in p2pdma.storage_keys()} - {row.storage for row in p2pdma.keys_for((1, 18))} == {
        "raid1",
        "raid10",
        "panfs",
    }
