"""Error codes: every one that a header declares, found by every way to write it."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.host.libcufile.errors import (
    CUDA,
    CUFILE,
    ERRNO,
    RDMA,
    UnknownCodeError,
    document,
    entries,
    lookup,
    number,
    text,
)


def test_every_code_of_cufiles_header_has_an_entry() -> None:
    # 5021 and 5032 are not used by any release.
    assert [e.code for e in entries() if e.family == CUFILE] == [5000 + n for n in range(1, 51) if n not in (21, 32)]


def test_codes_and_names_are_unique_and_every_entry_helps() -> None:
    assert len({(e.family, e.code) for e in entries()}) == len({e.name for e in entries()}) == len(entries())
    for entry in entries():
        assert entry.meaning
        assert re.match(r"1\.\d+ to 1\.20", entry.releases)
        assert entry.causes
        assert all(cause.what and cause.evidence and cause.fix for cause in entry.causes)


#: Names → every spelling; a small number can mean two things, and both are told.
SPELLINGS = {
    ("CU_FILE_HANDLE_NOT_REGISTERED",): (
        "5027", "-5027", "27", " 5027 ", "cufile:27", "CU_FILE_HANDLE_NOT_REGISTERED", "cu_file_handle_not_registered",
        "handle-not-registered", "HANDLE NOT REGISTERED",
    ),
    ("CUDA_ERROR_NO_DEVICE",): ("100", "cuda:100", "cu_err=100", "CUDA_ERROR_NO_DEVICE", "no_device"),
    ("SEE_ERRNO", "EPERM"): ("-1",),
    ("EPERM",): ("errno:1", "EPERM"),
    ("EINVAL",): ("-22", "errno:22", "EINVAL", "einval"),
    ("CU_FILE_DRIVER_INVALID_PROPS", "CUDA_ERROR_OUT_OF_MEMORY"): ("2",),
}  # fmt: skip


@pytest.mark.parametrize(("names", "word"), [(names, word) for names in SPELLINGS for word in SPELLINGS[names]])
def test_a_code_in_every_spelling(names: tuple[str, ...], word: str) -> None:
    assert tuple(entry.name for entry in lookup(word)) == names


def test_a_name_whose_number_changed_is_found_under_both() -> None:
    assert [entry.code for entry in lookup("CU_FILE_IO_MAX_ERROR")] == [5039, 5050]


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("5021", "5020 CU_FILE_DIO_NOT_SET"),
        ("CU_FILE_HANDEL_NOT_REGISTERED", "5027 CU_FILE_HANDLE_NOT_REGISTERED"),
        ("journal", None),
        ("", None),
        ("9" * 5000, None),
        ("-1000", "-524 ENOTSUPP"),
        ("cuda:5", "cuda:4 CUDA_ERROR_DEINITIALIZED"),
    ],
)
def test_an_unknown_code_names_the_nearest(word: str, nearest: str | None) -> None:
    with pytest.raises(UnknownCodeError) as raised:
        lookup(word)
    assert len(raised.value.nearest) == 3
    assert nearest is None or raised.value.nearest[0] == nearest


@settings(deadline=None)
@given(st.text() | st.from_regex(r"(cuda|errno|rdma|cufile)?[:=]?-?\d+", fullmatch=True))
def test_whatever_is_asked_is_answered_or_refused(word: str) -> None:
    with suppress(UnknownCodeError):
        assert lookup(word)


def test_every_entry_is_found_by_its_own_number_and_name() -> None:
    for entry in entries():
        assert lookup(number(entry))[0] is entry
        assert entry in lookup(entry.name)


def test_json_and_text_say_the_same() -> None:
    answer = document("5027")
    assert json.loads(json.dumps(answer)) == answer
    assert answer["asked"] == "5027"
    (entry,) = answer["entries"]
    assert (entry["code"], entry["family"], entry["name"]) == (5027, CUFILE, "CU_FILE_HANDLE_NOT_REGISTERED")
    assert "udev" in entry["causes"][0]["what"]
    assert all(cause["fix"] in text("5027") for cause in entry["causes"])
    assert {e.family for e in entries()} == {CUFILE, CUDA, ERRNO, RDMA}


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("5030", "no udev database"),
        ("internal error", "no udev database"),
        ("5033", "libcuda.so.1 can't be loaded"),
        ("-14", "2.25.6"),
        ("-512", "a signal"),
    ],
)
def test_the_usual_cause_comes_first(word: str, cause: str) -> None:
    assert cause in lookup(word)[0].causes[0].what


def test_later_causes_name_what_older_nvidia_fs_and_missing_setups_do() -> None:
    assert any("2.26.6" in cause.what for cause in lookup("CUDA Driver API error")[0].causes)
    assert any("isn't set up on this host" in cause.what for cause in lookup("5033")[0].causes)
    assert any("590" in cause.what for cause in lookup("801")[0].causes)
