"""``gdsdeploy rollout …`` as a user runs it, with pretended hosts; what users do wrong, and what they do twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import RolloutRefused
from gdsdeploy.lock import lockfile, signatures
from gdsdeploy.model.events import Kind, as_json
from gdsdeploy.model.rollout import Outcome, Step, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import display, journal, machine, preconditions, session
from tests.commandline import plain, run
from tests.loopback.rollout import pretended_cli
from tests.unit.rollout.planned_fleet import PATIENT, PlannedFleet
from tests.unit.sample_rollouts import Story, plan

OUTCOMES = {"done": 3}
SCHEMA = {"version", "rollout", "fleet", "number", "time", "kind", "host", "data", "text"}


pytestmark = pytest.mark.usefixtures("own_folders")


Make = Callable[..., PlannedFleet]


@pytest.fixture
def make_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*hosts: str, fails: str = "", seconds: float = 0.0, **changed: object) -> PlannedFleet:
        fleet = PlannedFleet(tmp_path, hosts or "abc", **changed)
        fleet.tried()
        (tmp_path / "pretended.json").write_text(json.dumps({"fails": list(fails), "seconds": seconds}))
        pretended_cli.pretend(tmp_path, fleet, monkeypatch)
        return fleet

    return make


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``gdsdeploy rollout …`` in a process of its own."""
    begun: list[subprocess.Popen[str]] = []

    def start(*argv: object) -> subprocess.Popen[str]:
        words = [sys.executable, pretended_cli.__file__, str(tmp_path), "rollout", *map(str, argv)]
        begun.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"}))  # fmt: skip
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


def status_of(fleet: PlannedFleet) -> machine.Status:
    _, events = display.find_rollout(fleet.path, None)
    return machine.fold(events)


def until(fleet: PlannedFleet, what: Callable[[machine.Status], bool]) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if journal.path_of(fleet.path).exists():
            try:
                if what(status_of(fleet)):
                    return
            except (RolloutRefused, ValueError):
                pass  # it has not written its plan down yet
        time.sleep(0.05)
    raise AssertionError("it did not come to it")


