"""Drains by commands of the site, and fleets without a scheduler."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, Interrupted
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain
from gdsdeploy.rollout.drain import reason_of, rollout_of, signature
from tests.patience import SURELY, with_time

REASON = reason_of("20261121T1054-7f3a", "driver {host} 550 to 560")
SAYS = (sys.executable, "-c", "import sys; print(sys.argv[1:]); open('said', 'a').write(repr(sys.argv[1:]))")
WORDS = ("{host}", "--why={reason}", "{rollout}/{node}", "{other}")


def commands(folder: Path, **hooks: tuple[str, ...]) -> drain.Commands:
    settings = {"out": ("true",), "back": ("true",), **hooks}
    return drain.Commands(Drain(by="command", node="{host}.example", **settings), folder, pause=0.05)


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return ("./hook", "{host}")


def test_words_are_replaced_within_their_arguments(tmp_path: Path) -> None:
    """Also where a value looks like one of the words, and with nothing left to a shell."""
    drainer = commands(tmp_path, out=(*SAYS, *WORDS), back=(*SAYS, *WORDS))
    lines: list[str] = []
    expected = ["gpu1", f"--why={REASON}", "20261121T1054-7f3a/gpu1.example", "{other}"]
    assert drainer.drain("gpu1", REASON, timeout=10, progress=lines.append) == {
        "drained": True,
        "reason": REASON,
        "was": "",
    }
    assert (tmp_path / "said").read_text() == repr(expected)
    assert drainer.undrain("gpu1", REASON, progress=lines.append) == {"returned": True, "reason": ""}
    assert (tmp_path / "said").read_text() == repr(expected) * 2
    assert "{host}" in REASON


def test_it_is_asked_until_it_is_idle(tmp_path: Path) -> None:
    text = "echo x >>asked; [ $(wc -l <asked) -ge 3 ] || { echo 2 jobs are left; exit 1; }"
    drainer, lines = commands(tmp_path, idle=script(tmp_path, text)), list[str]()
    assert drainer.drain("gpu1", REASON, timeout=10, progress=lines.append)["drained"]
    assert (tmp_path / "asked").read_text() == "x\n" * 3
    assert lines == ["it gets no more work", "waiting until it is idle: 2 jobs are left"]


def test_what_is_never_idle_fails_with_what_it_said(tmp_path: Path) -> None:
    drainer = commands(tmp_path, idle=script(tmp_path, "echo job 4711 of alice; exit 1"))
    with pytest.raises(DrainFailed, match=r"(?s)gpu1 is not free of work after 0 s.*job 4711 of alice.*\$ ./hook gpu1"):
        drainer.drain("gpu1", REASON, timeout=0.2, progress=lambda _: None)


def test_a_command_that_fails_is_quoted(tmp_path: Path) -> None:
    drainer = commands(tmp_path, out=script(tmp_path, "echo 'no such host'; exit 3"), back=("./hook", "{host}"))
    for doing, work in (
        ("take gpu1 out of work", lambda: drainer.drain("gpu1", REASON, timeout=5, progress=lambda _: None)),
        ("bring gpu1 back into work", lambda: drainer.undrain("gpu1", REASON, progress=lambda _: None)),
    ):
        with pytest.raises(DrainFailed, match=rf"(?s)cannot {doing}: status 3\n  \$ ./hook gpu1\n  \| no such host"):
            work()


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    drainer = commands(tmp_path, out=script(tmp_path, "echo $$ >pid; echo asking; sleep 600 & wait"))
    begin = time.monotonic()

    def words(limit: int) -> str:
        with pytest.raises(DrainFailed, match=rf"cannot take gpu1 out of work: no end after {limit} s") as caught:
            drainer.drain("gpu1", REASON, timeout=limit, progress=lambda _: None)
        return caught.value.message

    assert "| asking" in with_time(words, lambda message: "| asking" in message)
    # A shell's background job ignores SIGINT, and holds the output open for ten minutes.
    assert time.monotonic() - begin < SURELY
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_a_wish_to_stop_ends_it(tmp_path: Path) -> None:
    drainer, stop = commands(tmp_path, out=script(tmp_path, "echo $$ >pid; sleep 600 & wait")), Stop()

    def wish() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        stop.request()

    threading.Thread(target=wish).start()
    with stop.scope(), pytest.raises(Interrupted):
        drainer.drain("gpu1", REASON, timeout=60, progress=lambda _: None)
    assert has_ended(int((tmp_path / "pid").read_text()))


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_before_a_rollout_programs_have_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("not executable")
    drainer = commands(tmp_path, out=("no-such-program", "{host}"), back=("./hook",), idle=("./nowhere",))
    problems = drainer.check(["gpu1"])
    assert [line.partition(":")[0] for line in problems] == [
        "rollout.drain.out",
        "rollout.drain.back",
        "rollout.drain.idle",
    ]
    with pytest.raises(DrainFailed, match="no-such-program is not installed"):
        drainer.drain("gpu1", REASON, timeout=5, progress=lambda _: None)
    with pytest.raises(DrainFailed, match="cannot bring gpu1 back into work"):
        drainer.undrain("gpu1", REASON, progress=lambda _: None)
    settings = Drain(by="command", out=script(tmp_path, "true"), back=("true",))
    assert drain.drainer(settings, tmp_path).check(["gpu1"]) == []
    assert drainer.states(["gpu1"]) == {}


def test_a_fleet_without_a_scheduler(tmp_path: Path) -> None:
    drainer = drain.drainer(Drain(), tmp_path)
    assert drainer.check(["gpu1"]) == []
    assert drainer.states(["gpu1"]) == {}
    assert drainer.drain("gpu1", REASON, timeout=1, progress=lambda _: None)["drained"]
    assert drainer.undrain("gpu1", REASON, progress=lambda _: None)["returned"]


def test_reasons_are_signed() -> None:
    assert reason_of("7f3a", "a\n b") == "gdsdeploy rollout 7f3a: a b"
    assert signature(reason_of("7f3a", "a: b")) == "gdsdeploy rollout 7f3a:"
    assert rollout_of(reason_of("7f3a", "a: b")) == "7f3a"
    # The boot gate's are nobody's rollout.
    assert rollout_of("gdsdeploy: driver.flavour failed") == ""
    assert signature("gdsdeploy: driver.flavour failed") == "gdsdeploy: driver.flavour failed"
