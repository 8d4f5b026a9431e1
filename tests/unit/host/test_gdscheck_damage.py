"""What damage to a recording must never do: stop the reader, or offer a path that the recording does not."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.host.gdscheck import document, reader
from gdsdeploy.host.gdscheck.reader import COMPAT, DIRECT, LIMIT, UNKNOWN

EVIDENCE = Path(__file__).parents[2] / "evidence"
FILES = sorted(
    [
        *(EVIDENCE / "gdscheck").glob("*.txt"),
        *EVIDENCE.glob("gdscheck-*/gdscheck-p.*"),
        *(EVIDENCE / "cufile").glob("*.txt"),
    ]
)
#: Short enough to be read some hundred times; the long ones are mostly lines that nobody reads.
DATA = {path: path.read_bytes() for path in FILES}
LOGS = [path for path in FILES if path.suffix == ".log"]
PRINTED = [path for path in FILES if path.suffix == ".txt"]
GOOD = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt"
H200 = (EVIDENCE / "h200" / "libcufile-1.15.1-trace.log").read_bytes()

ANY = st.sampled_from(FILES)
PLACE = st.floats(0, 1, exclude_max=True)


def typed(data: bytes) -> dict[str, Any]:
    """As the command line makes it, as text and as JSON."""
    recording = reader.read_recording(data)
    assert document.text(recording, "damaged")
    report = document.document(recording, "damaged")
    json.dumps(report)
    return report


def claims(report: dict[str, Any]) -> set[str]:
    rows = {f"row {label}" for label, row in report["storage"].items() if row["supported"]}
    return rows | {f"GPU {gpu['index']}" for gpu in report["gpus"] if gpu["supports_gds"]}


CLAIMS = {path: claims(typed(data)) for path, data in DATA.items()}


def at(where: float, data: bytes) -> int:
    return int(where * (len(data) + 1))


def test_the_recordings_claim_something() -> None:
    assert sum(bool(claim) for claim in CLAIMS.values()) > 30


@settings(max_examples=400, deadline=None)
@given(ANY, PLACE)
def test_a_cut_recording_claims_nothing_new_and_before_its_end_nothing(path: Path, where: float) -> None:
    data = DATA[path]
    cut = data[: at(where, data)]
    report = typed(cut)
    assert claims(report) <= CLAIMS[path]
    whole = typed(data)
    for table in ("config", "environment"):
        assert all(whole[table][key] == value for key, value in report[table].items())
    assert all(value in (None, whole["platform"][key]) for key, value in report["platform"].items())
    if b"Platform verification succeeded" not in cut and cut.rstrip() != data.rstrip():
        assert claims(report) == set() or ".no-gpu." in path.name
        assert report["verdict"] not in (DIRECT, COMPAT) or b"block.nvmeof.use_pci_p2pdma : false\n" in cut


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Path, bytes]:
    """A recording with a hole or without its beginning, with other bytes, or with lines twice, away or elsewhere."""
    path = draw(ANY)
    data, kind = DATA[path], draw(st.sampled_from(("hole", "beginning", "bytes", "lines")))
    if kind in ("hole", "beginning"):
        start, end = sorted((at(draw(PLACE), data), at(draw(PLACE), data)))
        return path, data[: start if kind == "hole" else 0] + data[end:]
    lines = data.split(b"\n")
    for _ in range(draw(st.integers(1, 5))):
        place, other = int(draw(PLACE) * len(data)), int(draw(PLACE) * len(lines))
        change, new = draw(st.sampled_from("rid")), draw(st.binary(min_size=1, max_size=3))
        data = data[:place] + (b"" if change == "d" else new) + data[place + (0 if change == "i" else len(new)) :]
        line = int(draw(PLACE) * len(lines))
        if change == "i":
            lines.insert(other, lines[line])
        elif change == "r":
            lines[line], lines[other] = lines[other], lines[line]
        elif len(lines) > 1:
            del lines[line]
    return path, data if kind == "bytes" else b"\n".join(lines)


@settings(max_examples=1200, deadline=None)
@given(damaged())
def test_a_damaged_recording_claims_nothing_new(damage: tuple[Path, bytes]) -> None:
    path, data = damage
    assert claims(typed(data)) <= CLAIMS[path]


@pytest.mark.parametrize("status", [0, 1, 134, 255, -11])
def test_the_verdict_does_not_follow_the_exit_status(status: int) -> None:
    for path in PRINTED:
        assert reader.read_recording(DATA[path], status).report.verdict == typed(DATA[path])["verdict"]


def test_known_remarks_between_rows_are_harmless() -> None:
    lines = DATA[GOOD].splitlines(keepends=True)
    remark = b" warn: error opening log file: Permission denied, logging will be disabled\n"
    for place in range(len(lines)):
        assert typed(b"".join([*lines[:place], remark, *lines[place:]]))["verdict"] == DIRECT
    assert typed(b"".join([*lines[:-1], b"\n harmless words at the end"]))["verdict"] == DIRECT


WHOLE = {path: data for path, data in DATA.items() if ".direct." in path.name}
ROW = re.compile(rb"^ (\w[\w ]*?) +: (.*)$", re.MULTILINE)


def rows(data: bytes) -> list[re.Match[bytes]]:
    """The storage rows of a recording."""
    end = data.index(b"CUFILE CONFIGURATION")
    return [
        match for match in ROW.finditer(data, data.index(b"DRIVER CONFIGURATION"), end) if b"CUFILE" not in match[1]
    ]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name[11:])
def test_no_row_takes_the_path_of_another_across_a_hole(path: Path) -> None:
    """Each row in turn is the only one with a path, and is lost together with those between it and an earlier label."""
    words = {b"Supported": b"Unsupported", b"nvfs, compat": b"compat"}
    for place in range(1, len(rows(WHOLE[path])) - 1):
        data = WHOLE[path]
        for good, bad in words.items():
            data = data.replace(b": " + good + b"\n", b": " + bad + b"\n")
        row = rows(data)[place]
        good = b"nvfs, compat" if row[2] == b"compat" else b"Supported"
        data = data[: row.start(2)] + good + data[row.end(2) :]
        value = rows(data)[place].start(2)
        for other in rows(data)[:place]:
            assert not claims(typed(data[: other.start(2)] + data[value:])) - {"GPU 0"}


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name[11:])
def test_without_the_name_of_the_release_nothing_is_claimed(path: Path) -> None:
    """Which rows must be there is known of a release only."""
    report = typed(re.sub(rb" GDS release version.*\n", b"", WHOLE[path]))
    assert (claims(report), report["verdict"]) == (set(), UNKNOWN)


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name[11:])
def test_a_second_row_of_the_same_label_claims_nothing(path: Path) -> None:
    data = WHOLE[path].replace(b": Supported\n", b": Unsupported\n").replace(b": nvfs, compat\n", b": compat\n")
    claim = next(row[0] for row in rows(WHOLE[path]) if row[2] in (b"Supported", b"nvfs, compat"))
    for row in rows(data):
        assert claims(typed(data[: row.start()] + claim + b"\n" + data[row.start() :])) == set()


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name[11:])
def test_a_row_that_no_release_prints_is_told_but_not_believed(path: Path) -> None:
    row = rows(WHOLE[path])[-1]
    report = typed(WHOLE[path][: row.start()] + b" FooFS              : nvfs, compat\n" + WHOLE[path][row.start() :])
    if report["complete"]:
        assert (report["storage"]["FooFS"]["supported"], report["storage"]["FooFS"]["state"]) == (None, "unknown")
        assert "rows that no release up to 1.20 prints: FooFS" in report["warnings"]
    assert claims(report) <= CLAIMS[path]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name[11:])
def test_a_cut_run_before_a_whole_one_could_be_lines_of_one_among_the_others(path: Path) -> None:
    half = WHOLE[path][: WHOLE[path].index(b"GPU INFO")]
    report = typed(half + b"rc=1\n" + WHOLE[path])
    assert (report["runs"], report["verdict"], claims(report)) == (1, UNKNOWN, set())


def mixed(first: bytes, second: bytes, choose: random.Random) -> bytes:
    left, right = first.split(b"\n"), second.split(b"\n")
    lines = []
    while left or right:
        lines.append((left if left and (not right or choose.random() < 0.5) else right).pop(0))
    return b"\n".join(lines)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PRINTED), st.sampled_from(PRINTED), st.integers(0, 2**32))
def test_two_runs_mixed_line_by_line_claim_nothing(first: Path, second: Path, seed: int) -> None:
    report = typed(mixed(DATA[first], DATA[second], random.Random(seed)))
    assert claims(report) <= CLAIMS[first] | CLAIMS[second]
    if b"ENVIRONMENT" in DATA[first] and b"ENVIRONMENT" in DATA[second]:
        assert claims(report) == set()
        assert report["verdict"] != DIRECT


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(LOGS), st.sampled_from(LOGS), st.integers(0, 2**32))
def test_logs_of_two_processes_mixed_are_two_runs(first: Path, second: Path, seed: int) -> None:
    left, right = DATA[first], DATA[second].replace(b"[pid=", b"[pid=9")
    report = typed(mixed(left.rstrip(b"\n"), right.rstrip(b"\n"), random.Random(seed)) + b"\n")
    assert report["runs"] == 2
    assert claims(report) <= CLAIMS[first] | CLAIMS[second]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PRINTED), st.sampled_from(PRINTED))
def test_runs_after_each_other_are_told_apart(first: Path, second: Path) -> None:
    report = typed(DATA[first] + DATA[second])
    whole = [typed(DATA[path]) for path in (first, second)]
    assert report["runs"] == 2
    for key in ("verdict", "release", "storage", "config", "exit_status", "gpus"):
        assert report[key] == whole[1][key]
    assert report["earlier"] == [{key: whole[0][key] for key in ("verdict", "release", "exit_status")}]
    assert report["warnings"][0] == "the file holds 2 runs; this is the last of them"


def without_status(path: Path) -> bytes:
    return b"".join(line for line in DATA[path].splitlines(keepends=True) if not line.startswith(b"rc="))


@pytest.mark.parametrize("second", [p for p in PRINTED if b"ENVIRONMENT" in DATA[p]], ids=lambda path: path.name[11:])
def test_runs_without_their_status_are_told_apart_too(second: Path) -> None:
    report, whole = typed(without_status(GOOD) + without_status(second)), typed(without_status(second))
    assert (report["runs"], report["verdict"], report["release"]) == (2, whole["verdict"], whole["release"])
    assert report["storage"] == whole["storage"]
    refused = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.15.1.json-badtype.txt"
    report = typed(without_status(refused) + without_status(second))
    assert (report["runs"], report["storage"]) == (2, whole["storage"])


def test_a_failing_run_after_a_good_one_counts() -> None:
    good = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.20.0.ngpu1.nvfs-2.28.open-driver.txt"
    for name in ("1.15.1.json-badtype", "1.20.0.nvfs-version-3.1", "1.9.1.no-nvfs.compat-false"):
        bad = EVIDENCE / "gdscheck" / f"gdscheck-p.libcufile-{name}.txt"
        report = typed(without_status(good) + without_status(bad))
        assert (report["verdict"], claims(report)) == ("refused", set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[11:])
def test_terminals_and_other_systems_change_nothing(path: Path) -> None:
    data, report = DATA[path], typed(DATA[path])
    for changed in (
        data.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + data,
        b"".join(b"\x1b[0;32m" + line + b"\x1b[0m\n" for line in data.splitlines()),
        b"\n\n" + data + b"\n\n",
        b"".join(line.lstrip() + b"\n" for line in data.splitlines()),
    ):
        assert typed(changed) == report


@pytest.mark.parametrize("path", [p for p in PRINTED if b"ENVIRONMENT" in DATA[p]], ids=lambda path: path.name[11:])
def test_colons_may_stand_close_or_far(path: Path) -> None:
    data, report = DATA[path], typed(DATA[path])
    for changed in (data.replace(b" : ", b": "), data.replace(b"kb: ", b"kb : ")):
        again = typed(changed)
        assert (again["verdict"], again["storage"], again["config"]) == (
            report["verdict"],
            report["storage"],
            report["config"],
        )


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_stop_the_reader(data: bytes) -> None:
    report = typed(data)
    assert (report["verdict"], claims(report)) != (DIRECT, set())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 5000,
        b"\x7fELF" + bytes(range(256)) * 40,
        b"rc=0\n",
        b"rc=255\n",
        b"Platform verification succeeded\nrc=0\n",
    ],
    ids=["empty", "newline", "zeros", "binary", "good-status", "bad-status", "words-of-success"],
)
def test_what_is_no_report_is_unknown(data: bytes) -> None:
    report = typed(data)
    assert (report["verdict"], report["storage"], report["runs"]) == (UNKNOWN, {}, 1)


def test_a_long_log_is_read_and_a_larger_one_only_in_part() -> None:
    report = typed(H200 * 12)
    assert (report["kind"], report["runs"], report["release"], report["verdict"]) == (
        "cufile.log",
        12,
        "1.15.1.6",
        "compat",
    )
    assert "udev property not found: ID_FS_USAGE vda" in [error["line"] for error in report["later_errors"]]
    assert {error["code"] for error in report["later_errors"]} >= {5027}
    whole = DATA[PRINTED[0]]
    recording = reader.read_recording(whole + b"x" * (LIMIT + 1 - len(whole)))
    assert recording.cut
    assert document.document(recording, "huge")["warnings"][0].startswith("the file is too large")
