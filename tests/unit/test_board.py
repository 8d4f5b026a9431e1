"""The board of work with a clock of the test, what is remembered of it, and the heartbeat of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy import console, paths
from gdsdeploy.board import KINDS, LEAST, Board, load_durations, record_durations
from gdsdeploy.report import model


class Clock:
    """Seconds that pass only when something waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_build_of_fifteen_minutes_says_something_every_minute(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(clock)

    def wait(seconds: float) -> bool:
        clock.now += seconds
        return clock.now > 1000.0 + 15 * 60

    with board.step("Provisioning gpu1"):
        board.begin("build1", "gds_modules: Build nvidia", ago=5.0)
        console.keep_beating(lambda: model.heartbeat(board.activities(), clock()), wait)
    out, err = capsys.readouterr()
    assert out == ""
    beats = err.splitlines()
    assert len(beats) == 15
    assert beats[0] == "  still at work: Provisioning gpu1 for 60 s; build1: gds_modules: Build nvidia for 65 s"
    assert beats[-1].endswith("build1: gds_modules: Build nvidia for 15 min")


def test_the_usual_time_is_the_median_of_earlier_runs(clock: Clock) -> None:
    for seconds in (100.0, 900.0, 200.0):
        board = Board(clock)
        with board.step("Building"):
            board.begin("gpu1", "compile", ago=5.0)
            clock.now += seconds
            board.end("gpu1")
    board = Board(clock)
    with board.step("Building"):
        board.begin("gpu2", "compile")
        assert [each.usual for each in board.activities()] == [200.0, 205.0]


def test_what_failed_or_was_short_or_has_no_usual_time_is_not_remembered(clock: Clock, state: Path) -> None:
    board = Board(clock)

    @board.step("Failing")
    def work() -> None:
        board.begin("gpu1", "failing")
        board.begin("gpu2", "no answer", timed=False)
        clock.now += 60.0
        board.end("gpu1", done=False)
        board.end("gpu2")
        board.end("gpu3")
        board.begin("gpu1", "short")
        clock.now += LEAST - 0.1
        board.end("gpu1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert board.activities() == []
    assert not (state / "durations.json").exists()


def test_times_are_kept_of_the_latest_work_only() -> None:
    for number in range(KINDS + 10):
        record_durations({f"kind {number}": [10.0]})
    for seconds in range(20):
        record_durations({"kind 100": [float(seconds)]})
    times = load_durations()
    assert len(times) == KINDS
    assert "kind 9" not in times
    assert times["kind 100"] == [15.0, 16.0, 17.0, 18.0, 19.0]


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 5}', '{"a": ["x"]}', "[" * 5000, "\x00"])
def test_a_damaged_file_is_as_good_as_none(content: str, state: Path) -> None:
    state.mkdir()
    (state / "durations.json").write_text(content)
    assert load_durations() == {}
    record_durations({"a": [7.0]})
    assert load_durations() == {"a": [7.0]}


def test_a_state_folder_that_cannot_be_written_costs_only_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", "/proc/none")
    record_durations({"a": [7.0]})
    assert load_durations() == {}
    assert paths.state() == Path("/proc/none")


def test_only_a_step_that_succeeded_has_a_tick(capsys: pytest.CaptureFixture[str]) -> None:
    with console.step("Asking gpu1"):
        pass
    with console.step("Asking gpu2") as step:
        step.failure = "1 of 1 host failed"
    with pytest.raises(KeyboardInterrupt), console.step("Asking gpu3"):
        raise KeyboardInterrupt
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("‣")]
    assert lines == ["  ✓ Asking gpu1 (0 s)", "  ✗ Asking gpu2: 1 of 1 host failed (0 s)", "  ✗ Asking gpu3 (0 s)"]


def test_work_shows_what_it_is_at(clock: Clock) -> None:
    board = Board(clock)
    with board.step("Trying kernel 6.12", lambda: "compiling nvidia.ko, unit 2 of 64"):
        board.begin("build1", "gds_modules: Install the sources and tools", ago=5.0)
        board.tell("build1", lambda: "compiling nvidia-fs.ko, unit 7")
        board.tell("gpu1", lambda: "nothing")
        clock.now += 60.0
        assert model.activity_lines(board.activities(), clock(), 9) == [
            "‣ Trying kernel 6.12: compiling nvidia.ko, unit 2 of 64, for 60 s",
            "    build1: compiling nvidia-fs.ko, unit 7, for 65 s",
        ]
        board.end("build1")
    assert load_durations().keys() == {"Trying kernel 6.12", "gds_modules: Install the sources and tools"}


def test_many_hosts_have_no_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    console.say_each(console.FEW)("a line")
    console.say_each(console.FEW + 1)("no line")
    assert capsys.readouterr().err == "a line\n"
