"""Pasted logs: parts, setting, causes in order, and the path that a text itself shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gdsdeploy.host.errors import UsageError
from gdsdeploy.host.logs import answer as words
from gdsdeploy.host.logs import document, files, parts, reports, text
from gdsdeploy.host.logs.answer import Answer
from gdsdeploy.host.logs.files import answer_to
from gdsdeploy.host.logs.parts import split

EVIDENCE = Path(__file__).parents[2] / "evidence"
DIRECT = (EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.20.0.ngpu1.nvfs-2.28.open-driver.txt").read_text()
NO_HOOKS = (EVIDENCE / "gdscheck-h200" / "gdscheck-p.libcufile-1.13.1.3.h200.txt").read_text()
TRACE = (EVIDENCE / "h200" / "libcufile-1.15.1-trace.log").read_text()
UDEV = " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio-udev:67 udev property not found: ID_FS_USAGE vda\n"
XID = "[ 4242.100001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
GPL = "[   12.345678] nvidia_fs: Unknown symbol nvidia_p2p_dma_map_pages (err -2)\n"
MAKE = (
    "DKMS make.log for nvidia-fs-2.18.3 for kernel 6.5.0-44-generic (x86_64)\n"
    "/var/lib/dkms/nvidia-fs/2.18.3/build/nvfs-mmap.c:1:1: error: assignment of read-only member 'vm_flags'\n"
)


def ask(*texts: str) -> Answer:
    return answer_to([(f"file{place}", one.encode()) for place, one in enumerate(texts, 1)])


def ids(answer: Answer) -> list[str]:
    return [cause.id for cause in answer.causes]


def kinds(one: str) -> list[str]:
    return [part.kind for part in split(one.encode(), "paste")]


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mixture_is_split_and_keeps_its_line_numbers() -> None:
    paste = f"Hello, GDS is slow:\n```\n{DIRECT}```\nand dmesg says\n```\n{XID}```\n{MAKE}\n{UDEV}"
    pieces = split(paste.encode(), "paste")
    assert [part.kind for part in pieces] == ["other", "gdscheck", "other", "kernel", "build", "cufile"]
    lines = paste.split("\n")
    for line in (line for part in pieces for line in part.lines):
        assert line.text in lines[line.number - 1]


@pytest.mark.parametrize(
    "prefix",
    [
        "[ 4242.100001] ",
        "[Thu Nov 26 12:00:00 2026] ",
        "Nov 26 12:00:00 gpu7 kernel: ",
        "2026-11-26T12:00:00.123456+01:00 gpu7 kernel: [ 4242.100001] ",
        "<4>[ 4242.100001] ",
        "[Nov26 12:00] ",
        "2026-11-26T12:00:00,123456+00:00 ",
        "2026-11-26 12:00:00 gpu7 kernel: ",
        "/var/log/kern.log:17:Nov 26 12:00:00 gpu7 kernel: ",
        "[  +0.000123] ",
        "",
        "> ",
    ],
)
def test_kernel_messages_have_many_prefixes(prefix: str) -> None:
    answer = ask(prefix + XID.partition("] ")[2])
    assert ids(answer) == ["kernel.xid-79"]
    assert answer.causes[0].quotes[0].line.text.startswith("NVRM: Xid")


def test_marks_of_markdown_colours_and_encodings_change_no_answer() -> None:
    whole = ids(ask(TRACE + XID))
    assert len(whole) > 2
    quoted = "".join(f"> {line}\n" for line in (TRACE + XID).split("\n"))
    for data in (quoted.encode(), (TRACE + XID).replace("\n", "\r\n").encode(), (TRACE + XID).encode("utf-16")):
        assert ids(answer_to([("paste", data)])) == whole
    coloured = (TRACE + XID).replace("ERROR", "\x1b[31mERROR\x1b[0m")
    assert ids(ask(coloured)) == whole


def test_lines_of_a_long_file_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = split(TRACE.encode(), "paste")
    for size in (1, 7, 500):
        monkeypatch.setattr(parts, "_AT_ONCE", size)
        assert split(TRACE.encode(), "paste") == whole
    assert split(b"", "paste") == []


@pytest.mark.parametrize("prefix", ["", "cufile.log:12:", "2026-11-26T12:00:00.1Z stderr F", "worker-0  | "])
def test_a_log_with_another_beginning_of_lines_is_still_one(prefix: str) -> None:
    answer = ask(prefix + UDEV)
    assert ids(answer) == ids(ask(UDEV.partition("] ")[2])) == ["udev.no-database"]
    assert {line.pid for part in answer.parts for line in part.lines} == {"506"}


# ── setting and rules ────────────────────────────────────────────────────────────────────────────────────────────


def test_versions_of_all_files_are_judged_together() -> None:
    answer = ask(MAKE)
    assert answer.setting.value("nvidia_fs") == "2.18.3"
    assert answer.setting.value("kernel") == "6.5.0-44-generic"
    rule = next(cause for cause in answer.causes if cause.id == "compat.nvidia-fs-vm-flags")
    assert "2.19.6" in rule.fix
    assert {quote.line.number for quote in rule.quotes} == {1}


def test_versions_that_fit_show_no_rule() -> None:
    assert not [ident for ident in ids(ask(MAKE.replace("2.18.3", "2.29.4"))) if ident.startswith("compat.")]


def test_contradictions_are_kept_and_not_judged() -> None:
    answer = ask(MAKE, "DKMS make.log for nvidia-fs-2.29.4 for kernel 6.5.0-44-generic (x86_64)\n")
    assert answer.setting.values("nvidia_fs") == ("2.18.3", "2.29.4")
    assert answer.setting.value("nvidia_fs") is None
    assert not [ident for ident in ids(answer) if ident.startswith("compat.")]


def test_a_shorter_form_of_a_version_is_the_same_version() -> None:
    answer = ask(MAKE, "kernel: 6.5.0\n")
    assert answer.setting.value("kernel") == "6.5.0-44-generic"
    assert "compat.nvidia-fs-vm-flags" in ids(answer)
    assert ask(MAKE, "kernel: 6.5.0-4\n").setting.value("kernel") is None


def test_the_series_in_a_report_is_no_version() -> None:
    answer = ask(DIRECT)
    assert answer.setting.values("nvidia_fs_series") == ("2.28",)
    assert not answer.causes


# ── the path ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_direct_report_alone_is_direct() -> None:
    answer = ask(DIRECT)
    assert (answer.path, answer.causes, answer.decide) == (words.DIRECT, (), "")


def test_a_rule_that_only_warns_is_possible_and_leaves_a_direct_report_direct() -> None:
    answer = ask(DIRECT, "nvidia-fs 2.28.4\n")
    assert [(cause.id, cause.certainty) for cause in answer.causes] == [("compat.gds-1.20-nvidia-fs", words.POSSIBLE)]
    assert answer.path == words.DIRECT


@pytest.mark.parametrize(
    "other",
    [
        UDEV,
        XID,
        GPL,
        TRACE,
        NO_HOOKS,
        MAKE,
        " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio:1 a message that no release of today has\n",
        "modprobe: ERROR: could not insert 'nvidia_fs': Unknown symbol in module, or unknown parameter (see dmesg)\n",
        "cuFileHandleRegister failed: err=5030\n",
    ],
)
def test_a_direct_report_with_any_contradiction_is_not_direct(other: str) -> None:
    for files_of in ((DIRECT, other), (other, DIRECT), (other + DIRECT,), (DIRECT + other,)):
        assert ask(*files_of).path != words.DIRECT


def test_reports_of_one_file_share_its_lines() -> None:
    shown = reports.reports(split((TRACE * 3).encode(), "paste"))
    assert len(shown) == 3
    assert len({id(one.lines) for one in shown}) == 1


def test_a_cut_report_is_not_direct() -> None:
    lines = DIRECT.splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if "verification succeeded" in line)
    for place in range(end):
        assert ask("".join(lines[:place])).path != words.DIRECT


def test_a_library_that_gave_up_is_broken() -> None:
    answer = ask(" 20-11-2026 14:08:13:254 [pid=635 tid=635] ERROR  cufio-drv:1252 nvidia-fs.ko driver not loaded\n")
    assert answer.path == words.BROKEN
    assert ids(answer) == ["nvidia-fs.not-loaded"]


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_root_causes_come_first_and_possible_ones_last() -> None:
    answer = ask(TRACE, XID)
    sure = [cause for cause in answer.causes if cause.certainty != words.POSSIBLE]
    assert answer.causes[: len(sure)] == tuple(sure)
    assert [cause.rank for cause in sure] == sorted(cause.rank for cause in sure)
    assert all(cause.quotes and cause.fix and cause.reference for cause in answer.causes)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: something about a file, error code 5017",
        "driver call returned CU_FILE_INVALID_MAPPING_RANGE",
        "cuFileRead failed: access beyond mapped size",
        "cuFileRead failed, ret=-5017",
    ],
)
def test_an_error_code_alone_leads_to_its_entry(line: str) -> None:
    answer = ask(line + "\n")
    assert ids(answer) == ["cufile.5017"]
    assert answer.causes[0].certainty == words.LIKELY


def test_a_line_that_shows_a_cause_counts_after_any_number_that_only_may() -> None:
    possible = (
        " 20-11-2026 14:07:57:140 [pid=1 tid=1] ERROR  cufio:340 cuFileHandleRegister error, failed to allocate\n"
    )
    before = ask(UDEV).causes
    after = ask(possible * 50 + UDEV).causes
    assert [(cause.id, cause.certainty) for cause in before] == [(after[0].id, after[0].certainty)]


def test_unknown_errors_are_listed_once_with_their_number() -> None:
    line = " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio:1 zzz qqq number {}\n"
    answer = ask("".join(line.format(place) for place in range(100)))
    assert [(quote.count, quote.line.number) for quote in answer.unknown] == [(100, 1)]
    assert ids(answer) == []
    assert answer.decide.startswith("dmesg")


def test_harmless_lines_are_named_and_are_no_cause() -> None:
    answer = ask(" 20-11-2026 14:07:56:621 [pid=506 tid=506] ERROR  0:140 unable to load,  liburcu-bp.so.6\n")
    assert ids(answer) == []
    assert len(answer.harmless) == 1
    assert not answer.unknown


def test_prose_is_not_recognised() -> None:
    answer = ask("Dear all,\n\nit is raining.\n")
    assert not answer.recognised
    assert "Nothing in this text is known here." in text.render(answer)


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────

QUOTE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["file", "line", "text", "means", "count"],
    "properties": {
        "file": {"type": "string"},
        "line": {"type": "integer", "minimum": 1},
        "text": {"type": "string"},
        "means": {"type": ["string", "null"]},
        "count": {"type": "integer", "minimum": 1},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": [
        "version", "path", "causes", "decide", "harmless", "notes", "unknown", "setting", "parts", "remarks",
    ],
    "properties": {
        "version": {"const": 1},
        "path": {"enum": list(words.PATHS)},
        "causes": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "title", "certainty", "lines", "fix", "reference", "decide", "path"],
                "properties": {
                    "id": {"type": "string", "minLength": 1},
                    "title": {"type": "string", "minLength": 1},
                    "certainty": {"enum": list(words.CERTAINTIES)},
                    "lines": {"type": "array", "minItems": 1, "items": QUOTE},
                    "fix": {"type": "string", "minLength": 1},
                    "reference": {"type": "string", "minLength": 1},
                    "decide": {"type": ["string", "null"]},
                    "path": {"enum": ["compat", "broken", None]},
                },
            },
        },
        "decide": {"type": ["string", "null"]},
        "harmless": {"type": "array", "items": QUOTE},
        "notes": {"type": "array", "items": QUOTE},
        "unknown": {"type": "array", "items": QUOTE},
        "setting": {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "required": ["value", "line", "text"], "additionalProperties": False,
                          "properties": {name: {"type": "string"} for name in ("value", "line", "text")}},
            },
        },
        "parts": {
            "type": "array",
            "items": {"type": "object", "required": ["kind", "file", "first", "lines"], "additionalProperties": False,
                      "properties": {"kind": {"type": "string"}, "file": {"type": "string"},
                                     "first": {"type": "integer"}, "lines": {"type": "integer"}}},
        },
        "remarks": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("texts", [(TRACE, XID, MAKE), (DIRECT,), ("nothing\n",)], ids=["faults", "direct", "nothing"])
def test_the_document_follows_its_schema(texts: tuple[str, ...]) -> None:
    value = json.loads(json.dumps(document.document(ask(*texts))))
    jsonschema.validate(value, SCHEMA)


def test_the_text_begins_with_the_first_cause_and_its_line() -> None:
    answer = ask(TRACE)
    rendered = text.render(answer)
    first = answer.causes[0]
    assert rendered.startswith("1. ")
    assert rendered.index(first.quotes[0].line.text) < rendered.index("   do    ") < rendered.index("   read  ")
    assert first.quotes[0].line.place in rendered


def test_what_a_text_says_cannot_drive_a_terminal() -> None:
    hostile = UDEV.replace("vda", "vda\x07\u202e\x9b31m")
    assert not set(text.render(ask(hostile))) & set("\x07\u202e\x9b\x1b")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "words_of"),
    [
        (b"", "is empty"),
        (b"\n \n\0\0", "is empty"),
        (b"\x1f\x8b\x08" + bytes(range(256)) * 20, "is no text"),
        (b"\x7fELF" + b"\0" * 5000 + b"abc", "is no text"),
    ],
)
def test_what_is_no_text_is_one_error(content: bytes, words_of: str, tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=words_of) as raised:
        files.read([str(file)])
    assert "\n" not in str(raised.value)


def test_folders_missing_files_and_large_files_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        files.read([str(tmp_path)])
    with pytest.raises(UsageError, match="No such file"):
        files.read([str(tmp_path / "none")])
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(files.LIMIT + 1)
    with pytest.raises(UsageError, match="more than 32 MiB"):
        files.read([str(large)])


def test_zeros_of_a_crashed_host_do_not_hide_a_log(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_bytes(XID.encode() * 20 + b"\0" * 512 + GPL.encode())
    assert "kernel.xid-79" in ids(answer_to(files.read([str(file)])))
