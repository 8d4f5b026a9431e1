"""The two lanes of ``make test``."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import sidebyside

ROOT = Path(__file__).parents[2]


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_every_test_is_given_once() -> None:
    shown, kept, later = sidebyside.division()
    given = [ROOT / item for item in (*shown, *kept, *(path for piece in later for path in piece))]
    # tests/host is the suite that users point at hosts of theirs.
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if not path.is_relative_to(ROOT / "tests/host"):
            assert sum(path.is_relative_to(item) for item in given) == 1, path


def test_the_shared_machine_is_used_by_one_lane() -> None:
    shown, *_ = sidebyside.division()
    alone = [f"tests/lab/{name}" for name in sidebyside.FIRST]
    for path in sorted((ROOT / "tests/lab").glob("test_*.py")):
        text = path.read_text()
        own = "def lab(" in text or "labs.up(" in text
        if "vms=1" in text or "vms=2" in text:
            assert path.relative_to(ROOT).as_posix() in (*shown, *alone), "it runs beside too many others"
        elif not own and any(word in text for word in ("vm: Host", "light: Host", "lab: Lab")):
            assert path.relative_to(ROOT).as_posix() in shown, "it would bring up a second virtual machine"


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (5, 0, 0), (0, 5, 0), (5, 5, 5), (4, 1, 4), (2, 0, 130)],
)
def test_the_worse_status_counts(one: int, other: int, status: int) -> None:
    one_and_other = [python(f"exit({number})") for number in (one, other)]
    assert sidebyside.beside(*one_and_other, [], io.BytesIO()) == status
    assert sidebyside.beside(python("exit(5)"), python("exit(5)"), one_and_other, io.BytesIO()) == status


def test_what_is_shown_is_whole_and_in_order(tmp_path: Path) -> None:
    out = io.BytesIO()
    mark = tmp_path / "mark"
    # The first waits for the second: both run at once.
    first = f"import pathlib, time\nprint('one')\nwhile not pathlib.Path({str(mark)!r}).exists(): time.sleep(.01)"
    second = f"import pathlib, sys\nprint('two')\nprint('three', file=sys.stderr)\npathlib.Path({str(mark)!r}).touch()"
    assert sidebyside.beside(python(first), python(second), [], out) == 0
    lines = out.getvalue().decode().split("\n")
    assert lines[0] == "one"
    assert set(lines[-3:]) == {"two", "three", ""}
    assert "the other lane" in lines[2]


def test_what_is_left_is_taken_by_the_lane_that_is_free(tmp_path: Path) -> None:
    out = io.BytesIO()
    # The first lane is busy until the last piece has run, so the other has to take all of them, in order.
    first = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / '3')!r}).exists(): time.sleep(.01)"
    piece = f"import pathlib, sys\nprint(sys.argv[1])\npathlib.Path({str(tmp_path)!r}, sys.argv[1]).touch()"
    later = [[*python(piece), str(number)] for number in range(1, 4)]
    assert sidebyside.beside(python(first), python("print(0)"), later, out) == 0
    assert out.getvalue().decode().split("\n")[-5:] == ["0", "1", "2", "3", ""]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_both_once_and_waits_for_their_clearing_up(tmp_path: Path, number: signal.Signals) -> None:
    child = (
        "import pathlib, sys, time\n"
        "me = pathlib.Path(sys.argv[1])\n"
        "me.with_suffix('.begun').touch()\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(.3); me.with_suffix('.cleared').touch(); sys.exit(2)\n"
    )
    (tmp_path / "child.py").write_text(child)
    program = (
        "import sys\nfrom tests import sidebyside\n"
        f"run = [sys.executable, {str(tmp_path / 'child.py')!r}]\n"
        f"one, other = {str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r}\n"
        f"never = [[*run, {str(tmp_path / 'never')!r}]]\n"
        "sys.exit(sidebyside.beside([*run, one], [*run, other], never, sys.stdout.buffer))"
    )
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*.begun"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(runner.pid, number)
    assert runner.wait(20) == 130
    assert sorted(path.name for path in tmp_path.glob("*.cleared")) == ["a.cleared", "b.cleared"]


def test_with_arguments_it_is_pytest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sidebyside", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("pytest ")
