"""What a rollout looks like, from its events: the fold, and the lines in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from gdsdeploy.host.io.wording import span
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import FORWARD, Outcome, Step, Wave
from gdsdeploy.rollout import progress as words
from gdsdeploy.rollout.machine import Status, first_status, fold
from gdsdeploy.rollout.page import render
from gdsdeploy.rollout.progress import WIDTH, bar, heartbeat, lines
from tests.unit.rollout.rehearsed import Play, run
from tests.unit.sample_rollouts import BEGIN, ERROR, KEEPS, SECONDS, Story, large, plan, small

GOLDEN = """\
rollout 20261121T1054-7f3a: halted
  because: 2 hosts failed, and the rollout halts at 2: gpu6, gpu5
  [##################......] 6 of 8 hosts, 1 h 18 min so far
  4 done, 1 rolled-back, 1 lost, 1 under way, 1 waiting
  out of work: 2 of at most 3
  waves:  ✓ canary 1/1  ✓ wave-2 2/2  ▸ wave-3 3/4  · wave-4 0/1
  under way:
    gpu7  preflight for 12 s, attempt 2
  failed:
    ? gpu5: lost: boot: no answer within 1200 s of its reboot
    ↺ gpu6: rolled-back: modules: nvidia-fs does not build: <nvfs-dma.c:412> & …
  last, 11:11:19 UTC: gpu7: preflight begins (attempt 2): it is checked"""


def shown(status: Status, after: float = 0.0, **how: bool) -> list[str]:
    assert status.last is not None
    return lines(status, now=status.last.time + after, **how)


def test_a_terminal_shows_everything_that_matters() -> None:
    status = fold(small().events)
    assert "\n".join(shown(status, 12)) == GOLDEN


def test_a_log_gets_the_same_in_one_line() -> None:
    status = fold(small().events)
    assert status.last is not None
    assert heartbeat(status, now=status.last.time + 60, latest={"gpu7": "DKMS: nvidia"}) == (
        "  still at work: 6 of 8 hosts, 1 h 18 min so far; gpu7  preflight for 60 s, attempt 2: DKMS: nvidia"
    )


def test_hosts_that_failed_alike_share_a_line() -> None:
    names = [f"n{number}" for number in range(1, 31)]
    story = Story(plan((Wave("canary", tuple(names), canary=True),), settings=KEEPS))
    story.say(Kind.OPENED, wave="canary")
    for name in names:
        story.upgrade(
            name, until=Step.VALIDATE, error={"message": f"{name}: checks failed", "hint": f"x --limit {name}"}
        )
        story.say(Kind.OUTCOME, name, outcome="kept", reason="it failed")
    text = shown(fold(story.events), whole=True)
    assert text.count("    ✗ n[1-30]: kept: validate: checks failed") == 1
    assert "      what to do: x --limit 'n[1-30]'" in text


def test_reasons_can_be_read_whole_with_what_to_do() -> None:
    lines = shown(fold(small().events), whole=True)
    at = lines.index("    ? gpu5: lost: boot: no answer within 1200 s of its reboot")
    assert lines[at + 1 : at + 4] == [
        "    ↺ gpu6: rolled-back: modules: nvidia-fs does not build: <nvfs-dma.c:412> &",
        "      'struct page' has no member \\u001b[31mpgmap",
        "      what to do: Run `gdsdeploy kmod preflight fleet.yml`",
    ]
    assert max(map(len, lines)) <= WIDTH


def test_why_a_host_failed_and_why_it_was_not_taken_back() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.upgrade("a", until=Step.VALIDATE, error={"message": "a: first"})
    story.step("a", Step.UNDO)
    story.step("a", Step.UNDO_REBOOT, error={"message": "a: third"})
    story.say(Kind.OUTCOME, "a", outcome="kept", reason="a: first")
    status = fold(story.events)
    assert "    ✗ a: kept: validate: first; then undo-reboot: third" in shown(status)
    assert "first\nthen, at undo-reboot: third" in render(status)


def each(events: Iterable[Event]) -> Iterator[tuple[Event, Status]]:
    """Every event with the (one and same) status after it."""
    first, *others = events
    status = first_status(first)
    yield first, status
    for event in others:
        status.apply(event)
        yield event, status


def test_every_line_fits_and_obeys_nobody() -> None:
    for story in (small(), large(300)):
        for event, status in each(story.events):
            if event.number % 7 == 0:
                lines = shown(status, 3600)
                assert max(map(len, lines)) <= WIDTH
                assert not any("\x1b" in line for line in lines)
                assert len(lines) <= 45, "it has to fit a terminal, however many hosts there are"


def test_time_never_goes_backwards() -> None:
    lapses = [status.lapse for _, status in each(small().events)]
    assert lapses == sorted(lapses)
    assert lapses[-1] > 4000
    status = fold(small().events)
    assert all(work.end is None or work.end >= work.begin for host in status.hosts.values() for work in host.works)
    assert status.last is not None
    early = lines(status, now=0.0)
    assert "-" not in early[2], "a clock that was set back makes nothing negative"


def test_who_is_out_of_work() -> None:
    story = Story(plan((Wave("canary", ("a", "b"), canary=True),), down=("x",)))
    status = fold(story.events)
    assert status.away() == {"x"}

    def then(kind: Kind, host: str = "", **data: object) -> set[str]:
        story.say(kind, host, **data)
        status.apply(story.events[-1])
        return status.away()

    for name in "ab":
        assert name not in then(Kind.BEGIN, name, step="preflight", attempt=1)
        then(Kind.END, name, step="preflight", data={"boot_id": "1"})
        assert name in then(Kind.BEGIN, name, step="drain", attempt=1)
        assert name in then(Kind.FAIL, name, step="drain", error={"message": "no"})
        then(Kind.BEGIN, name, step="undo-validate", attempt=1)
    then(Kind.END, "a", step="undo-validate", data={"validated_boot": "1"})
    assert then(Kind.BEGIN, "a", step="return", attempt=1) == {"a", "b", "x"}
    assert then(Kind.END, "a", step="return", data={"returned": True}) == {"b", "x"}
    assert [end is None for _, end in status.hosts["a"].outages] == [False]
    then(Kind.FAIL, "b", step="undo-validate", error={"message": "no"})
    assert then(Kind.OUTCOME, "b", outcome="kept", reason="no") == {"b", "x"}
    assert then(Kind.RESUMED, accept=["b"], back=["b", "x"], down=["y"]) == {"y"}
    assert status.hosts["b"].accepted


def test_how_long_a_host_takes() -> None:
    status = fold(small().events)
    host, steps = status.hosts["gpu1"], [SECONDS[step] for step in FORWARD]
    assert host.worked(status.lapse) == host.seconds == sum(steps), "its soak is no work"
    assert host.out_of_work(status.lapse) == sum(steps[1:]), "not during its preflight"
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    story.say(Kind.BEGIN, "a", step="preflight", attempt=1)
    story.wait(10)
    story.say(Kind.BEGIN, "a", step="preflight", attempt=2)
    assert [work.end for work in fold(story.events).hosts["a"].works] == [10, None], "its driver was stopped"


def test_an_end_may_be_reconsidered() -> None:
    story = Story(plan((Wave("canary", ("a",), soak=60, canary=True),)))
    story.upgrade("a")
    story.step("a", Step.SOAK, error=ERROR)
    status = fold(story.events)
    assert (status.hosts["a"].state, status.hosts["a"].outcome) == ("between steps", None)
    assert [host.name for host in status.failed()] == ["a"]
    story.step("a", Step.DRAIN)
    story.undo("a")
    assert fold(story.events).hosts["a"].state == "rolled-back"


def test_a_rollback_reconsiders_what_is_done_and_a_soak_ends_first() -> None:
    story = Story(plan((Wave("canary", ("a", "b"), soak=60, canary=True),)))
    story.upgrade("a")
    story.upgrade("b")
    story.say(Kind.BEGIN, "a", step="soak", attempt=1)
    story.say(Kind.ROLLBACK, reason="slower")
    assert {name: host.outcome for name, host in fold(story.events).hosts.items()} == {"a": Outcome.DONE, "b": None}
    story.say(Kind.PAUSED, reason="")
    story.say(Kind.END, "a", step="soak", data={})
    assert fold(story.events).hosts["a"].outcome is None


def test_phases() -> None:
    story = Story(plan((Wave("canary", ("a",), canary=True),)))
    expected = [
        (Kind.OPENED, "running"), (Kind.PAUSED, "paused"), (Kind.PAUSED, "paused"), (Kind.RESUMED, "running"),
        (Kind.HALTED, "halted"), (Kind.RESUMED, "running"), (Kind.ABORTED, "being aborted"), (Kind.PAUSED, "paused"),
        (Kind.RESUMED, "being aborted"), (Kind.FINISHED, "aborted"), (Kind.ROLLBACK, "being rolled back"),
        (Kind.FINISHED, "rolled back"),
    ]  # fmt: skip
    for kind, phase in expected:
        story.say(kind, wave="canary", reason="why")
        status = fold(story.events)
        assert status.phase == phase
        assert status.finished == (kind is Kind.FINISHED)


def test_time_left_comes_from_what_was_expected_and_what_it_took() -> None:
    hosts = tuple("abcdefgh")
    story = Story(plan((Wave("canary", ("c0",), soak=100, canary=True), Wave("w", hosts)), max_unavailable=2))
    assert fold(story.events).left() == 600 + 100 + 8 * 600 / 2
    story.say(Kind.OPENED, wave="canary")
    story.upgrade("c0")
    took = fold(story.events).hosts["c0"].seconds
    assert took == sum([4, 95, 12, 140, 180, 6, 3, 110, 40, 2])
    story.say(Kind.SOAKING, wave="canary", until=story.time + 100)
    story.wait(40)
    story.say(Kind.NOTE, text="x")
    assert fold(story.events).left() == pytest.approx(60 + 8 * took / 2)
    story.say(Kind.PAUSED, reason="")
    assert fold(story.events).left() is None


@pytest.mark.parametrize("events", [[], [Event(1, 0.0, Kind.NOTE, data={"text": "x"})]])
def test_a_journal_begins_with_its_plan(events: list[Event]) -> None:
    with pytest.raises(ValueError, match="begins with the plan"):
        fold(events)


def every_event() -> Iterator[Event]:
    for number, kind in enumerate(Kind, 1):
        yield Event(number, BEGIN, kind)
        yield Event(number, BEGIN, kind, "gpu1")
    for step in [*FORWARD, Step.SOAK, Step.POWER]:
        yield Event(1, BEGIN, Kind.BEGIN, "gpu1", {"step": str(step), "attempt": 2})


def test_every_event_has_words_even_when_it_lacks_all_data() -> None:
    for event in every_event():
        text = words.sentence(event)
        assert text == "".join(char for char in text if char.isprintable())
        assert "None" not in text
        assert words.to_json(event, "r", "f")["text"] == text
    assert all(words.DOING.get(step) for step in Step)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-5, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 00 min"), (3900, "1 h 05 min"),
     (200000, "2 d 7 h")],
)  # fmt: skip
def test_spans_as_people_say_them(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_bar_is_full_only_when_all_are_done() -> None:
    assert bar(0, 3, 3) == "[...]"
    assert bar(999, 1000, 24).count("#") == 23
    assert bar(3, 3, 3) == bar(0, 0, 3) == "[###]"


def test_a_host_counts_as_done_while_it_is_validated_again() -> None:
    play = run(Play(plan((Wave("canary", ("a",), soak=60, canary=True),))), until=_soaks)
    assert play.machine.outcomes() == {"done": 1}


def _soaks(play: Play) -> bool:
    return play.machine.hosts["a"].step is Step.SOAK and "a" in play.under_way
