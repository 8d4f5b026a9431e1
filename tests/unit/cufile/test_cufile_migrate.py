"""A file moved to another release: its text, what changed, and that the target finds nothing wrong with it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy import cli
from gdsdeploy.cufile.check import check
from gdsdeploy.cufile.document import DocumentInvalid
from gdsdeploy.cufile.migrate import migrate
from gdsdeploy.cufile.model import EXAMINED_RELEASES, known_keys
from gdsdeploy.cufile.verdict import judge
from gdsdeploy.errors import CufileInvalid
from tests.cufile.documents import document, nest

LAID_OUT = """\
{
  // what we log
  "logging": {"level": "INFO"},
  "profile": {"nvtx": true, "cufile_stats": 1},
  "execution": {
    "max_io_threads": 128, // many
    "parallel_io": true
  },
  "properties": {
    "max_direct_io_size_kb": 512, // small
    "posix_io_mode": true,
    "gds_fallback_io": true, /* new */
    "rdma_multipath_enabled": true // last
  }
}
"""


def test_up_keeps_comments_and_layout() -> None:
    moved = migrate(LAID_OUT.encode(), (1, 18), (1, 20))
    expected = (
        LAID_OUT.replace('"nvtx": true,', "")
        .replace('"posix_io_mode"', '"vanilla_posix_io_mode"')
        .replace('    "max_direct', '    "per_buffer_cache_size_kb": 512,\n    "max_direct')
    )
    assert moved.text == expected
    assert moved.problems == ()
    assert [(one.kind, one.key, one.line) for one in moved.changes] == [
        ("removed", "profile.nvtx", 4),
        ("renamed", "properties.posix_io_mode", 11),
        ("added", "properties.per_buffer_cache_size_kb", 0),
    ]


def test_down_takes_lines_and_commas_out_and_lowers_numbers() -> None:
    moved = migrate(LAID_OUT.encode(), (1, 18), (1, 11))
    assert moved.text == LAID_OUT.replace("128,", "32,").replace(
        LAID_OUT[LAID_OUT.index('    "max_direct') : LAID_OUT.index("  }\n}")],
        '    "per_buffer_cache_size_kb": 512,\n    "max_direct_io_size_kb": 512 // small\n',
    )
    assert [
        (one.kind, one.key, one.before, one.after) for one in moved.changes if one.kind in {"limited", "default"}
    ] == [
        ("limited", "execution.max_io_threads", "128", "32"),
        ("default", "execution.max_request_parallelism", "4", "0"),
        ("default", "properties.posix_pool_slab_count", "[128, 64, 64]", "[128, 64, 32]"),
    ]
    lowered = "line 6: limited: execution.max_io_threads (128 → 32): libcufile 1.11 accepts no greater value"
    assert lowered in [str(one) for one in moved.changes]


@pytest.mark.parametrize(
    ("source", "target", "text", "expected"),
    [
        ((1, 9), (1, 20), '{"properties": {"max_direct_io_size_kb": 512}}',
         '{"properties": {"per_buffer_cache_size_kb": 512, "max_direct_io_size_kb": 512}}'),
        ((1, 9), (1, 20), '{"properties": {"per_buffer_cache_size_kb": 2048}}',
         '{"properties": {"max_direct_io_size_kb": 2048, "per_buffer_cache_size_kb": 2048}}'),
        ((1, 9), (1, 20), '{"properties": {"max_direct_io_size_kb": 512, "per_buffer_cache_size_kb": 1024}}',
         '{"properties": {"max_direct_io_size_kb": 512, "per_buffer_cache_size_kb": 512}}'),
        ((1, 19), (1, 18), '{"properties": {"vanilla_posix_io_mode": false}}',
         '{"properties": {"posix_io_mode": false}}'),
        ((1, 15), (1, 16), '{"profile": {"nvtx": true}}', '{"profile": {}}'),
        ((1, 15), (1, 16), '{"profile": {"cufile_stats": 1, "nvtx": true}}', '{"profile": {"cufile_stats": 1 }}'),
        ((1, 15), (1, 16), '{"profile": {"cufile_stats": 1,\n "nvtx": true, "nvtx": false}\n}',
         '{"profile": {"cufile_stats": 1\n  }\n}'),
        ((1, 20), (1, 4), '{"sparse": {"p2p_compat_enable": true, "min_p2pdma_threshold_kb": 4}}', '{"sparse": { }}'),
        ((1, 20), (1, 20), "{}", "{}"),
        ((1, 15), (1, 16), '{"properties": {"use_pci_p2pdma": true}}',
         '{"block": {"nvme": {"use_pci_p2pdma": true}}, "properties": {"use_pci_p2pdma": true}}'),
        ((1, 13), (1, 20), '{"properties": {"use_pci_p2pdma": true}, "block": {}}',
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}'),
        ((1, 13), (1, 20), '{"properties": {"use_pci_p2pdma": true}, "block": null}',
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}'),
        ((1, 15), (1, 16), '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": null}}}',
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}'),
        ((1, 15), (1, 16), '{"properties": {"use_pci_p2pdma": true}, "block": {"raid": {}}}',
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}, "raid": {}}}'),
        ((1, 15), (1, 16), '{"properties": {"use_pci_p2pdma": false}}', '{"properties": {"use_pci_p2pdma": false}}'),
        ((1, 14), (1, 15), '{"properties": {"use_pci_p2pdma": true}}', '{"properties": {"use_pci_p2pdma": true}}'),
        ((1, 16), (1, 15),
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}',
         '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {}}}'),
        # Older releases have P2PDMA, but not for that storage.
        ((1, 20), (1, 16), '{"properties": {"use_pci_p2pdma": true}, "block": {"raid1": {"use_pci_p2pdma": true}}}',
         '{"properties": {}, "block": {"raid1": {}}}'),
        ((1, 16), (1, 15), '{"properties": {"use_pci_p2pdma": true}, "fs": {"virtiofs": {"use_pci_p2pdma": true}}}',
         '{"properties": {}, "fs": {"virtiofs": {}}}'),
    ],
)  # fmt: skip
def test_each_kind_of_edit(source: tuple[int, int], target: tuple[int, int], text: str, expected: str) -> None:
    moved = migrate(text.encode(), source, target)
    assert " ".join(moved.text.split()) == " ".join(expected.split())
    assert moved.problems == ()


def test_the_second_key_of_p2pdma_gets_its_line_and_is_reported() -> None:
    text = '{\n  // ours\n  "properties": {\n    "use_pci_p2pdma": true\n  }\n}\n'
    moved = migrate(text.encode(), (1, 15), (1, 20))
    second = '  "block": {"nvme": {"use_pci_p2pdma": true}},\n'
    assert moved.text == text.replace('  "properties"', second + '  "properties"')
    (added,) = [one for one in moved.changes if one.kind == "added"]
    assert str(added) == (
        "added: block.nvme.use_pci_p2pdma (none → true): "
        "from 1.16 on NVMe disks need this key besides properties.use_pci_p2pdma"
    )


def test_a_half_set_pair_is_an_error_of_the_file() -> None:
    """The source already needs both keys, so it isn't known which storage was meant."""
    moved = migrate(b'{"properties": {"use_pci_p2pdma": true}}', (1, 16), (1, 20))
    assert [(one.id, one.key) for one in moved.problems] == [("p2pdma-half-set", "properties.use_pci_p2pdma")]


