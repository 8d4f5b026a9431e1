"""What waits ends soon once it is wished, from another thread; nothing ends otherwise."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from gdsdeploy import cancel, run
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import Interrupted


def wished_in(stop: Stop, seconds: float) -> None:
    threading.Timer(seconds, stop.request).start()


def test_a_program_is_ended_with_all_that_it_started() -> None:
    stop, lines = Stop(), []
    script = "import subprocess, sys; print('up', flush=True); subprocess.run(['sleep', '60'])"

    def line(text: str) -> None:
        lines.append(text)
        wished_in(stop, 0.1)

    begin = time.monotonic()
    with pytest.raises(Interrupted), stop.scope():
        run.stream([sys.executable, "-c", script], doing="wait", line=line)
    assert lines[0] == "up"
    assert time.monotonic() - begin < 10


def test_a_pause_ends() -> None:
    stop = Stop()
    wished_in(stop, 0.1)
    begin = time.monotonic()
    with pytest.raises(Interrupted), stop.scope():
        cancel.current().wait(30)
    assert time.monotonic() - begin < 5


def test_nothing_begins_after_the_wish() -> None:
    stop = Stop()
    stop.request()
    with pytest.raises(Interrupted), stop.scope():
        pytest.fail("the block was entered")


def test_outside_of_a_scope_nobody_stops() -> None:
    stop = Stop()
    stop.request()
    cancel.current().check()
    assert run.stream([sys.executable, "-c", "pass"], doing="try", line=lambda _: None) == 0
