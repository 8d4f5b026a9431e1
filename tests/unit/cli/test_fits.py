"""``gdsdeploy fits``: what it judges, how it ends, what it says about bad input, and that its text stays narrow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdsdeploy import fits
from tests import commandline
from tests.commandline import Run


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> tuple[int, str, str]:
        code = commandline.run("fits", *words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def sets(run: Run, *words: str) -> list[dict[str, Any]]:
    document = json.loads(run(*words, "--json")[1])
    assert document["version"] == fits.VERSION
    return document["sets"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("nvidia-fs=2.28.4 kernel=6.18.3", 30, "refused: kernel 6.18.3, nvidia-fs 2.28.4"),
        ("nvidia_fs=2.28.4 kernel=6.17.3", 0, "warned: kernel 6.17.3, nvidia-fs 2.28.4"),
        ("libcufile=1.15 nvidia-fs=2.26.6", 0, "fits: nvidia-fs 2.26.6, libcufile 1.15"),
        ("driver=580.126.09 libcufile=1.99", 31, "unknown: driver 580.126.09, libcufile 1.99"),
    ],
)
def test_the_verdict_comes_first_and_decides_the_exit_code(run: Run, words: str, code: int, says: str) -> None:
    ended, out, _ = run(*words.split())
    assert (ended, out.splitlines()[0]) == (code, says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "For example: gdsdeploy fits driver=580.126.09"),
        ("dirver=580.126.09 kernel=6.17", "there is no 'dirver'; did you mean 'driver'?"),
        ("580.126.09", "'580.126.09' isn't written like driver=580.126.09"),
        ("driver= kernel=6.17", "'driver=' isn't written like"),
        ("driver=999 kernel=6.17", "driver: no version of a branch 999 is known"),
        ("driver=580.126.09 kernel=banana", "kernel: 'banana' isn't written like 6.8.0"),
        ("driver=580.126.09 driver=590.44.01", "driver stands there twice"),
        ("driver=580.126.09 --driver 590.44.01", "driver stands there twice"),
        ("driver=580.95.05-0ubuntu1", "A package's version is driver-package=580.95.05-1"),
        ("kernel=6.17 mode=nvidiafs", "mode: there is no 'nvidiafs'; did you mean 'nvidia-fs'?"),
        ("driver=580.1\x1b[31m2 kernel=6.17", "'580.1\\x1b[31m2' isn't written like"),
    ],
)
def test_bad_input_is_a_usage_error_with_one_sentence(run: Run, words: str, says: str) -> None:
    code, out, err = run(*words.split(" ") if words else ())
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    assert "\x1b" not in err


def test_json_has_the_same_verdicts_and_each_rule_with_its_source(run: Run) -> None:
    (judged,) = sets(run, "nvidia-fs=2.28.4", "kernel=6.18.3")
    assert (judged["nvidia_fs"], judged["kernel"], judged["verdict"]) == ("2.28.4", "6.18.3", "refused")
    assert all(rule["source"] and rule["known"] for rule in judged["rules"])
    assert {"kernel": "6.17"} in judged["nearest"]
    assert judged["assumed"]["nvidia_fs_origin"] == "nvidia"


@pytest.mark.parametrize("words", ["--driver all --kernel 6.17", "driver=580.126.09 kernel=6.19.2 nvidia-fs=2.28.4"])
def test_text_fits_into_60_columns(run: Run, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = [line for line in run(*words.split())[1].splitlines() if len(line) > 60]
    assert long == []


def test_what_a_set_needs_to_fit_does(run: Run) -> None:
    """Each change of ``nearest``, tried: a version of the expression fits."""
    words = {"nvidia_fs": "2.28.4", "kernel": "6.18.3"}
    (judged,) = sets(run, *(f"{subject}={version}" for subject, version in words.items()))
    assert judged["nearest"]
    for change in judged["nearest"]:
        changed = [f"{subject}={version}" for subject, version in {**words, **change}.items()]
        assert {each["verdict"] for each in sets(run, *changed)} <= {"fits", "warned"}, change


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "words", ["driver=570,575,580 kernel=6.12,6.17,6.19 nvidia-fs=2.28", "driver=all kernel=6.18,7.0"]
)
def test_a_row_holds_for_each_of_its_sets(words: str, exact: bool) -> None:
    choices = fits.read(words.split(), alone=True)
    judge = fits.Judge()
    sets = judge.all(choices)
    rows = fits.folded(sets, choices, exact=exact)
    for row in rows:
        for given in row.given:
            judged = judge.judge(given)
            assert judged.kind == row.first.kind, (given, row)
            assert judged.decides >= row.decides
            assert not exact or judged.says == row.first.says
    covered = [tuple(sorted(given.items())) for row in rows for given in row.given]
    assert len(covered) == len(set(covered)) == len(sets)