def test_a_default_that_changed_is_said_and_not_written() -> None:
    moved = migrate(b"{}", (1, 15), (1, 19))
    assert moved.text == "{}"
    assert {(one.key, one.before, one.after) for one in moved.changes} == {
        ("execution.max_io_threads", "0", "8"),
        ("execution.parallel_io", "false", "true"),
        ("execution.max_request_parallelism", "0", "4"),
        ("properties.max_direct_io_size_kb", "1024", "16384"),
    }


@given(st.integers(0, 10**9), st.sampled_from(EXAMINED_RELEASES), st.sampled_from(EXAMINED_RELEASES))
def test_what_was_right_is_right_for_the_target(seed: int, source: tuple[int, int], target: tuple[int, int]) -> None:
    text = document(random.Random(seed), source)
    if not judge(text, source).accepted or check(text, source).errors:
        return
    moved = migrate(text, source, target)
    # Names of interfaces can't be moved to a release that reads addresses only.
    names = source >= (1, 16) > target
    assert [one for one in moved.problems if not (names and one.key.endswith(".rdma_dev_addr_list"))] == []
    assert judge(moved.text.encode("utf-8", "surrogateescape"), target).accepted
    again = migrate(moved.text.encode("utf-8", "surrogateescape"), target, target)
    assert [one for one in again.changes if one.kind != "default"] == []