def test_a_rollout_from_its_plan_to_its_end(
    make_fleet: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fleet = make_fleet()
    page = tmp_path / "rollout.html"
    assert run("rollout", "start", fleet.path, "--yes", "--html", page) == 0
    out, err = capsys.readouterr()
    assert "3 hosts to change (3 with a reboot)" in out
    assert out.rstrip().endswith("3 of 3 hosts have the lock")
    for words in (
        "wave canary begins",
        "a: drain begins",
        "c: done: it has the new lock, validated",
        "is finished: 3 done",
    ):
        assert words in err
    assert "3 of 3 hosts have the lock" in page.read_text()
    assert status_of(fleet).outcomes() == OUTCOMES
    fleet.plans = {name: HostPlan(name) for name in "abc"}
    assert run("rollout", "start", fleet.path, "--yes") == 0, "a second run has nothing to do"
    assert "Nothing to do: every host that takes part has the lock" in capsys.readouterr().err
    assert run("rollout", "history", fleet.path) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert rows[1].split()[-4:] == ["s", "finished", "3", "done"]


def test_json_is_one_event_a_line(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet("a")
    assert run("rollout", "start", fleet.path, "--yes", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert all(set(event) == SCHEMA for event in events)
    assert {event["rollout"] for event in events} == {events[0]["data"]["plan"]["id"]}
    assert (events[0]["kind"], events[-1]["kind"]) == ("planned", "finished")
    assert run("rollout", "status", fleet.path, "--watch", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == events
    assert run("rollout", "status", fleet.path, "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["phase"], state["finished"], state["live"], state["counts"]) == ("finished", True, False, {"done": 1})
    assert run("rollout", "history", fleet.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["counts"] == {"done": 1}


def test_a_dry_run_does_nothing(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet()
    assert run("rollout", "start", fleet.path, "--dry-run") == 0
    assert "canary: 1 host" in capsys.readouterr().out
    assert run("rollout", "start", fleet.path, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["hosts"]["a"]["disruption"] == "reboot"
    fleet.drains.against = ["no slurm"]
    assert run("rollout", "start", fleet.path, "--dry-run") == 50
    out, err = capsys.readouterr()
    assert "canary: 1 host" in out, "the plan is shown all the same"
    assert "no slurm" in plain(err)
    assert not journal.path_of(fleet.path).exists()


def test_a_failed_canary_halts_and_nothing_else_is_touched(
    make_fleet: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(fails="a")
    assert run("rollout", "start", fleet.path, "--yes") == 51
    err = plain(capsys.readouterr().err)
    assert re.search(r"error: halted: 1 .*the rollout halts at 1", err)
    assert "0 of 3 hosts have the lock, 1 rolled-back, 2 not finished" in err
    now = status_of(fleet)
    assert [host.works == [] for host in now.hosts.values()] == [False, True, True]
    assert run("rollout", "start", fleet.path, "--yes") == 50, "not beside one that is not finished"
    err = plain(capsys.readouterr().err)
    assert f"is not finished\nhint: Continue it: gdsdeploy rollout resume {fleet.path}; or end it" in err
    assert run("rollout", "resume", fleet.path) == 51, "it halts again for the same reason"
    assert run("rollout", "resume", fleet.path, "--accept", "b") == 50
    assert "--accept: b did not fail in this rollout" in plain(capsys.readouterr().err)
    assert run("rollout", "resume", fleet.path, "--accept", "a") == 51, "one host does not have the lock"
    assert status_of(fleet).outcomes() == {"done": 2, "rolled-back": 1}
    assert status_of(fleet).finished


def test_a_rollout_goes_on_only_while_its_lock_is_signed(
    make_fleet: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "alice"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "alice", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text()
    (tmp_path / "signers").write_text(f"alice {public}")
    (tmp_path / "revoked").write_text("")
    own = "0" * 32
    fleet = make_fleet(fails="a", signers="signers", revoked_signers="revoked", fleet_id=own)
    path = lockfile.beside(fleet.path)
    lockfile.write(path, lockfile.build(fleet.new.targets, fleet_id=own, serial=1))
    assert run("rollout", "start", fleet.path, "--yes") == 60
    signatures.write(path, signatures.sign(path.read_bytes(), key))
    assert run("rollout", "start", fleet.path, "--yes", "--allow-older-lock") == 51
    assert status_of(fleet).plan.any_serial
    (tmp_path / "revoked").write_text(public)
    capsys.readouterr()
    before = status_of(fleet).last
    assert run("rollout", "resume", fleet.path, "--accept", "a") == 60
    err = plain(capsys.readouterr().err)
    assert "revoked revokes" in err
    assert f"rollout abort {fleet.path}" in err
    assert status_of(fleet).last == before
    (tmp_path / "revoked").write_text("")
    assert run("rollout", "resume", fleet.path, "--accept", "a") == 51, "one host does not have the lock"
    (tmp_path / "revoked").write_text(public)
    assert run("rollout", "rollback", fleet.path, "--yes") == 0, "the way back needs no signature"


def test_everything_is_taken_back(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet()
    assert run("rollout", "start", fleet.path, "--yes") == 0
    assert run("rollout", "rollback", fleet.path, "--yes", "--reason", "slower") == 0
    assert "rollback" not in capsys.readouterr().out
    now = status_of(fleet)
    assert (now.phase, now.outcomes()) == ("rolled back", {"rolled-back": 3})
    assert now.away() == set()
    assert run("rollout", "rollback", fleet.path, "--yes") == 50, "there is nothing left to take back"
    assert "has no changed host left to roll back" in plain(capsys.readouterr().err)


def test_an_abort_needs_no_lock_where_nothing_is_under_way(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(fails="a")
    run("rollout", "start", fleet.path, "--yes")

    def refuses(_: object) -> None:
        raise RolloutRefused("the lock is not kept on this machine")

    monkeypatch.setattr(session, "RealEffects", refuses)
    for verb in ("resume", "rollback"):
        assert run("rollout", verb, fleet.path, *(["--yes"] if verb == "rollback" else [])) == 50
    before = status_of(fleet).last
    assert run("rollout", "abort", fleet.path) == 0
    assert before is not None
    assert before.kind is Kind.CLOSED, "what is refused writes nothing"
    assert status_of(fleet).finished


@pytest.mark.parametrize("verb", ["status", "pause", "resume", "abort", "rollback"])
def test_verbs_without_a_rollout(
    verb: str, make_fleet: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fleet = make_fleet("a")
    more = ["--yes"] if verb == "rollback" else []
    assert run("rollout", verb, fleet.path, *more) == 50
    assert f"there is no rollout of {fleet.path}" in plain(capsys.readouterr().err)
    assert not journal.path_of(fleet.path).exists(), "asking leaves nothing behind"
    assert run("rollout", verb, tmp_path / "none.yml", *more) == 10
    assert run("rollout", "history", fleet.path) == 0


def test_what_users_do_wrong(make_fleet: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fleet = make_fleet("a")
    for argv, code, words in (
        (["start", fleet.path], 2, "standard input isn't a terminal"),
        (["start", fleet.path, "--yes", "--html", tmp_path / "no" / "x.html"], 1, "does not exist"),
        (["start", fleet.path, "--yes", "--limit", "z"], 2, "has no host 'z'"),
        (["start", fleet.path, "--yes", "--from", tmp_path / "none.lock"], 11, "none.lock"),
        (["start"], 2, "Missing argument"),
    ):
        assert run("rollout", *argv) == code
        err = plain(capsys.readouterr().err)
        assert words in err
        assert "Traceback" not in err
    assert fleet.asked == [], "all of that is known before a host is asked"
    assert run("rollout", "start", fleet.path, "--yes") == 0
    assert run("rollout", "rollback", fleet.path) == 2
    assert run("rollout", "status", fleet.path, "--rollout", "x") == 50
    assert "there is no rollout x" in plain(capsys.readouterr().err)


def test_somebody_who_does_not_say_yes(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet("a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert run("rollout", "start", fleet.path) == 130
    assert "not confirmed; nothing was changed" in plain(capsys.readouterr().err)
    assert not journal.path_of(fleet.path).exists()


def test_a_killed_controller_is_seen_and_resumed(
    make_fleet: Make, command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(seconds=0.15)
    process = command("start", fleet.path, "--yes")
    until(fleet, lambda now: any(host.out for host in now.hosts.values()))
    path = journal.path_of(fleet.path)
    assert display.has_driver(path)
    assert run("rollout", "start", fleet.path, "--yes") == 52
    assert "is running\nhint: Watch it" in plain(capsys.readouterr().err)
    process.kill()
    process.wait()
    assert not display.has_driver(path)
    assert run("rollout", "status", fleet.path) == 0
    assert "running, but no process works on it" in capsys.readouterr().out
    assert run("rollout", "status", fleet.path, "--watch") == 51
    (fleet.path.parent / "pretended.json").unlink()
    assert run("rollout", "resume", fleet.path) == 0
    assert status_of(fleet).outcomes() == OUTCOMES


def test_who_begins_to_watch_at_the_last_moment_sees_the_end(make_fleet: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process writes its last event, and ends, while the watcher reads the events before it."""
    fleet, runs = make_fleet("a"), [True]
    assert run("rollout", "start", fleet.path, "--yes") == 0
    whole = display.find_rollout

    def read_early(path: Path, rollout: str | None) -> Any:
        summary, events = whole(path, rollout)
        runs[0] = False
        return replace(summary, finished=False), events[:-1]

    monkeypatch.setattr(display, "find_rollout", read_early)
    monkeypatch.setattr(display, "has_driver", lambda _: runs[0])
    assert run("rollout", "status", fleet.path, "--watch") == 0


def test_others_watch_and_pause_the_one_that_works(
    make_fleet: Make, command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(seconds=0.15)
    process = command("start", fleet.path, "--yes", "--json")
    until(fleet, lambda now: bool(now.under_way()))
    watcher = command("status", fleet.path, "--watch", "--json")
    assert run("rollout", "pause", fleet.path, "--reason", "lunch", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["by_driver"] is True
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    watched, _ = watcher.communicate(timeout=300)
    assert watcher.returncode == 130
    watched_events, events = ([json.loads(line) for line in text.splitlines()] for text in (watched, out))
    assert watched_events == events, "who watches sees what the one who works says"
    assert watched_events[-1]["kind"] in ("paused", "end")
    assert run("rollout", "pause", fleet.path) == 50, "it is paused already"
    assert status_of(fleet).reason == "lunch"


@pytest.mark.usefixtures("no_signal_is_ignored")
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 3)])
def test_it_dies_by_the_signal_that_ended_it(
    number: signal.Signals, times: int, make_fleet: Make, command: Callable[..., Any]
) -> None:
    fleet = make_fleet(seconds=0.2)
    process = command("start", fleet.path, "--yes")
    until(fleet, lambda now: bool(now.under_way()))
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=300)
    assert process.returncode == -number, err
    assert "Continue with: gdsdeploy rollout resume" in err
    assert run("rollout", "resume", fleet.path) == 0
    assert status_of(fleet).outcomes() == OUTCOMES


def test_a_rollout_in_a_terminal_is_drawn_anew(make_fleet: Make, command: Callable[..., Any], tmp_path: Path) -> None:
    """With a real pseudo terminal of 80 columns."""
    import pty
    import struct
    import termios
    from fcntl import ioctl

    fleet = make_fleet(seconds=0.05)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, pretended_cli.__file__, str(tmp_path), "rollout", "start", str(fleet.path)]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(words, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    output = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        output += chunk
        if b"Begin? [y/N]" in output and b"y\r" not in output:
            os.write(ours, b"y\r")
            output += b"y\r"
    os.close(ours)
    assert process.wait(timeout=300) == 0
    text = output.decode()
    assert "under way:" in text
    assert "\x1b[3" not in text, "NO_COLOR is honoured"
    assert "[########################] 3 of 3 hosts" in text
    assert "wave canary is done" in text, "what happened stays above what is drawn anew"
    assert max(len(line) for line in text.replace("\r", "\n").split("\n") if line.startswith("  ")) <= 80


def test_a_fleet_that_was_edited_meanwhile_is_said(make_fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet(fails="a")
    run("rollout", "start", fleet.path, "--yes")
    value = {**PATIENT, "parallel": 3}
    fleet.path.write_text(fleet.path.read_text() + f"# edited\nwaivers: []  # {value['parallel']}\n")
    run("rollout", "abort", fleet.path)
    assert "was edited since; the rollout continues with the one that it was planned with" in capsys.readouterr().err


def test_a_command_is_told_of_what_a_person_is_woken_for(make_fleet: Make, tmp_path: Path) -> None:
    script = tmp_path / "tell"
    script.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    script.chmod(0o755)
    fleet = make_fleet(fails="a", rollout={**PATIENT, "notify": {"command": [str(script)]}})
    assert run("rollout", "start", fleet.path, "--yes") == 51
    events = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [(event["kind"], event["host"]) for event in events] == [("halted", ""), ("outcome", "a")]


@pytest.mark.parametrize(
    ("phase", "outcomes", "code"),
    [
        ((Kind.FINISHED,), (Outcome.DONE, Outcome.SATISFIED), None),
        ((Kind.FINISHED,), (Outcome.DONE, Outcome.KEPT), 51),
        ((Kind.FINISHED,), (Outcome.DONE, Outcome.REFUSED), 51),
        ((Kind.ABORTED, Kind.FINISHED), (Outcome.DONE, Outcome.DONE), 51),
        ((Kind.ROLLBACK, Kind.FINISHED), (Outcome.ROLLED_BACK, Outcome.REFUSED), None),
        ((Kind.ROLLBACK, Kind.FINISHED), (Outcome.ROLLED_BACK, Outcome.DONE), 51),
        ((Kind.ROLLBACK, Kind.FINISHED), (Outcome.ROLLED_BACK, Outcome.LOST), 51),
        ((Kind.PAUSED,), (), 130),
        ((Kind.HALTED,), (), 51),
    ],
)
def test_exit_codes(phase: tuple[Kind, ...], outcomes: tuple[Outcome, ...], code: int | None) -> None:
    story = Story(plan((Wave("canary", ("a", "b"), canary=True),)))
    story.say(Kind.OPENED, wave="canary")
    for kind in phase:
        story.say(kind, reason="why", outcomes={})
    now = machine.fold(story.events)
    for host, outcome in zip(now.hosts.values(), outcomes, strict=False):
        host.outcome = outcome
    error = display.final_error(now)
    assert (error.exit_code if error else None) == code


@pytest.mark.parametrize(
    ("by", "accept", "reasons", "silent", "data"),
    [
        ("none", [], {}, [], {"back": [], "down": []}),
        ("none", ["a"], {}, ["old"], {"back": ["a"], "down": ["old"]}),
        ("slurm", [], {"a": "gdsdeploy rollout 20261121T1054-7f3a: x", "old": "disk"}, [], None),
        ("slurm", ["a"], {"a": "gdsdeploy rollout 20261121T1054-7f3a: x", "old": "disk"}, [], None),
        ("slurm", [], {"b": "somebody", "old": "disk"}, [], {"back": ["a"], "down": ["b", "old"]}),
        ("slurm", [], {"c": "takes no part"}, ["old"], {"back": ["a"], "down": ["c", "old"]}),
        ("command", ["a"], {}, [], {"back": ["a"], "down": []}),
        ("command", [], {}, [], {"back": [], "down": []}),
    ],
)
def test_who_is_out_of_work_is_asked_when_a_rollout_is_taken_up(
    by: str, accept: list[str], reasons: dict[str, str], silent: list[str], data: dict[str, Any] | None,
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Hosts that nobody can be asked about have to answer; one that was kept works where a person says so."""
    fleet = make_fleet("a", "b", "c", "old")
    fleet.drains.out = reasons
    monkeypatch.setattr(preconditions, "silent", lambda *_: dict.fromkeys(silent, "it doesn't answer"))
    if by == "slurm":
        monkeypatch.setattr(session, "drainer", lambda *_: fleet.drains)
    drain = {"by": by, "out": ["x"], "back": ["x"]} if by == "command" else {"by": by}
    settings = Rollout.model_validate({"drain": drain}).model_dump(mode="json")
    story = Story(
        plan(
            (Wave("canary", ("a", "b"), canary=True),), down=("old",), skipped={"c": "not in --limit"},
            settings=settings, fleet=str(fleet.path),
        )
    )  # fmt: skip
    story.step("a", Step.PREFLIGHT)
    for step in (Step.DRAIN, Step.UNDO_VALIDATE):
        story.step("a", step, error={"message": "no"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="no")
    now = machine.fold(story.events)
    story.say(Kind.RESUMED, **as_json(session.resumption(now, accept, "why")))
    current = machine.StateMachine(now.plan)
    for event in story.events:
        current.apply(event)
    events = current.looked(session.Lookout(now.plan)({"old"}, True))
    assert [as_json(payload) for _, payload in events] == (
        [] if data is None else [{"down": tuple(data["down"]), "back": tuple(data["back"])}]
    )
    with pytest.raises(RolloutRefused, match="b did not fail"):
        session.resumption(now, ["b"], "why")
