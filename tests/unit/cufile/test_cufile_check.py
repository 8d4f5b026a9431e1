"""Every finding with its id and place, and the verdict beside it; then the verb as a user calls it."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy import cli
from gdsdeploy.cufile import machine
from gdsdeploy.cufile.check import MachineFacts, What, check, judge, judged_release, kinds
from gdsdeploy.cufile.model import EXAMINED_RELEASES, known_keys, release_of
from gdsdeploy.errors import CufileInvalid
from tests.cufile.differential import deviations
from tests.cufile.documents import document, nest

DOCS = Path(__file__).parents[3] / "docs" / "cufile.md"
PATHS: dict[str, What] = {"/tmp": "folder", "/dev/nvme0n1": "block", "/dev/null": "other"}
TABLE = '{"mount_table": {"/": {"rdma_dev_addr_list": ["192.0.2.2"]}}}'
SLABS = '"gpu_bounce_buffer_slab_config": {"slab_size_kb": [64], "slab_count": [1]}'
MACHINE = MachineFacts(lambda path: PATHS.get(path, ""), p2pdma=False)


def finding_lines(text: str | bytes, release: tuple[int, int], facts: MachineFacts | None = None) -> list[str]:
    report = check(text if isinstance(text, bytes) else text.encode(), release, facts)
    return [f"{one.line}:{one.column} {one.severity} {one.id} {one.key}" for one in report.findings]


@pytest.mark.parametrize(
    ("release", "text", "accepted", "expected"),
    [
        ("1.20", "{}", True, []),
        ("1.20", "", False, ["1:1 error invalid-json "]),
        ("1.20", "[" * 2000, False, ["1:1001 error too-deep "]),
        ("1.20", "3", False, ["1:1 error not-an-object "]),
        ("1.20", "[]", True, ["1:1 error not-an-object "]),
        ("1.20", '{"fs":\n 3}', False, ["2:2 error not-an-object fs"]),
        ("1.20", '{\n  "propertis": {"a": 1}}', True, ["2:17 error unknown-key propertis.a"]),
        ("1.9", '{"properties": {"use_pci_p2pdma": true}}', True, ["1:17 error newer-key properties.use_pci_p2pdma"]),
        ("1.16", '{"profile": {"nvtx": true}}', True, ["1:14 error dropped-key profile.nvtx"]),
        ("1.16", '{"blacklist": {"mounts": []}}', True, ["1:16 error renamed-key blacklist.mounts"]),
        ("1.19", '{"properties": {"posix_io_mode": true}}', True, ["1:17 error renamed-key properties.posix_io_mode"]),
        (
            "1.18",
            '{"properties": {"vanilla_posix_io_mode": true}}',
            True,
            ["1:17 error renamed-key properties.vanilla_posix_io_mode"],
        ),
        ("1.20", '{"properties": {"rdma_transport_type": ""}}', True,
         ["1:17 error not-written properties.rdma_transport_type"]),
        ("1.20", '{"properties": {"io_batchsize": true}}', True, ["1:33 error wrong-type properties.io_batchsize"]),
        ("1.20", '{"properties": {"io_batchsize": "5"}}', False, ["1:33 error wrong-type properties.io_batchsize"]),
        ("1.20", '{"properties": {"io_batchsize": 300}}', False, ["1:33 error out-of-range properties.io_batchsize"]),
        ("1.20", '{"properties": {"max_direct_io_size_kb": 2000}}', False,
         ["1:42 error not-a-multiple properties.max_direct_io_size_kb"]),
        ("1.20", '{"logging": {"level": "LOUD"}}', True, ["1:23 error unknown-word logging.level"]),
        ("1.15", '{"properties": {"rdma_dev_addr_list": ["ens1"]}}', True,
         ["1:39 error bad-format properties.rdma_dev_addr_list"]),
        # The library has a mode for names of interfaces from 1.16 on.
        ("1.16", '{"properties": {"rdma_dev_addr_list": ["ens1", "mlx5_0"]}}', True, []),
        ("1.20", '{"properties": {"rdma_dev_addr_list": ["192.0.2.300"]}}', True,
         ["1:39 error bad-format properties.rdma_dev_addr_list"]),
        ("1.4", '{"properties": {"posix_pool_slab_size_kb": [4]}}', False,
         ["1:44 error list-lengths properties.posix_pool_slab_size_kb"]),
        ("1.20", '{"properties": {"gpu_bounce_buffer_slab_config":\n{"slab_size_kb": [8, 4], "slab_count": [1, 1]}}}',
         True, ["2:2 error slab-order properties.gpu_bounce_buffer_slab_config.slab_size_kb"]),
        ("1.13", '{"properties": {"max_direct_io_size_kb": 512}}', False,
         ["1:42 error buffer-exceeds-request properties.max_direct_io_size_kb"]),
        ("1.11", '{"properties": {"max_direct_io_size_kb": 512}}', True,
         ["1:17 warning upgrade-trap properties.max_direct_io_size_kb"]),
        ("1.9", '{"properties": {"force_compat_mode": true, "allow_compat_mode": false}}', True,
         ["1:38 error compat-contradiction properties.force_compat_mode"]),
        ("1.16", '{"properties": {"force_compat_mode": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}', True,
         ["1:64 error p2pdma-contradiction block.nvme.use_pci_p2pdma"]),
        # The two halves of P2PDMA; up to 1.15 there is but one.
        ("1.16", '{"properties":\n{"use_pci_p2pdma": true}}', True,
         ["2:20 error p2pdma-half-set properties.use_pci_p2pdma"]),
        ("1.20", '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": false}}}', True,
         ["1:35 error p2pdma-half-set properties.use_pci_p2pdma"]),
        ("1.20", '{"block": {"nvme":\n {"use_pci_p2pdma": true}}}', True,
         ["2:21 error p2pdma-half-set block.nvme.use_pci_p2pdma"]),
        ("1.20", '{"properties": {"use_pci_p2pdma": false}, "fs": {"virtiofs": {"use_pci_p2pdma": true}}}', True,
         ["1:81 error p2pdma-half-set fs.virtiofs.use_pci_p2pdma"]),
        ("1.20", '{"properties": {"use_pci_p2pdma": true}, "block": {"nvmeof": {"use_pci_p2pdma": true}}}', True, []),
        ("1.15", '{"properties": {"use_pci_p2pdma": true}}', True, []),
        ("1.20", '{"properties": {"use_pci_p2pdma": false}}', True, []),
        ("1.16", '{"properties": {"use_pci_p2pdma": true}, "fs": {"gpfs": {"use_pci_p2pdma": true}}}', True,
         ["1:58 warning no-p2pdma-route fs.gpfs.use_pci_p2pdma"]),
        ("1.20", '{"properties": {"rdma_dynamic_routing": true}}', True,
         ["1:17 warning no-effect properties.rdma_dynamic_routing"]),
        ("1.20", '{"properties": {"rdma_dynamic_routing": true, "rdma_dev_addr_list": []}}', True,
         ["1:17 warning no-effect properties.rdma_dynamic_routing"]),
        ("1.20", '{"properties": {"rdma_dynamic_routing": true, "rdma_dev_addr_list": ["192.0.2.1"]}}', True, []),
        ("1.20", '{"properties": {"rdma_dynamic_routing": true}, "fs": {"nfs": ' + TABLE + "}}", True, []),
        ("1.20", '{"fs": {"nfs": {"rdma_dev_addr_list": ["192.0.2.1"],\n ' + TABLE[1:] + "}}", True,
         ["2:2 warning two-address-lists fs.nfs.mount_table"]),
        ("1.20", '{"properties": {"rdma_dev_addr_list": ["192.0.2.1", "2001:db8::1"]}}', True,
         ["1:17 warning ipv6-address properties.rdma_dev_addr_list"]),
        ("1.20", '{"fs": {"nfs": {"mount_table": {"/": {"rdma_dev_addr_list": ["::1"]}}}}}', True,
         ["1:17 warning ipv6-address fs.nfs.mount_table"]),
        ("1.20", '{"properties": {"rdma_topN_ranks": 0}}', True,
         ["1:17 warning no-near-interface properties.rdma_topN_ranks"]),
        ("1.20", '{"properties": {"rdma_topN_ranks": 1}}', True, []),
        ("1.20", '{"properties": {"max_device_cache_size_kb": 65536}}', True,
         ["1:17 warning small-cache properties.max_device_cache_size_kb"]),
        ("1.20", '{"properties": {"io_batchsize": 129, "max_device_cache_size_kb": 131072}}', True,
         ["1:17 warning small-cache properties.io_batchsize"]),
        ("1.20", '{"properties": {"per_buffer_cache_size_kb": 512, "max_device_cache_size_kb": 65536}}', True, []),
        # Slabs replace both sizes.
        ("1.20", '{"properties": {"max_device_cache_size_kb": 64, ' + SLABS + "}}", True, []),
        ("1.20", '{"properties": {"rdma_load_balancing_policy": "FirstFit"}}', True, []),
        ("1.4", '{"properties": {"rdma_load_balancing_policy": "FirstFit"}}', True, []),
        ("1.20", '{"miscellaneous": {"enable_static_routing": true}}', True,
         ["1:20 warning no-effect miscellaneous.enable_static_routing"]),
        ("1.18", '{"properties": {"rdma_multipath_enabled": true, "rdma_io_retry_count": 11}}', True,
         ["1:72 error clamped properties.rdma_io_retry_count"]),
        ("1.18", '{"properties": {"rdma_max_backup_devices": 3}}', True,
         ["1:17 warning no-effect properties.rdma_max_backup_devices"]),
        ("1.18", '{"properties": {"io_batchsize": null}}', True, ["1:33 warning null-value properties.io_batchsize"]),
        ("1.18", '{"properties": {"io_batchsize": 500,\n"io_batchsize": 5}}', True,
         ["1:17 warning repeated-key properties.io_batchsize"]),
        ("1.18", "{}\n // c\n}", True, ["3:1 warning text-after-end "]),
        ("1.4", '{"profile": {"cufile_stats": 4294967296}}', False, ["1:30 error out-of-range profile.cufile_stats"]),
        ("1.4", '{"properties": {"per_buffer_cache_size_kb": 0}}', False,
         ["1:45 error out-of-range properties.per_buffer_cache_size_kb"]),
    ],
)  # fmt: skip
def test_each_finding(release: str, text: str, accepted: bool, expected: list[str]) -> None:
    nearest, _ = judged_release(release)
    assert finding_lines(text, nearest) == expected
    assert check(text.encode(), nearest).accepted is accepted


@pytest.mark.parametrize(
    ("text", "accepted", "expected"),
    [
        ('{"logging": {"dir": "/tmp"}}', True, []),
        ('{"logging": {"dir": "/nope"}}', False, ["missing-path logging.dir"]),
        ('{"denylist": {"mounts": ["/tmp", "/nope"]}}', False, ["missing-path denylist.mounts"]),
        # Only what the library finds out about the last one decides.
        ('{"denylist": {"mounts": ["/nope", "/tmp"]}}', True, ["missing-path denylist.mounts"]),
        ('{"denylist": {"devices": ["/dev/null", "/dev/nvme0n1"]}}', True, ["not-a-block-device denylist.devices"]),
        ('{"fs": {"nfs": {"mount_table": {"/nope": {"rdma_dev_addr_list": ["192.0.2.1"]}}}}}', False,
         ["missing-path fs.nfs.mount_table"]),
        ('{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}', True,
         ["no-p2pdma properties.use_pci_p2pdma", "no-p2pdma block.nvme.use_pci_p2pdma"]),
        ('{"miscellaneous": {"enable_static_routing": true, "static_routing_filepath": "/nope"}}', True,
         ["missing-path miscellaneous.static_routing_filepath"]),
    ],
)  # fmt: skip
def test_what_this_machine_has_to_say(text: str, accepted: bool, expected: list[str]) -> None:
    report = check(text.encode(), (1, 20), MACHINE)
    assert [f"{one.id} {one.key}" for one in report.findings] == expected
    assert report.accepted is accepted
    assert finding_lines(text, (1, 20)) == []
    assert check(text.encode(), (1, 20)).accepted


def test_every_id_is_shown_above_and_documented() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    unseen = {kind for kind in kinds() if f" {kind} " not in text and f'"{kind} ' not in text}
    # One is for files that cannot be read (below), the other for what nobody has met.
    assert unseen <= {"unreadable-file", "refused"}
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (error|warning) \| (.+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == [
        (name, kind.severity, kind.meaning, kind.hint) for name, kind in kinds().items()
    ]


@given(st.integers(0, 10**9), st.sampled_from(EXAMINED_RELEASES))
def test_what_the_library_refuses_is_always_an_error(seed: int, release: tuple[int, int]) -> None:
    text = document(random.Random(seed), release)
    report = check(text, release)
    assert report.accepted == judge(text, release).accepted
    if not report.accepted:
        assert report.errors
    lines = text.count(b"\n") + 1
    assert all(1 <= one.line <= lines and one.column >= 1 and one.message and one.hint for one in report.findings)


def test_every_known_deviation_is_documented() -> None:
    text = DOCS.read_text()
    for deviation in deviations():
        assert f"| `{deviation.id}` |" in text
        assert f"| `{deviation.document}` | {' '.join(deviation.reason.split())} |" in text


def test_the_nearest_older_release_judges_one_that_was_not_to_be_had() -> None:
    assert judged_release("1.9.1.3") == ((1, 9), None)
    assert judged_release("1.8") == ((1, 4), "libcufile 1.8 was not examined; it is judged as 1.4")
    assert judged_release("1.12.0.1")[0] == (1, 11)
    assert judged_release("2.0") == ((1, 20), "libcufile 2.0 is newer than any examined release; it is judged as 1.20")
    with pytest.raises(ValueError, match=r"older than 1\.4"):
        judged_release("1.3.9")


def test_thousands_of_unknown_keys_take_no_minutes() -> None:
    text = b"{" + b",".join(b'"key%d": 1' % number for number in range(5_000)) + b"}"
    begin = time.monotonic()
    assert len(check(text, (1, 20)).findings) == 5_000
    assert time.monotonic() - begin < 10


def test_kernel_p2pdma(tmp_path: Path) -> None:
    config, symbols = tmp_path / f"config-{os.uname().release}", tmp_path / "kallsyms"
    assert machine.p2pdma(tmp_path, symbols) is None
    symbols.write_text("0 T pci_p2pdma_add_resource\n")
    assert machine.p2pdma(tmp_path, symbols) is True
    symbols.write_text("0 T something\n")
    assert machine.p2pdma(tmp_path, symbols) is False
    config.write_text("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n")
    assert machine.p2pdma(tmp_path, symbols) is True


def test_keys_that_a_newer_release_reads_otherwise_are_named_with_what_to_write() -> None:
    text = b"""{
  "profile": {"nvtx": true},
  "properties": {
    "max_direct_io_size_kb": 512,
    "posix_io_mode": true,
    "use_pci_p2pdma": true
  }
}"""
    assert [(one.line, one.id, one.key, one.hint) for one in check(text, (1, 20)).findings] == [
        (2, "dropped-key", "profile.nvtx", "Remove the key"),
        (4, "buffer-exceeds-request", "properties.max_direct_io_size_kb", kinds()["buffer-exceeds-request"].hint),
        (5, "renamed-key", "properties.posix_io_mode", "Write properties.vanilla_posix_io_mode"),
        (6, "p2pdma-half-set", "properties.use_pci_p2pdma", kinds()["p2pdma-half-set"].hint),
    ]
    written = b"""{
  "block": {"nvme": {"use_pci_p2pdma": true}},
  "properties": {
    "per_buffer_cache_size_kb": 512,
    "max_direct_io_size_kb": 512,
    "vanilla_posix_io_mode": true,
    "use_pci_p2pdma": true
  }
}"""
    assert check(written, (1, 20)).findings == ()


def test_an_old_name_beside_the_new_one_is_to_be_removed() -> None:
    text = b'{"properties": {"posix_io_mode": true, "vanilla_posix_io_mode": true}}'
    (finding,) = check(text, (1, 20)).findings
    assert finding.hint == "Remove the key: the file has properties.vanilla_posix_io_mode too"


@pytest.mark.parametrize("release", EXAMINED_RELEASES)
def test_every_key_that_a_release_does_not_read_is_named(release: tuple[int, int]) -> None:
    for name, key in known_keys().items():
        if key.read_by(release):
            continue
        (finding,) = check(json.dumps(nest({name: True})).encode(), release).findings
        assert (finding.key, finding.severity) == (name, "error")
        if finding.id == "renamed-key":
            assert known_keys()[finding.hint.removeprefix("Write ")].read_by(release)
        else:
            assert finding.id == ("newer-key" if release < release_of(key.since) else "dropped-key")


def call(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli.group, ["cufile", "check", *arguments], input=stdin)


def test_the_verb_prints_places_and_ends_with_its_exit_code(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text("{}")
    bad.write_text('{\n"properties": {"io_batchsize": 300}}')
    result = call(str(good), str(bad), "--libcufile", "1.20")
    assert isinstance(result.exception, CufileInvalid)
    assert result.exception.message == "1 of 2 files has 1 error"
    assert f"{good}: libcufile 1.20 accepts it\n" in result.stdout
    assert f"{bad}:2:32: error: properties.io_batchsize: must be 1 to 256 (found 300) [out-of-range]\n" in result.stdout
    assert f"{bad}: libcufile 1.20 refuses it" in result.stdout
    assert call(str(good), "--libcufile", "1.20").exception is None


def test_json_is_one_object_a_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    big = tmp_path / "big"
    with big.open("wb") as sparse:
        sparse.truncate(100_000_000)
    files = ["-", str(binary), str(big), str(tmp_path), str(tmp_path / "missing")]
    result = call(*files, "--libcufile", "1.9.1.3", "--json", stdin=b'{"loging": {"level": "INFO"}}')
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["file"] for row in rows] == files
    assert [row["accepted"] for row in rows] == [True, False, None, None, None]
    assert {row["libcufile"] for row in rows} == {"1.9"}
    assert rows[0]["findings"] == [
        {
            "id": "unknown-key",
            "severity": "error",
            "key": "loging.level",
            "line": 1,
            "column": 13,
            "message": "unknown key, which libcufile would ignore (did you mean logging.level?)",
            "hint": "Write logging.level",
        }
    ]
    assert [row["findings"][0]["id"] for row in rows[2:]] == ["unreadable-file"] * 3


def test_nothing_in_a_file_reaches_the_terminal_as_it_is() -> None:
    result = call("-", "--libcufile", "1.20", stdin=b'{"\\u001b[31m\xed\x80": 1}')
    assert "\x1b" not in result.stdout
    assert "\\x1b[31m" in result.stdout


@pytest.mark.parametrize(
    ("version", "words"), [("1.3", "older than 1.4"), ("abc", "not a version of libcufile: 'abc'")]
)
def test_a_version_that_is_none(version: str, words: str) -> None:
    result = call("-", "--libcufile", version)
    assert result.exit_code == 2
    assert words in result.output
    assert "Known releases: 1.4, 1.9" in result.output


def test_the_version_has_to_be_named() -> None:
    assert "Known releases: 1.4" in call("-").output


def test_every_key_has_a_finding_for_a_wrong_type() -> None:
    for name, key in known_keys().items():
        release, _ = judged_release(key.since)
        parts = name.split(".")
        text = "".join(f'{{"{part}":' for part in parts) + "[[]]" + "}" * len(parts)
        expected = "not-written" if key.refused else "wrong-type"
        assert [expected, name] in [line.split()[2:] for line in finding_lines(text, release)]