@given(
    st.dictionaries(
        st.sampled_from([name for name in known_keys() if "p2pdma" in name]), st.sampled_from([True, False, None])
    ),
    st.sampled_from(EXAMINED_RELEASES),
    st.sampled_from(EXAMINED_RELEASES),
)
def test_p2pdma_keys_that_were_right_are_right_for_the_target(
    values: dict[str, bool | None], source: tuple[int, int], target: tuple[int, int]
) -> None:
    text = json.dumps(nest(values)).encode()
    if not check(text, source).errors:
        assert migrate(text, source, target).problems == ()


def test_text_that_is_none() -> None:
    for text in (b"", b"[]", b"{,}"):
        with pytest.raises(DocumentInvalid):
            migrate(text, (1, 9), (1, 20))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.group, ["cufile", "migrate", *arguments])


def test_the_verb_replaces_the_file_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    file = tmp_path / "cufile.json"
    file.write_text(LAID_OUT.replace('"nvtx": true, ', ""))
    file.chmod(0o640)
    result = call(str(file), "--from", "1.18", "--to", "1.20", "--output", str(file))
    assert result.exception is None
    assert "renamed: properties.posix_io_mode" in result.stderr
    assert result.stdout == ""
    assert '"vanilla_posix_io_mode": true' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["cufile.json"]
    before = file.read_bytes()
    assert "Nothing changes" in call(str(file), "--from", "1.20", "--to", "1.20", "--output", str(file)).stderr
    assert file.read_bytes() == before


def test_the_verb_writes_to_stdout_or_json(tmp_path: Path) -> None:
    file = tmp_path / "cufile.json"
    file.write_text('{"profile": {"nvtx": true}}\n')
    assert call(str(file), "--from", "1.15", "--to", "1.16").stdout == '{"profile": {}}\n'
    row = json.loads(call(str(file), "--from", "1.15", "--to", "1.16", "--json").stdout)
    assert (row["from"], row["to"], row["text"]) == ("1.15", "1.16", '{"profile": {}}\n')
    assert row["changes"][0] == {
        "kind": "removed",
        "key": "profile.nvtx",
        "line": 1,
        "before": "true",
        "after": "",
        "message": "libcufile reads it up to 1.15, and 1.16 ignores it",
    }


def test_errors_of_the_file_itself_stop_it_and_nothing_is_written(tmp_path: Path) -> None:
    file, output = tmp_path / "cufile.json", tmp_path / "new.json"
    for text, words in (
        ('{"loging": {"level": "INFO"}}', "loging.level: unknown key"),
        ('{\n"a": 1,}', f"{file}:2:8: expected a name"),
        ('{"properties": {"io_batchsize": 300}}', "properties.io_batchsize: must be 1 to 256"),
    ):
        file.write_text(text)
        result = call(str(file), "--from", "1.9", "--to", "1.20", "--output", str(output))
        assert isinstance(result.exception, CufileInvalid)
        assert words in result.exception.message
        assert result.exception.hint == f"Correct it first: gdsdeploy cufile check {file} --libcufile 1.9"
        assert not output.exists()
    result = call(str(tmp_path / "missing"), "--from", "1.9", "--to", "1.20")
    assert isinstance(result.exception, CufileInvalid)
    assert "No such file" in result.exception.message
