"""Every finding with its id and place, and the verdict beside it; then the verb as a user calls it."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from gdsdeploy import cli
from gdsdeploy.cufile.check import MachineFacts, What, check, judged_release, kinds, p2pdma
from gdsdeploy.cufile.model import EXAMINED_RELEASES, known_keys, release_of
from gdsdeploy.errors import CufileInvalid
from tests.cufile.differential import deviations
from tests.cufile.documents import document, nest
from tests.unit.host import cases

DOCS = Path(__file__).parents[3] / "docs" / "cufile.md"
PATHS: dict[str, What] = {"/tmp": "folder", "/dev/nvme0n1": "block", "/dev/null": "other"}
MACHINE = MachineFacts(lambda path: PATHS.get(path, ""), p2pdma=False)


def finding_lines(text: str | bytes, release: tuple[int, int], facts: MachineFacts | None = None) -> list[str]:
    report = check(text if isinstance(text, bytes) else text.encode(), release, facts)
    return [f"{one.line}:{one.column} {one.severity} {one.id} {one.key}" for one in report.findings]


CASES = cases.load("cufile/check")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['release']} {case['text']!s:.40}")
def test_each_finding(case: dict[str, Any]) -> None:
    assert set(case) == {"release", "text", "accepted", "finds"}
    report = check(case["text"].encode(), judged_release(case["release"])[0])
    lines = [f"{one.line}:{one.column} {one.severity} {one.id} {one.key}: {one.message}" for one in report.findings]
    assert (lines, report.accepted) == (case["finds"], case["accepted"])


def test_values_that_lie_too_deep() -> None:
    assert finding_lines("[" * 2000, (1, 20)) == ["1:1001 error too-deep "]
    assert not check(b"[" * 2000, (1, 20)).accepted


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
    text = Path(__file__).read_text(encoding="utf-8") + str(CASES)
    unseen = {kind for kind in kinds() if f" {kind} " not in text and f'"{kind} ' not in text}
    # One is for files that cannot be read (below), the other for what nobody has met.
    assert unseen <= {"unreadable-file", "refused"}
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (error|warning) \| (.+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == [
        (name, kind.severity, kind.meaning, kind.hint) for name, kind in kinds().items()
    ]


def test_every_key_that_the_library_stops_at_is_known() -> None:
    stops = check(b'{"properties": {"io_batchsize": 300, "per_buffer_cache_size_kb": 0}, "profile": 3}', (1, 15)).stops
    assert [(stop.key, stop.aborts) for stop in stops or ()] == [
        ("profile.nvtx", True),
        ("profile.cufile_stats", True),
        ("properties.io_batchsize", False),
        ("properties.per_buffer_cache_size_kb", True),
    ]


@given(st.integers(0, 10**9), st.sampled_from(EXAMINED_RELEASES))
def test_what_the_library_refuses_is_always_an_error(seed: int, release: tuple[int, int]) -> None:
    text = document(random.Random(seed), release)
    report = check(text, release)
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
    begin = time.process_time()
    assert len(check(text, (1, 20)).findings) == 5_000
    assert time.process_time() - begin < 10


def test_kernel_p2pdma(tmp_path: Path) -> None:
    config, symbols = tmp_path / f"config-{os.uname().release}", tmp_path / "kallsyms"
    assert p2pdma(tmp_path, symbols) is None
    symbols.write_text("0 T pci_p2pdma_add_resource\n")
    assert p2pdma(tmp_path, symbols) is True
    symbols.write_text("0 T something\n")
    assert p2pdma(tmp_path, symbols) is False
    config.write_text("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n")
    assert p2pdma(tmp_path, symbols) is True


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
    assert f"{bad}: libcufile 1.20 refuses it: every cuFile call of every process fails\n" in result.stdout
    bad.write_text('{"properties": {"io_batchsize": 300}, "profile": 3}')
    words = "refuses it: every cuFile call of every process fails, or ends every process that reads it\n"
    assert f"{bad}: libcufile 1.20 {words}" in call(str(bad), "--libcufile", "1.20").stdout
    bad.write_text('{"profile": 3}')
    assert f"{bad}: libcufile 1.20 ends every process that reads it\n" in call(str(bad), "--libcufile", "1.20").stdout
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
    assert "\\u001b[31m" in result.stdout


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
